"""Tests at the start whether this database, over this connection, rolls a transaction back.

Rule: the database itself is tested, at each start. A ledger restored from a dump may be in an engine without
transactions, and a pooler or a proxy may commit every statement on its own. Either would keep rows of a batch
that was rolled back, without any error. The test uses a row of the ledger, which is in the same transactions
as the results and has no user triggers.

    check_rollback(place, probe="4f1c...")
"""

from __future__ import annotations

from penstock.core.errors import SinkError
from penstock.core.model import TopicPartition
from penstock.core.options.storage_addresses import Place
from penstock.core.sinks.ledger_rules import LedgerEntry
from penstock.stores.sql.connections.sql_sessions import Database, Session, open_session
from penstock.stores.sql.ledger.ledger_tables import POSITIONS, WRITERS, lock_writer, write_entries


def check_rollback(place: Place, probe: str) -> None:
    """Write a row, roll back, and raise an error if it is kept. No other program uses the name `probe`."""
    stream = f"penstock.rollback.{probe}"
    with open_session(place, writes=True) as session:
        lock_writer(session, stream)
        write_entries(session, stream, ((TopicPartition("probe", 0), LedgerEntry(0)),))
        session.connection.rollback()
    if Database(place).run(lambda session: _remove(session, stream), writes=True):
        raise SinkError(
            "ROLLBACK_NOT_KEPT",
            f"{place} has kept a row that was rolled back.",
            hint="A table of the ledger has an engine without transactions (ALTER TABLE ... ENGINE=InnoDB), "
            "or a pooler in between commits each statement: use its session or transaction mode.",
            facts={"place": str(place)},
        )


def _remove(session: Session, stream: str) -> bool:
    mark = session.grammar.mark
    kept = False
    for table in (WRITERS, POSITIONS):
        if session.execute(f"SELECT 1 FROM {table} WHERE stream = {mark}", [stream]):
            session.execute(f"DELETE FROM {table} WHERE stream = {mark}", [stream])
            kept = True
    return kept
