"""Finds which names mean the same table: `sums` and `public.sums`, or in SQLite `Sums`, may be one.

Rule: the catalog decides, as it does when the table is written. Two tables with the same name in two schemas
stay two. The catalog is asked only about names that could mean the same table.

    spell_alike(session, ["sums", "main.sums"])  # {"sums": "sums", "main.sums": "sums"}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.stores.sql.connections.sql_sessions import Session


def spell_alike(session: Session, names: Iterable[str]) -> dict[str, str]:
    """Return for each name the first of all that mean the same table."""
    listed = list(dict.fromkeys(names))
    alike = Counter(map(_shorten, listed))
    first: dict[tuple[str, ...], str] = {}
    return {
        name: first.setdefault(_identify(session, name) if alike[_shorten(name)] > 1 else (name,), name)
        for name in listed
    }


def _shorten(name: str) -> str:
    return name.rpartition(".")[2].casefold()


def _identify(session: Session, name: str) -> tuple[str, ...]:
    """Return the catalog's schema and name of the table, or the given name if there is no such table."""
    schema, _, table = name.rpartition(".")
    if session.dialect == "sqlite":
        question = "SELECT 'main', name FROM main.sqlite_master WHERE name = ? COLLATE NOCASE"
        found = session.execute(question, [table]) if schema in ("", "main") else []
    elif session.dialect == "postgresql":
        found = session.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND c.relname = %s AND "
            + ("n.nspname = %s" if schema else "pg_table_is_visible(c.oid)"),
            [table, *([schema] if schema else [])],
        )
    else:
        found = session.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_name = %s AND "
            f"table_schema = {'%s' if schema else 'DATABASE()'}",
            [table, *([schema] if schema else [])],
        )
    return (str(found[0][0]), str(found[0][1])) if found else (name,)
