"""The offsets that a SQL sink keeps with its results: to look at, and to move by hand.

A stream that writes to such a sink starts where the sink says, whatever another store says; so this is the
place to move it. Rules: only its own writer saves here, with results; who moves it takes the stream over
first, so a writer that still runs is fenced and cannot write over it. A move opens a new generation: rows
from before it stay, and what is read again is written again under the next number, so that an audit can tell
them apart. From tables that keep provenance the rows that are read again can be deleted in the same
transaction.

    store = SinkOffsetStore("results.db")
    store.change("visits", change, delete_from=["visits"])
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import NoReturn

from penstock.core.digests import OffsetDigest, add_digests
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.moves import read_ledger
from penstock.core.offset_stores import Change, check_stream_name, refuse_moved
from penstock.core.places import Place, parse_place
from penstock.core.protocol import Entry
from penstock.core.stream_offsets import StreamPosition
from penstock.stores.offsets.sql import SqlOffsetStore, note_change
from penstock.stores.sql.accounts import DELETED, Account, note_accounts
from penstock.stores.sql.digests import read_digests
from penstock.stores.sql.ledger import (
    DIGESTS,
    LEDGER,
    TABLES,
    WRITERS,
    forget_entries,
    lock_writer,
    raise_epoch,
    read_entries,
    write_entries,
)
from penstock.stores.sql.names import quote
from penstock.stores.sql.schema import read_version
from penstock.stores.sql.sessions import Database, Session
from penstock.stores.sql.sink import PROVENANCE, Table
from penstock.stores.sql.targets import find_target

#: Under which the changes are kept, in the tables of the offset store in the same database.
NAMESPACE = "sink ledger"


class SinkOffsetStore:
    """A database with a sink's ledger in it; nothing is made here but the table of changes."""

    def __init__(self, place: str | os.PathLike[str] | Place) -> None:
        self._place = parse_place(os.fspath(place)) if isinstance(place, str | os.PathLike) else place
        self._database = Database(self._place)
        self._database.run(self._demand_ledger)

    def __repr__(self) -> str:
        return f"SinkOffsetStore({str(self._place)!r})"

    def load(self, stream: str) -> StreamPosition | None:
        check_stream_name(stream)
        return self._database.run(lambda session: read_ledger(read_entries(session, stream, locked=False)))

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> NoReturn:
        raise OffsetStoreError(
            "LEDGER_IS_THE_SINKS",
            "A sink's ledger is written with its results, and in no other way.",
            hint="Give the stream the sink itself, or another place as its offset store.",
        )

    def list_streams(self) -> list[str]:
        rows = self._database.run(lambda session: session.execute(f"SELECT stream FROM {WRITERS}"))
        return sorted(str(row[0]) for row in rows)

    def change(self, stream: str, change: Change, *, delete_from: Sequence[str] = ()) -> None:
        """Move it. `delete_from`: tables with provenance, from which the rows that are read again go."""
        check_stream_name(stream)
        SqlOffsetStore(self._place, namespace=NAMESPACE)  # its tables; MySQL commits where tables are made

        def make(session: Session) -> None:
            self._demand_ledger(session)
            epoch = 1 + lock_writer(session, stream)
            entries = read_entries(session, stream)
            named = next((each.batch for each in entries.values() if each.batch), "")
            if named:
                raise _follows_checkpoint(stream, named)
            refuse_moved(stream, read_ledger(entries), change)
            raise_epoch(session, stream, epoch, change.who, change.at_ms)
            mark = session.grammar.mark
            session.execute(
                f"UPDATE {WRITERS} SET generation = generation + 1 WHERE stream = {mark}", [stream]
            )
            token = f"moved-{uuid.uuid4().hex}"  # no batch's
            for table in delete_from:
                _refuse_sums(session, table)
                account = _delete_behind(session, stream, table, change)
                note_accounts(session, stream, token, [account])
            moved = _make_entries(change.after, token)
            write_entries(session, stream, moved)
            forget_entries(session, stream, tuple(set(entries) - {each for each, _ in moved}))
            note_change(session, NAMESPACE, stream, epoch, change)

        self._database.run(make, writes=True)

    def list_changes(self, stream: str) -> list[Change]:
        try:
            return SqlOffsetStore(self._place, namespace=NAMESPACE, create=False).list_changes(stream)
        except OffsetStoreError as error:
            if error.condition != "OFFSETS_NOT_FOUND":
                raise
            return []  # nobody has changed anything here yet

    def close(self) -> None:
        """Nothing is open."""

    def _demand_ledger(self, session: Session) -> None:
        if read_version(session, self._place, LEDGER) is None:
            raise OffsetStoreError(
                "OFFSETS_NOT_FOUND",
                f"There is no ledger of a sink at {self._place}.",
                hint="Check the place: it must be the database that the stream's results are in.",
                facts={"place": str(self._place)},
            )


def _make_entries(position: StreamPosition, token: str) -> tuple[tuple[TopicPartition, Entry], ...]:
    kinds = ((position.offsets, False), (position.gone, True))
    return tuple(
        (
            each,
            Entry(
                offset,
                position.topic_ids.get(each.topic),
                token,
                position.leader_epochs.get(each),
                is_gone,
            ),
        )
        for offsets, is_gone in kinds
        for each, offset in sorted(offsets.items())
    )


def _refuse_sums(session: Session, table: str) -> None:
    """A row of these modes holds what many records have left; only the last of them would be read again."""
    found = session.execute(f"SELECT DISTINCT table_name, write_mode FROM {TABLES}")
    plain = table.rpartition(".")[2]  # `totals` and `public.totals` may be one table
    modes = {str(mode) for name, mode in found if name.rpartition(".")[2] == plain}
    modes -= {"append", "upsert", DELETED}
    if modes:
        raise OptionError(
            "ROWS_ARE_SUMS",
            f"Rows of {table} (mode {', '.join(sorted(modes))}) hold what many records have added up to, and "
            "reading the last of them again would not bring that back; nothing was changed.",
            hint="Restore the table as it was at that position, or let the stream fill a new one from its "
            "beginning. Only rows of `append` and `upsert` tables can be deleted and read again.",
            facts={"table": table, "modes": sorted(modes)},
        )


def _refuse_others(session: Session, stream: str, table: str, back: Sequence[tuple[str, int, int]]) -> None:
    """Rows say which record they came from, not which stream has written them."""
    found = session.execute(f"SELECT DISTINCT stream, table_name, topic, partition_id FROM {DIGESTS}")
    plain, going = table.rpartition(".")[2], {(topic, partition) for topic, partition, _ in back}
    others = sorted(
        {
            owner
            for owner, name, topic, partition in found
            if owner != stream and name.rpartition(".")[2] == plain and (topic, int(partition)) in going
        }
    )
    if others:
        raise OptionError(
            "ROWS_OF_OTHERS",
            f"{table} has rows of the same partitions from {', '.join(others)}, too, and nothing in a row "
            "tells them apart; nothing was changed.",
            hint="Rewind without --delete-from, and delete the rows that are yours yourself.",
            facts={"table": table, "streams": others},
        )


def _delete_behind(session: Session, stream: str, table: str, change: Change) -> Account:
    """The rows of what will be read again; what went, with a minus, for the audit's books."""
    target = find_target(session, Table(table, provenance=True))
    topic, partition, offset = (quote(session.dialect, column) for column in PROVENANCE)
    mark, before = session.grammar.mark, {} if change.before is None else change.before.offsets
    back = [
        (each.topic, each.partition, after)
        for each, after in sorted(change.after.offsets.items())
        if after < before.get(each, after)
    ]
    _refuse_others(session, stream, table, back)
    behind = f"{topic} = {mark} AND {partition} = {mark} AND {offset} >= {mark}"
    going = add_digests(
        {each: kept.digest for each, kept in read_digests(session, target.quoted, behind, values).items()}
        for values in back
    )
    session.execute_many(f"DELETE FROM {target.quoted} WHERE {behind}", back)
    rows = sum(each.rows for each in going.values())
    return Account(
        target.name, DELETED, 0 - rows, {each: OffsetDigest() - digest for each, digest in going.items()}
    )


def _follows_checkpoint(stream: str, batch: str) -> OffsetStoreError:
    return OffsetStoreError(
        "LEDGER_FOLLOWS_CHECKPOINT",
        f"The results of {stream} are those of a Structured Streaming query (its last batch is {batch}), "
        "which goes on from its checkpoint.",
        hint="A move here alone would only stop it. Let the query write to new tables from a new checkpoint.",
        facts={"stream": stream, "batch": batch},
    )
