"""Connections to SQLite, PostgreSQL, MySQL and MariaDB, and what their errors mean.

Rule: foreign exceptions end here. Each becomes one error with the place (never its password) and a condition
that says whether to look at the network, the login, the file or the statement. Every wait has a limit: for a
connection, for a lock, and for a server that took a statement and fell silent. The last limit must be ours:
PostgreSQL's own timeouts run in the server, and a server that hangs does not enforce them.

    with translate_errors(place), closing(connect(place, writes=False)) as connection: ...
"""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.core.errors import OffsetStoreError, PenstockError, VersionError
from penstock.core.options.storage_addresses import FilePlace, Place, ServerPlace
from penstock.core.outages import DATABASE_AWAY
from penstock.core.redaction import HIDDEN, redact_text

#: How long to wait for a connection, for a lock, and for a server's answer.
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 30
ANSWER_TIMEOUT_S = 120
#: How long a statement that moves the rows of a whole batch may take.
BULK_TIMEOUT_S = 3600

# PostgreSQL's codes and MySQL's numbers.
_CONFLICT = ("40001", "40P01", 1213, 1020)
# MySQL 8 answers NOWAIT with a number of its own, 3572; the others answer as after a wait.
_LOCK_WAIT = ("55P03", "57014", 1205, 3572)
#: The server is a standby, or is set to take no writes; another host may take them.
_READ_ONLY = ("25006", 1290, 1792, 1836)
_REFUSED = ("28P01", "28000", "3D000", "42501", 1044, 1045, 1049, 1130, 1142, 1227, 1698)
_REFUSED_TEXT = re.compile(
    r'authentication failed|no password supplied|(database|role) ".*" does not exist|no pg_hba\.conf entry'
)
#: The server ended the connection of a client that was silent for long, such as a program that was suspended.
_WAS_IDLE = ("25P03", "57P05", 1927, 4031)
_CONNECTION = (
    *("57P01", "57P02", "57P03", "53300", 1047, 2002, 2003, 2006, 2013, 2026, 2055, 1053, 1040, 0),
    *_WAS_IDLE,
)
_POOLER = "08P01"  # PgBouncer has one code for all its errors


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
    connection = sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)
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


def explain_replaced_file(place: Place, said: str) -> OffsetStoreError:
    """Return the error for a file that is not the one the connection has open."""
    return OffsetStoreError(
        "DATABASE_REPLACED",
        f"The file {place} {said} under the running program.",
        hint="The content of the file that has its name now is compared before anything is written there. "
        "Stop the stream before you restore an older copy or move the file away.",
        facts={"place": str(place)},
        retriable=True,
    )


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
        f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_S}s', true), "
        f"set_config('statement_timeout', '{BULK_TIMEOUT_S}s', true), "
        "set_config('TimeZone', 'UTC', true), CASE WHEN current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', true) END, current_setting('transaction_read_only')"
    )


def refuse_read_only(place: Place, answers: Sequence[object] | None, *, writes: bool) -> None:
    """Raise an error if the answer to `make_begin_statement` says that this server takes no writes."""
    assert answers is not None
    if writes and answers[-1] == "on":
        raise _read_only(place, "transaction_read_only is on")


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
        raise _driver_missing("PostgreSQL", "psycopg") from error
    connection = psycopg.connect(
        host=",".join(host for host, _ in place.hosts),
        port=",".join(str(port) for _, port in place.hosts),
        user=place.user,
        password=place.password.reveal() if place.password else None,
        dbname=place.database,
        connect_timeout=CONNECT_TIMEOUT_S,
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
        raise _driver_missing("MySQL and MariaDB", "PyMySQL") from error
    settings: dict[str, Any] = dict(place.settings)
    connection = MySqlConnection(
        host=host[0],
        port=host[1],
        user=place.user,
        password=place.password.reveal() if place.password else "",
        database=place.database,
        charset="utf8mb4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=ANSWER_TIMEOUT_S,
        write_timeout=ANSWER_TIMEOUT_S,
        sql_mode="STRICT_ALL_TABLES",  # otherwise text that is too long for its column is cut silently
        init_command=f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, "
        f"lock_wait_timeout = {LOCK_TIMEOUT_S}, time_zone = '+00:00'",
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
            raise _read_only(place, "read_only is on")


def _driver_missing(server: str, driver: str) -> VersionError:
    return VersionError(
        "DRIVER_MISSING",
        f"{server} cannot be reached without {driver}, which is not installed here.",
        hint="Install it where the query runs, driver and workers: pip install 'penstock[sql]'.",
        facts={"driver": driver},
    )


@contextlib.contextmanager
def limit_silence(place: Place, connection: Any, limit_s: float | None = None) -> Iterator[None]:
    """Cut the connection when the work inside the block takes too long, by default `ANSWER_TIMEOUT_S`.

    psycopg waits for an answer without a limit, PyMySQL has a limit of its own, and SQLite has no server.
    """
    limit_s = ANSWER_TIMEOUT_S if limit_s is None else limit_s
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


def foreign_errors() -> tuple[type[BaseException], ...]:
    """Return the error classes of the drivers in use; one that was never imported has raised nothing."""
    kinds: list[type[BaseException]] = [sqlite3.Error, OSError]
    if psycopg := sys.modules.get("psycopg"):
        kinds.append(psycopg.Error)
    if pymysql := sys.modules.get("pymysql"):
        kinds.append(pymysql.err.MySQLError)
    if adbc := sys.modules.get("adbc_driver_manager"):
        kinds.append(adbc.Error)
    return tuple(kinds)


@contextlib.contextmanager
def translate_errors(place: Place) -> Iterator[None]:
    """Turn any driver's error into one of ours."""
    try:
        yield
    except PenstockError:
        raise
    except RuntimeError as error:
        # PyMySQL raises this when it meets MySQL's own login method and cannot encrypt the password.
        if "cryptography" not in str(error):
            raise
        raise _driver_missing("This MySQL", "the package cryptography") from error
    except Exception as error:
        if not isinstance(error, foreign_errors()):
            raise
        raise _explain(place, error) from error


def _explain(place: Place, error: Exception) -> OffsetStoreError:
    said = " ".join(redact_text(_read_text(place, error)).split()).rstrip(".")
    if isinstance(place, FilePlace):
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED:
            return explain_replaced_file(place, "was replaced, moved or removed")
        condition, what, hint, retriable = _explain_sqlite(error)
        if Path(place.path).is_dir():
            what, hint = "{place} is a folder, not a database file", "Name a file, such as results.db."
        return _make_error(place, said, condition, what, hint, retriable)
    if place.password and place.password.reveal():
        said = said.replace(place.password.reveal(), HIDDEN)
    return _make_error(place, said, *_explain_server(_read_code(place, error)))


def _read_only(place: Place, said: str) -> OffsetStoreError:
    return _make_error(place, said, *_explain_server(_READ_ONLY[0]))


def _make_error(
    place: Place, said: str, condition: str, what: str, hint: str, retriable: bool
) -> OffsetStoreError:
    return OffsetStoreError(
        condition,
        f"{what.format(place=place)}: {said}.",
        hint=hint,
        facts={"place": str(place)},
        retriable=retriable,
    )


def _read_code(place: ServerPlace, error: Exception) -> object:
    """Return PostgreSQL's five-character code or MySQL's number; None if the error has neither."""
    # An OSError concerns a file that the address names, or the connection.
    if isinstance(error, OSError):
        return None
    if place.dialect == "mysql":
        return error.args[0] if error.args else None
    code = getattr(error, "sqlstate", None) or None
    if code is None and _REFUSED_TEXT.search(str(error)):
        return "28P01"  # libpq has no code for errors before a session begins
    return code


def _read_text(place: Place, error: Exception) -> str:
    """Return what the server said. MySQL's driver puts number and text into a pair. The text says whether a
    password was sent; that part looks like a password and would be hidden with all that follows."""
    if place.dialect != "mysql" or len(error.args) != 2:
        return str(error)
    return (
        str(error.args[1])
        .replace("(using password: YES)", "with a password")
        .replace("(using password: NO)", "without a password")
    )


def _explain_sqlite(error: Exception) -> tuple[str, str, str, bool]:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            "DATABASE_BUSY",
            f"Another process has held the file {{place}} for more than {LOCK_TIMEOUT_S} s",
            "Look at what has it open (`fuser -v FILE` names it), then try again.",
            True,
        )
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return (
            "DATABASE_DAMAGED",
            "The file {place} is not an SQLite database, or is damaged",
            "Name another file, or restore this one from a copy.",
            False,
        )
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or primary is None:
        return (
            "DATABASE_UNREACHABLE",
            "The file {place} cannot be opened or written",
            "Its folder must exist, and both must be yours to write. A file is on one computer: tasks on "
            "several need a server.",
            False,
        )
    return ("DATABASE_FAILED", "The database in {place} failed", "Check the disk it is on.", False)


def _explain_server(code: object) -> tuple[str, str, str, bool]:
    if code in _CONFLICT:
        return ("DATABASE_CONFLICT", "{place} ended a transaction in favour of another", "Try again.", True)
    if code in _LOCK_WAIT:
        return (
            "DATABASE_BUSY",
            f"Another transaction at {{place}} has held what we need for {LOCK_TIMEOUT_S} s",
            "End the transaction that was left open there (`penstock why STREAM --sink DATABASE` names its "
            "session), then try again.",
            True,
        )
    if code in _READ_ONLY:
        return (
            "DATABASE_READ_ONLY",
            "{place} takes no writes",
            "It is a standby, or is set to take none. Name all hosts of the database in the address "
            "(host:port,host:port), so that the one that takes writes is found.",
            True,
        )
    if code in _REFUSED:
        return (
            "DATABASE_REFUSED",
            "{place} refuses access",
            "Check user, password and database, and that the user may create and write tables there.",
            False,
        )
    if code is None or code in _CONNECTION or str(code).startswith("08"):
        return (
            "DATABASE_UNREACHABLE",
            "{place} cannot be reached, or the connection to it broke",
            "Check host, port, network and the files of its ssl settings, and that the server is running."
            + (" A pooler must use session or transaction pooling." if code == _POOLER else ""),
            True,
        )
    return ("DATABASE_FAILED", "{place} failed", "The server's message says why.", False)
