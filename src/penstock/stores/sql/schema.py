"""Tables that carry a version: made once, by one of many who try at once, and refused when they are newer.

Rule: the usual case, tables that are there, needs no right to make any and takes no lock. Why not
`CREATE TABLE IF NOT EXISTS` alone: of two that do so at once one fails, and a table of another version is
taken for ours.

    ensure_tables(session, place, Tables("sink", 1, make_tables))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import OffsetStoreError
from penstock.core.places import Place
from penstock.stores.sql.sessions import Session

VERSIONS_TABLE = "penstock_versions"


@dataclass(frozen=True, slots=True)
class Tables:
    """What one part of Penstock keeps: its name, the version of its tables, and how they are made."""

    component: str
    version: int
    make: Callable[[Session], None]


def read_version(session: Session, place: Place, tables: Tables) -> int | None:
    """The version that is there; None where nothing is. A newer one than ours is an error."""
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
            "TABLES_TOO_NEW",
            f"The tables for {tables.component} at {place} have version {version}; this Penstock knows "
            f"{tables.version}.",
            hint="Use the Penstock that made them or a newer one, or name another place.",
            facts={"place": str(place), "version": version, "known": tables.version},
        )
    return version


def ensure_tables(session: Session, place: Place, tables: Tables) -> None:
    """Make the tables if they are not there."""
    if read_version(session, place, tables) is not None:
        return
    session.lock_schema(place)
    name, text = session.grammar.name, session.grammar.key_text
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {name(VERSIONS_TABLE)} ("
        f"{name('component')} {text} NOT NULL PRIMARY KEY, {name('version')} BIGINT NOT NULL)"
        + session.grammar.table_end
    )
    tables.make(session)
    if read_version(session, place, tables) is None:  # somebody else may have had the lock before us
        session.execute(
            f"INSERT INTO {name(VERSIONS_TABLE)} ({name('component')}, {name('version')}) "
            f"VALUES ({session.grammar.marks(2)})",
            [tables.component, tables.version],
        )
