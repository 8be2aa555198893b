"""Connections to SQLite, PostgreSQL, MySQL and MariaDB: how they are opened, and what limits their waits.

Rule: every wait has a limit: for a connection, for a lock, and for a server that took a statement and fell
silent. The last limit must be ours: PostgreSQL's own timeouts run in the server, and a server that hangs does
not enforce them.

    with translate_errors(place), closing(connect(place, writes=False)) as connection: ...
"""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import FilePlace, Place, ServerPlace
from penstock.core.outages import DATABASE_AWAY
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.connections.database_errors import (
    explain_missing_driver,
    explain_read_only,
    translate_errors,
)


def connect(place: Place, *, writes: bool) -> Any:
    """Return a connection in a transaction. Only one that writes creates a missing SQLite file.

    Of several hosts, the one that takes writes is used, for readers too: a standby may be behind. For a
    writer, a server that takes no writes is an error before anything is done.
    """
    if isinstance(place, FilePlace):
        return _connect_sqlite(place, writes)
    if place.dialect == "postgresql":
        return _connect_postgresql(place, writes)
    return _connect_mysql(place, writes or len(place.hosts) > 1)


def _connect_sqlite(place: FilePlace, writes: bool) -> sqlite3.Connection:
    # A reader opens the file to write if it may: it must undo what a killed writer has left half done.
    path = Path(place.path).absolute()
    if not writes and not path.exists():
        raise OffsetStoreError(
            "DATABASE_NOT_FOUND",
            f"There is no file {place.path}.",
            hint="Check the path. Whatever writes to the file creates it: a sink, an offset store, a loss "
            "ledger, `penstock accesslog run`.",
            facts={"place": str(place)},
        )
    uri = f"file:{quote(str(path))}?mode={'rwc' if writes else 'rw'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=database_timeouts.LOCK_TIMEOUT_S, isolation_level=None
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        begin(place, connection, writes=writes)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def identify_file(place: Place) -> tuple[int, int] | None:
    """Return the identity of the file at the path now; None if there is no file, or the place is a server."""
    if not isinstance(place, FilePlace):
        return None
    try:
        found = Path(place.path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def begin(place: Place, connection: Any, *, writes: bool = True) -> None:
    """Begin a transaction on a connection that is in none. This asks the server, so a dead one is noticed,
    and so is one that no longer takes writes."""
    if place.dialect == "sqlite":
        # A writer locks now: two readers that both want to write later would block each other.
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif place.dialect == "mysql":
        connection.begin()
        if writes:
            _demand_writes(place, connection)
    else:
        refuse_read_only(place, connection.execute(make_begin_statement()).fetchone(), writes=writes)


def make_begin_statement() -> str:
    """Return the statement that begins a PostgreSQL transaction: it makes our settings and asks whether the
    transaction may write.

    The settings last for this transaction only: a pooler may give the connection to another client
    afterwards, and refuses settings that come with the login. `synchronous_commit` must not be off, because a
    crash could undo a commit that the server answers before it is on its disk.
    """
    return (
        f"SELECT set_config('lock_timeout', '{database_timeouts.LOCK_TIMEOUT_S}s', true), "
        f"set_config('statement_timeout', '{database_timeouts.BULK_TIMEOUT_S}s', true), "
        "set_config('TimeZone', 'UTC', true), CASE WHEN current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', true) END, current_setting('transaction_read_only')"
    )


def refuse_read_only(place: Place, answers: Sequence[object] | None, *, writes: bool) -> None:
    """Raise an error if the answer to `make_begin_statement` says that this server takes no writes."""
    assert answers is not None
    if writes and answers[-1] == "on":
        raise explain_read_only(place, "transaction_read_only is on")


def limit_idleness(place: Place, connection: Any, limit_s: float) -> None:
    """Let the server end the open transaction after this long without a statement: a program that was
    suspended would otherwise hold its locks forever. MySQL and SQLite have no such limit; only MariaDB
    executes the comment."""
    if place.dialect == "postgresql":
        connection.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [f"{int(limit_s * 1000)}ms"]
        )
    elif place.dialect == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET @penstock_idle = 1 /*M! , SESSION idle_transaction_timeout = {int(limit_s)} */"
            )


def _connect_postgresql(place: ServerPlace, writes: bool) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise explain_missing_driver("PostgreSQL", "psycopg") from error
    connection = psycopg.connect(
        host=",".join(host for host, _ in place.hosts),
        port=",".join(str(port) for _, port in place.hosts),
        user=place.user,
        password=place.password.reveal() if place.password else None,
        dbname=place.database,
        connect_timeout=database_timeouts.CONNECT_TIMEOUT_S,
        application_name="penstock",
        prepare_threshold=None,  # a pooler may not keep prepared statements
        **list_settings(place),  # type: ignore[arg-type]  # all of them are text
    )
    try:
        # After waiting for another commit, we must see what it committed, whatever the server's default.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        begin(place, connection, writes=writes)
    except BaseException:
        connection.close()
        raise
    return connection


def list_settings(place: ServerPlace) -> dict[str, str]:
    """Return the address's settings for PostgreSQL. Of several hosts, ask for one that takes writes."""
    wanted = {"target_session_attrs": "read-write"} if len(place.hosts) > 1 else {}
    return {**wanted, **dict(place.settings)}


def _connect_mysql(place: ServerPlace, demand_writes: bool) -> Any:
    """Return a connection to the first host that is there; with `demand_writes`, the first that takes writes.

    Neither PyMySQL nor the protocol supports several hosts. A host that refuses the login ends the search.
    """
    for number, host in enumerate(place.hosts, 1):
        try:
            with translate_errors(place):
                return _connect_mysql_host(place, host, demand_writes)
        except OffsetStoreError as error:
            if number == len(place.hosts) or error.condition not in DATABASE_AWAY:
                raise
    raise AssertionError("a place has at least one host")


def _connect_mysql_host(place: ServerPlace, host: tuple[str, int], demand_writes: bool) -> Any:
    try:
        import pymysql  # noqa: F401  # the modules below may be left from before it was removed

        from penstock.stores.sql.connections.mysql_connection import MySqlConnection
    except ImportError as error:
        raise explain_missing_driver("MySQL and MariaDB", "PyMySQL") from error
    settings: dict[str, Any] = dict(place.settings)
    connection = MySqlConnection(
        host=host[0],
        port=host[1],
        user=place.user,
        password=place.password.reveal() if place.password else "",
        database=place.database,
        charset="utf8mb4",
        connect_timeout=database_timeouts.CONNECT_TIMEOUT_S,
        read_timeout=database_timeouts.ANSWER_TIMEOUT_S,
        write_timeout=database_timeouts.ANSWER_TIMEOUT_S,
        sql_mode="STRICT_ALL_TABLES",  # otherwise text that is too long for its column is cut silently
        init_command=f"SET SESSION innodb_lock_wait_timeout = {database_timeouts.LOCK_TIMEOUT_S}, "
        f"lock_wait_timeout = {database_timeouts.LOCK_TIMEOUT_S}, time_zone = '+00:00'",
        local_infile=True,
        ssl_verify_identity=bool(settings.get("ssl_ca")),
        **settings,
    )
    try:
        with connection.cursor() as cursor:
            # After waiting for another commit, we must see what it committed.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if demand_writes:
            _demand_writes(place, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _demand_writes(place: Place, connection: Any) -> None:
    """Raise an error if this MySQL or MariaDB takes no writes, even if it would take an administrator's: what
    is written to a replica reaches no other copy. Some services report it in the second variable only."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@read_only, @@innodb_read_only")
        if any(str(each) not in ("0", "OFF") for each in cursor.fetchone()):
            raise explain_read_only(place, "read_only is on")


@contextlib.contextmanager
def limit_silence(place: Place, connection: Any, limit_s: float | None = None) -> Iterator[None]:
    """Cut the connection when the work inside the block takes too long, by default `ANSWER_TIMEOUT_S`.

    psycopg waits for an answer without a limit, PyMySQL has a limit of its own, and SQLite has no server.
    """
    limit_s = database_timeouts.ANSWER_TIMEOUT_S if limit_s is None else limit_s
    if place.dialect == "mysql":
        with connection.limit_answers(limit_s):
            yield
        return
    if place.dialect == "sqlite":
        yield
        return
    wire = socket.socket(fileno=socket.dup(connection.fileno()))

    def cut() -> None:
        with contextlib.suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The timer must not cut the next connection that gets this descriptor's number.
        timer.join()
        wire.close()
