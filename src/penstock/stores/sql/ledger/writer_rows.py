"""Reads a stream's writer row in a sink's ledger: who may publish, and whether the row is locked now.

Rule: it does not wait for a lock on the row. A row that is locked briefly means that a publish is under way.
One that stays locked means a session left open, or a publish that waits for one: `blocking_sessions` finds
out which.

    look_at_writer(place, "visits").is_locked

A fenced writer also looks here for the cause: another program, or a user who moved the stream (`penstock
offsets rewind`).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from penstock.core.diagnosis.manual_moves import HandMove
from penstock.core.diagnosis.standstill import WriterNow
from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.offsets.offset_store_contract import SEEK, Change
from penstock.core.options.storage_addresses import FilePlace, Place
from penstock.core.prose import write_moment
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql.connections.database_errors import foreign_errors
from penstock.stores.sql.connections.sql_sessions import Database, Session, open_session
from penstock.stores.sql.ledger.ledger_tables import WRITERS


def look_at_writer(place: Place, stream: str) -> WriterNow | None:
    """Return who may publish the stream and whether the row is locked; None if it has no writer here."""
    question = "SELECT epoch, owner, taken_ms FROM {} WHERE stream = {}"

    def read(session: Session) -> WriterNow | None:
        found = session.execute(question.format(WRITERS, session.grammar.mark), [stream])
        return WriterNow(int(found[0][0]), found[0][1], int(found[0][2])) if found else None

    seen = Database(place).run(read)
    if seen is None:
        return None
    file = place.path if isinstance(place, FilePlace) else None
    return replace(seen, is_locked=_is_locked(place, stream), file=file)


def find_hand_move(place: Place, stream: str) -> HandMove | None:
    """Return the move by hand that last took the stream over. Return None if the last to do so was a writer
    or a program that moved itself at its start, or if nothing did."""
    question = "SELECT epoch FROM {} WHERE stream = {}"
    found = Database(place).run(
        lambda session: session.execute(question.format(WRITERS, session.grammar.mark), [stream])
    )
    if not found:
        return None
    moves = _list_hand_moves(place, stream, since=int(found[0][0]) - 1)
    return HandMove(moves[-1].who, moves[-1].verb, moves[-1].at_ms, fences=True) if moves else None


def explain_fence(place: Place, stream: str, epoch: int, fenced: SinkError) -> SinkError:
    """Return the error for a writer of this epoch that may no longer publish. If a user has moved the stream
    by hand meanwhile, it says who and when."""
    try:
        moves = _list_hand_moves(place, stream, since=epoch)
    except OffsetStoreError:
        return fenced  # the database cannot be asked now; report what is known
    if not moves:
        return fenced
    who, verb = moves[-1].who, moves[-1].verb
    when = write_moment(moves[-1].at_ms)
    return SinkError(
        "WRITER_FENCED",
        f"The stream {stream} was moved by hand: {who} did `{verb}` at {when} UTC. A writer that ran then "
        f"(epoch {epoch}) may not publish any more.",
        hint="Start the stream again: it goes on where it was moved to. Nothing of this writer was published "
        "after the move.",
        facts={**fenced.facts, "who": who, "verb": verb, "at_ms": moves[-1].at_ms},
    )


def _list_hand_moves(place: Place, stream: str, *, since: int) -> list[Change]:
    return [each for each in SinkOffsetStore(place).list_moves(stream, since=since) if each.verb != SEEK]


def _is_locked(place: Place, stream: str) -> bool:
    try:
        with open_session(place) as session:
            if place.dialect == "sqlite":
                session.connection.rollback()
                session.execute("PRAGMA busy_timeout = 0")
                session.execute("BEGIN IMMEDIATE")
            else:
                mark = session.grammar.mark
                session.execute(
                    f"SELECT epoch FROM {WRITERS} WHERE stream = {mark} FOR UPDATE NOWAIT", [stream]
                )
            # Release the row now, because a server notices a closed connection only later.
            with contextlib.suppress(*foreign_errors()):
                session.connection.rollback()
    except OffsetStoreError as error:
        if error.condition != "DATABASE_BUSY":
            raise
        return True
    return False
