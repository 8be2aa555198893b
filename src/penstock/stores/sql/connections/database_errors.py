"""What the errors of SQLite, PostgreSQL, MySQL and MariaDB mean: their codes become conditions with advice.

Rule: foreign exceptions end here. Each becomes one error with the place (never its password) and a condition
that says whether to look at the network, the login, the file or the statement.

    with translate_errors(place), closing(connect(place, writes=False)) as connection: ...
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import OffsetStoreError, PenstockError, VersionError
from penstock.core.options.storage_addresses import FilePlace, Place, ServerPlace
from penstock.core.redaction import HIDDEN, redact_text
from penstock.stores.sql.connections import database_timeouts

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
        raise explain_missing_driver("This MySQL", "the package cryptography") from error
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


def explain_read_only(place: Place, said: str) -> OffsetStoreError:
    """Return the error for a server that takes no writes, with what it said."""
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
            f"Another process has held the file {{place}} for more than {database_timeouts.LOCK_TIMEOUT_S} s",
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
            "Another transaction at {place} has held what we need for "
            f"{database_timeouts.LOCK_TIMEOUT_S} s",
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


def explain_missing_driver(server: str, driver: str) -> VersionError:
    """Return the error for a server whose driver is not installed."""
    return VersionError(
        "DRIVER_MISSING",
        f"{server} cannot be reached without {driver}, which is not installed here.",
        hint="Install it where the query runs, driver and workers: pip install 'penstock[sql]'.",
        facts={"driver": driver},
    )
