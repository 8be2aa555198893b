"""Database users with few rights, granted as the guide on delivery says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.stores.sql.ledger.ledger_tables import BATCHES, DIGESTS, POSITIONS, RANGES, TABLES, WRITERS
from penstock.stores.sql.sink.sql_sink import Mode
from tests.sql.databases import OwnDatabase

LEDGER_TABLES = (WRITERS, POSITIONS, BATCHES, RANGES, TABLES, DIGESTS)
#: The rights that a table of results needs, by its mode.
RIGHTS: dict[Mode, str] = {
    "append": "SELECT, INSERT",
    "upsert": "SELECT, INSERT, UPDATE",
    "merge": "SELECT, INSERT, UPDATE",
    "state": "SELECT, INSERT, UPDATE, DELETE",
}


@dataclass(frozen=True)
class Role:
    """A user, and the address of the database for it."""

    owner: OwnDatabase
    who: str
    url: str
    is_postgres: bool

    def grant_rows(self, **modes: Mode) -> None:
        """Grant what every sink needs, and what its tables need, which are given by name with their modes."""
        self._run(f"GRANT SELECT ON penstock_meta TO {self.who}")
        for table in LEDGER_TABLES:
            self._run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {self.who}")
        for table, mode in modes.items():
            self._run(f"GRANT {RIGHTS[mode]} ON {table} TO {self.who}")
        if not self.is_postgres and set(modes.values()) != {"append"}:
            self._run(f"GRANT CREATE TEMPORARY TABLES ON {self._database}.* TO {self.who}")

    def grant_staging(self) -> None:
        """Grant what tasks need to load rows in parallel."""
        if self.is_postgres:
            self._run(f"GRANT CREATE ON SCHEMA public TO {self.who}")
        else:
            self._run(f"GRANT CREATE, DROP, SELECT, INSERT ON {self._database}.* TO {self.who}")

    @property
    def _database(self) -> str:
        return self.owner.url.rpartition("/")[2]

    def _run(self, statement: str) -> None:
        self.owner.run(statement)


@contextlib.contextmanager
def make_role(database: OwnDatabase) -> Iterator[Role]:
    """Create a user who may connect and nothing else; drop it at the end."""
    head, _, tail = database.url.rpartition("@")
    scheme, name = head.partition("://")[0], f"clerk_{tail.rpartition('/')[2]}"
    is_postgres = scheme == "postgresql"
    who = name if is_postgres else f"{name}@'127.0.0.1'"
    database.run(f"CREATE USER {who} {'PASSWORD' if is_postgres else 'IDENTIFIED BY'} 'x'")
    try:
        if not is_postgres:
            database.run(f"GRANT USAGE ON *.* TO {who}")
        yield Role(database, who, f"{scheme}://{name}:x@{tail}", is_postgres)
    finally:
        if is_postgres:
            database.run(f"DROP OWNED BY {who}")
        database.run(f"DROP USER {who}")
