"""Tables with a version: created once, even if many programs try at the same time, and refused when newer.

Rule: each part of Penstock that keeps tables has one row in `penstock_meta`, written after its tables exist.
Why not look at the tables themselves: an old table and a new one may differ in what a column means.

    ensure_tables(session, TableSet("losses", 1, make_tables, "loss ledger", "LEDGER_TOO_NEW"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import OffsetStoreError
from penstock.stores.sql.connections.sql_sessions import Session

VERSIONS_TABLE = "penstock_meta"


@dataclass(frozen=True, slots=True)
class TableSet:
    """The tables of one part of Penstock: the part's name, their version, and the function that makes them.

    For errors: `called` is the name that users know, `too_new` the condition for tables that are too new.
    """

    component: str
    version: int
    make: Callable[[Session], None]
    called: str
    too_new: str


def read_version(session: Session, tables: TableSet) -> int | None:
    """Return the version of the tables, None if there are none. Refuse a version newer than ours."""
    if not session.has_table(VERSIONS_TABLE):
        return None
    name, mark = session.grammar.name, session.grammar.mark
    found = session.execute(
        f"SELECT {name('version')} FROM {name(VERSIONS_TABLE)} WHERE {name('component')} = {mark}",
        [tables.component],
    )
    if not found:
        return None
    version = int(found[0][0])
    if version > tables.version:
        raise OffsetStoreError(
            tables.too_new,
            f"The {tables.called} at {session.place} has version {version}; this Penstock knows "
            f"{tables.version}.",
            hint="Use the Penstock that wrote it or a newer one, or name another place.",
            facts={"place": str(session.place), "version": version, "known": tables.version},
        )
    return version


def ensure_tables(session: Session, tables: TableSet) -> None:
    """Create the tables unless they exist. The transaction must be one that writes."""
    if read_version(session, tables) is not None:
        return  # the usual case needs no right to create tables
    session.lock_schema()
    name, text = session.grammar.name, session.grammar.key_text
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {name(VERSIONS_TABLE)} ("
        f"{name('component')} {text} NOT NULL PRIMARY KEY, {name('version')} BIGINT NOT NULL)"
        + session.grammar.table_end
    )
    tables.make(session)
    # Another program may have had the lock before us.
    if read_version(session, tables) is None:
        session.execute(
            session.grammar.insert(name(VERSIONS_TABLE), (name("component"), name("version"))),
            [tables.component, tables.version],
        )
