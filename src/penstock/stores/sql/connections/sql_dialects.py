"""The spellings in which SQL dialects differ: names, marks, inserts and upserts.

Rule: every INSERT that may meet an existing row is spelled here. Why not where it is used: four places had an
upsert for three databases each, and a fourth database would have to be added to all of them.

>>> GRAMMARS["mysql"].upsert(["id"], ["hits = VALUES(hits)"])
'ON DUPLICATE KEY UPDATE hits = VALUES(hits)'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.options.storage_addresses import Dialect

MYSQL_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"  # the default treats `a` and `A` as one key


@dataclass(frozen=True, slots=True)
class Grammar:
    """The differences between dialects. `missing` is the beginning and end of an INSERT of a row that may
    exist."""

    mark: str
    quote: str
    key_text: str
    table_end: str
    greatest: str
    least: str
    missing: tuple[str, str]
    conflict: str = "ON CONFLICT ({}) DO UPDATE SET {}"
    ignored: str = "ON CONFLICT ({}) DO NOTHING"
    inserted: str = "excluded.{}"

    def name(self, name: str) -> str:
        """Return a quoted name. Ours are plain words, so there is nothing to escape."""
        return f"{self.quote}{name}{self.quote}"

    def marks(self, count: int) -> str:
        return ", ".join([self.mark] * count)

    def insert(self, table: str, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row."""
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({self.marks(len(columns))})"

    def insert_missing(self, table: str, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row unless its key exists."""
        begin, end = self.missing
        return self.insert(table, columns).replace("INSERT", begin, 1) + end

    def upsert(self, key: Sequence[str], settings: Sequence[str]) -> str:
        """Return the end of an INSERT that changes the row with the same key instead, as `settings` say."""
        return self.conflict.format(", ".join(key), ", ".join(settings))

    def keep(self, table: str, key: Sequence[str]) -> str:
        """Return the end of an INSERT from a query that leaves the row with the same key as it is."""
        return self.ignored.format(", ".join(key), f"{table}.{key[0]}")

    def new(self, column: str) -> str:
        """Return the expression, in such settings, for the value that would have been inserted."""
        return self.inserted.format(column)


GRAMMARS: Mapping[Dialect, Grammar] = {
    "sqlite": Grammar("?", '"', "TEXT", "", "MAX", "MIN", ("INSERT OR IGNORE", "")),
    "postgresql": Grammar("%s", '"', "TEXT", "", "GREATEST", "LEAST", ("INSERT", " ON CONFLICT DO NOTHING")),
    "mysql": Grammar(
        *("%s", "`", "VARCHAR(255)", f" ENGINE=InnoDB {MYSQL_TEXT}", "GREATEST", "LEAST"),
        missing=("INSERT IGNORE", ""),
        conflict="ON DUPLICATE KEY UPDATE {1}",
        ignored="ON DUPLICATE KEY UPDATE {1} = {1}",
        inserted="VALUES({})",
    ),
}
