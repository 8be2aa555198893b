"""A look at a stream's writer row in a sink's ledger: who may publish, and whether somebody holds it now.

Rule: it waits for nobody's lock on the row. One that is held for a moment is a publish at work; one that
stays held is a session that was left open, and every publish waits for it.

    look_at_writer(place, "visits").is_locked
"""

from __future__ import annotations

import contextlib

from penstock.core.errors import OffsetStoreError
from penstock.core.places import Place
from penstock.core.why import WriterNow
from penstock.stores.sql import connections
from penstock.stores.sql.ledger import WRITERS
from penstock.stores.sql.sessions import Database, Session

_NOWAIT_REFUSED = 3572  # MySQL's own number; MariaDB has the one of lock timeouts


def look_at_writer(place: Place, stream: str) -> WriterNow | None:
    """None: this stream has no writer here."""
    question = "SELECT epoch, owner, taken_ms FROM {} WHERE stream = {}"

    def read(session: Session) -> WriterNow | None:
        found = session.execute(question.format(WRITERS, session.grammar.mark), [stream])
        return WriterNow(int(found[0][0]), found[0][1], int(found[0][2])) if found else None

    seen = Database(place).run(read)
    if seen is None:
        return None
    return WriterNow(seen.epoch, seen.owner, seen.taken_ms, _is_locked(place, stream))


def _is_locked(place: Place, stream: str) -> bool:
    with contextlib.closing(connections.connect(place, writes=False)) as connection:
        session = Session(connection, place)
        try:
            with connections.translate_errors(place), connections.limit_silence(place, connection):
                if place.dialect == "sqlite":
                    connection.rollback()
                    connection.execute("PRAGMA busy_timeout = 0")
                    connection.execute("BEGIN IMMEDIATE")
                else:
                    mark = session.grammar.mark
                    session.execute(
                        f"SELECT epoch FROM {WRITERS} WHERE stream = {mark} FOR UPDATE NOWAIT", [stream]
                    )
        except OffsetStoreError as error:
            if error.condition != "DATABASE_BUSY" and f"({_NOWAIT_REFUSED}," not in str(error):
                raise
            return True
        finally:
            with contextlib.suppress(*connections.foreign_errors()):
                connection.rollback()
        return False
