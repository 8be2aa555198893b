"""SQL databases behind one small interface: a transaction, what work may do in it, retries after conflicts.

Rule: one call, one connection, one transaction. It commits as a whole or not at all; any error rolls back and
closes. These tables are written rarely, so a connection kept open would only be one more way to fail: it
breaks when the database restarts, and a forked worker must not share it.

    database = Database(parse_place("losses.db"))
    rows = database.run(lambda session: session.execute("SELECT 1"))
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.connections.database_errors import foreign_errors, translate_errors
from penstock.stores.sql.connections.database_outages import RECONNECT_PAUSE_S, find_wait_s, is_away
from penstock.stores.sql.connections.sql_connections import (
    connect,
    limit_silence,
)
from penstock.stores.sql.connections.sql_dialects import GRAMMARS

#: How often a transaction is tried when the database ends it because of a conflict with another one.
CONFLICT_ATTEMPTS = 8
CONFLICT_PAUSE_S = 0.05
_SCHEMA_LOCK = 0x70656E73746F636B  # any number that only we use; this is "penstock" in ASCII

_Result = TypeVar("_Result")


class Session:
    """One transaction: what work may do with the database."""

    def __init__(self, connection: Any, place: Place) -> None:
        self._connection = connection
        self.place = place
        self.dialect = place.dialect
        self.grammar = GRAMMARS[place.dialect]

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; an empty list if it gives none."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run one statement and return how many rows it reports as changed."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, tuple(values))
            return int(cursor.rowcount)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row, in few round trips."""
        if not rows:
            return
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.executemany(statement, [tuple(row) for row in rows])

    @property
    def connection(self) -> Any:
        """Return the driver's own connection, for its bulk loading."""
        return self._connection

    def has_table(self, name: str) -> bool:
        if self.dialect == "sqlite":
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        else:
            here = "= ANY (current_schemas(false))" if self.dialect == "postgresql" else "= DATABASE()"
            query = f"SELECT 1 FROM information_schema.tables WHERE table_name = %s AND table_schema {here}"
        return bool(self.execute(query, [name]))

    def lock_schema(self) -> None:
        """Lock out other sessions that create tables: of two at once, `IF NOT EXISTS` fails for one."""
        if self.dialect == "postgresql":
            self.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
        elif self.dialect == "mysql":
            # This lock is released when the connection closes, right after this transaction. Creating tables
            # commits, so a transaction's lock would not last.
            got = self.execute(
                "SELECT GET_LOCK(CONCAT('penstock.', MD5(DATABASE())), %s)",
                [database_timeouts.LOCK_TIMEOUT_S],
            )
            if got[0][0] != 1:
                raise OffsetStoreError(
                    "DATABASE_BUSY",
                    f"Another process has been creating tables at {self.place} for more than "
                    f"{database_timeouts.LOCK_TIMEOUT_S} s.",
                    hint="Find out what it waits for (SHOW PROCESSLIST), then try again.",
                    facts={"place": str(self.place)},
                    retriable=True,
                )


@contextlib.contextmanager
def open_session(place: Place, *, writes: bool = False, limit_s: float | None = None) -> Iterator[Session]:
    """Yield a session on a new connection. The block commits if it wants to; roll back if it fails."""
    with (
        translate_errors(place),
        contextlib.closing(connect(place, writes=writes)) as connection,
        limit_silence(place, connection, limit_s),
    ):
        try:
            yield Session(connection, place)
        except BaseException:
            # After a lock timeout, MySQL has undone one statement and keeps the earlier ones.
            with contextlib.suppress(*foreign_errors()):
                connection.rollback()
            raise


@dataclass(frozen=True, slots=True)
class Database:
    """A database at a place. It holds no connection, so it can be pickled to any worker.

    `wait_s` says how long to wait for it when it is away. Give one for a database that was reached before.
    """

    place: Place
    wait_s: float = 0.0

    def run(
        self, work: Callable[[Session], _Result], *, writes: bool = False, limit_s: float | None = None
    ) -> _Result:
        """Do `work` in one transaction and return its result. Do it again from the beginning after a conflict
        with another transaction, or when the database went away before it was asked to commit.

        Only work that `writes` creates a missing SQLite file. `limit_s` says how long the work may take, if
        that is longer than one answer may take.
        """
        deadline = time.monotonic() + min(self.wait_s, find_wait_s())
        attempt = 1
        while True:
            commits: list[Session] = []
            try:
                return self._run_once(work, writes, commits, limit_s)
            except OffsetStoreError as error:
                if is_away(error) and not commits and time.monotonic() < deadline:
                    time.sleep(RECONNECT_PAUSE_S)
                    continue
                if error.condition != "DATABASE_CONFLICT" or attempt == CONFLICT_ATTEMPTS:
                    raise
            time.sleep(CONFLICT_PAUSE_S * attempt)
            attempt += 1

    def _run_once(
        self,
        work: Callable[[Session], _Result],
        writes: bool,
        commits: list[Session],
        limit_s: float | None,
    ) -> _Result:
        """Do `work` once and return its result. `commits` gets the session that was asked to commit."""
        with open_session(self.place, writes=writes, limit_s=limit_s) as session:
            result = work(session)
            commits.append(session)
            session.connection.commit()
            return result
