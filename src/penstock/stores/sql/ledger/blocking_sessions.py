"""Finds the database session that blocks the publishing of a stream's results.

Rule: it finds out by waiting. A row lock without a waiter is in no list of locks, so one session of ours
queues briefly for the writer row while another one follows the queue to its head. The holder of the row may
itself be waiting, as when a stream's publish waits for a lock on its table. Why not report the first session
in the queue: that is usually the victim. The search changes nothing, and releases the row at once if it gets
it.

    find_blockers(place, "visits")[0].session

A stream that pauses between two tries waits for no lock, so the session that holds its rows is in no queue
then. `find_open_sessions` lists the sessions that may hold them, but cannot say which one does.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.core.diagnosis.lock_waits import BlockingSession, MetadataLock, find_roots, pair_metadata_locks
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import Place
from penstock.core.redaction import redact_statement
from penstock.stores.sql.connections import database_errors, database_timeouts
from penstock.stores.sql.connections.sql_sessions import Session, open_session
from penstock.stores.sql.ledger.ledger_tables import WRITERS

#: How long our session queues for the row, at most, and how often the other one looks.
_QUEUE_S = 3
_LOOK_PAUSE_S = 0.1
#: How much of a statement is shown.
_STATEMENT_CHARACTERS = 120

_MARIADB_EDGES = (
    "SELECT r.trx_mysql_thread_id, b.trx_mysql_thread_id FROM information_schema.innodb_lock_waits w "
    "JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id "
    "JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id"
)
_MYSQL_EDGES = (
    "SELECT r.processlist_id, b.processlist_id FROM performance_schema.data_lock_waits w "
    "JOIN performance_schema.threads r ON r.thread_id = w.requesting_thread_id "
    "JOIN performance_schema.threads b ON b.thread_id = w.blocking_thread_id"
)
# For MySQL 8, and for MariaDB 10.5 or newer if performance_schema is on (by default it is off).
_METADATA_LOCKS = (
    "SELECT t.processlist_id, l.object_type, l.object_schema, l.object_name, l.lock_type, l.lock_status "
    "FROM performance_schema.metadata_locks l JOIN performance_schema.threads t "
    "ON t.thread_id = l.owner_thread_id WHERE t.processlist_id IS NOT NULL"
)
#: The state of a session that waits for a metadata lock, or for one of a whole server (FLUSH TABLES, BACKUP).
_WAITS_FOR_METADATA = re.compile(r"Waiting for .*\block$")
# The server reports the start of a transaction in its own time zone, whatever the session's.
_MYSQL_SESSIONS = (
    "SELECT p.id, p.user, p.host, p.command, p.state, TIMESTAMPDIFF(SECOND, t.trx_started, "
    "CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), p.info FROM information_schema.processlist p "
    "LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id WHERE p.id IN ({})"
)
_POSTGRESQL_EDGES = "SELECT each, unnest(pg_blocking_pids(each)) FROM unnest(%s::int[]) AS each"
_POSTGRESQL_SESSIONS = (
    "SELECT pid, usename, application_name, client_addr::text, state, "
    "extract(epoch FROM clock_timestamp() - xact_start)::bigint, query FROM pg_stat_activity "
    "WHERE pid = ANY(%s)"
)
# Locks of a read-only transaction, and of the server's own work on tables, block no stream.
_POSTGRESQL_OPEN = (
    "SELECT a.pid, a.usename, a.application_name, a.client_addr::text, a.state, "
    "extract(epoch FROM clock_timestamp() - a.xact_start)::bigint, a.query, "
    "array_agg(DISTINCT c.relname::text) FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid "
    "JOIN pg_class c ON c.oid = l.relation WHERE l.granted AND l.locktype = 'relation' "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND c.relkind IN ('r', 'p') "
    "AND c.relnamespace <> 'pg_catalog'::regnamespace "
    "AND a.pid <> pg_backend_pid() GROUP BY 1, 2, 3, 4, 5, 6, 7"
)
_MYSQL_OPEN = (
    "SELECT p.id, p.user, p.host, p.command, p.state, TIMESTAMPDIFF(SECOND, t.trx_started, "
    "CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), p.info FROM information_schema.innodb_trx t "
    "JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
    "WHERE p.id <> CONNECTION_ID() AND (t.trx_rows_locked > 0 OR t.trx_rows_modified > 0)"
)


def find_open_sessions(place: Place) -> tuple[BlockingSession, ...] | None:
    """Return other sessions with an open transaction that holds locks: in PostgreSQL those of this database,
    in MySQL and MariaDB those of the whole server that hold row locks (locks on whole tables do not count).

    Return None if the database does not show them to this user. SQLite never does, though a reader that was
    left open blocks commits.
    """
    if place.dialect == "sqlite":
        return None
    try:
        with open_session(place) as session:
            if place.dialect == "postgresql":
                rows = session.execute(_POSTGRESQL_OPEN)
                return tuple(replace(_read_postgresql(*row[:7]), tables=tuple(row[7])) for row in rows)
            return tuple(_read_mysql(*row) for row in session.execute(_MYSQL_OPEN))
    except OffsetStoreError as error:
        if error.condition not in ("DATABASE_REFUSED", "DATABASE_FAILED"):
            raise
        return None


def find_blockers(place: Place, stream: str) -> tuple[BlockingSession, ...]:
    """Return the sessions that hold the stream's writer row, or that its holder waits for. A session that
    waits for a metadata lock whose holder cannot be found is returned as waiting. The result is empty if the
    row is free by now, or if the database does not show it: SQLite never does, and a user needs the right to
    see other users' sessions (MySQL and MariaDB: PROCESS)."""
    if place.dialect == "sqlite":
        return ()
    try:
        with open_session(place) as waiting, open_session(place) as looking:
            return _follow(place, stream, waiting, looking)
    except OffsetStoreError as error:
        if error.condition not in ("DATABASE_REFUSED", "DATABASE_FAILED"):
            raise
        return ()  # we may read the ledger, but not see other sessions


def _follow(place: Place, stream: str, waiting: Session, looking: Session) -> tuple[BlockingSession, ...]:
    is_postgresql = place.dialect == "postgresql"
    ours = int(waiting.execute(f"SELECT {'pg_backend_pid' if is_postgresql else 'CONNECTION_ID'}()")[0][0])
    if is_postgresql:
        waiting.execute("SELECT set_config('lock_timeout', %s, true)", [f"{_QUEUE_S}s"])
    else:
        waiting.execute(f"SET SESSION innodb_lock_wait_timeout = {_QUEUE_S}")
    list_edges = _choose_edges(looking)
    queueing = threading.Thread(target=_queue, args=(waiting, stream), daemon=True)
    queueing.start()
    try:
        deadline = time.monotonic() + _QUEUE_S
        while queueing.is_alive() and time.monotonic() < deadline:
            roots = find_roots(ours, list_edges(ours))
            if roots:
                return _describe(looking, roots)
            time.sleep(_LOOK_PAUSE_S)
        return ()
    finally:
        with contextlib.suppress(*database_errors.foreign_errors()):
            looking.execute(f"SELECT pg_cancel_backend({ours})" if is_postgresql else f"KILL QUERY {ours}")
        queueing.join(_QUEUE_S + database_timeouts.CONNECT_TIMEOUT_S)


def _queue(session: Session, stream: str) -> None:
    """Wait for the row and release it. The wait is expected to time out."""
    mark = session.grammar.mark
    with contextlib.suppress(*database_errors.foreign_errors()):
        try:
            session.execute(f"SELECT epoch FROM {WRITERS} WHERE stream = {mark} FOR UPDATE", [stream])
        finally:
            session.connection.rollback()


def _choose_edges(looking: Session) -> Callable[[int], list[tuple[int, int]]]:
    """Return a function that lists pairs of sessions (waiting, waited for) around one session."""
    if looking.dialect == "postgresql":
        return lambda ours: _walk(looking, ours)
    is_mariadb = "mariadb" in str(looking.execute("SELECT VERSION()")[0][0]).lower()
    question = _MARIADB_EDGES if is_mariadb else _MYSQL_EDGES

    def list_edges(_ours: int) -> list[tuple[int, int]]:
        rows = [(int(waiter), int(blocker)) for waiter, blocker in looking.execute(question)]
        return rows + pair_metadata_locks(_list_metadata_locks(looking))

    return list_edges


def _list_metadata_locks(looking: Session) -> list[MetadataLock]:
    """Return which session holds or wants a lock on which table; none where the server hides that."""
    try:
        rows = looking.execute(_METADATA_LOCKS)
    except database_errors.foreign_errors():
        return []
    return [
        MetadataLock(int(session), (str(kind), str(schema), str(name)), str(lock), status == "GRANTED")
        for session, kind, schema, name, lock, status in rows
    ]


def _walk(looking: Session, ours: int) -> list[tuple[int, int]]:
    """Return the waits in PostgreSQL, followed from session to session. Each query locks the server's table
    of locks, so it asks only about the sessions ahead."""
    edges: list[tuple[int, int]] = []
    asked: set[int] = set()
    ahead = {ours}
    while ahead:
        asked |= ahead
        found = [(int(a), int(b)) for a, b in looking.execute(_POSTGRESQL_EDGES, [sorted(ahead)])]
        edges += found
        ahead = {blocker for _, blocker in found} - asked
    return edges


def _describe(looking: Session, roots: Sequence[int]) -> tuple[BlockingSession, ...]:
    if looking.dialect == "postgresql":
        rows = looking.execute(_POSTGRESQL_SESSIONS, [list(roots)])
        known = {int(row[0]): _read_postgresql(*row) for row in rows}
        return tuple(known.get(each) or _name_postgresql(each) for each in roots)
    rows = looking.execute(_MYSQL_SESSIONS.format(looking.grammar.marks(len(roots))), list(roots))
    known = {int(row[0]): _read_mysql(*row) for row in rows}
    return tuple(known.get(each) or BlockingSession(each, ending=f"KILL {each}") for each in roots)


def _read_postgresql(
    pid: int, user: Any, program: Any, host: Any, doing: Any, open_s: Any, statement: Any
) -> BlockingSession:
    return BlockingSession(
        int(pid),
        str(user or ""),
        str(program or ""),
        str(host or "").partition("/")[0],
        str(doing or ""),
        None if open_s is None else int(open_s),
        _shorten(statement, "postgresql") if doing else "",  # otherwise it says only that we may not see it
        f"SELECT pg_terminate_backend({pid})",
    )


def _name_postgresql(pid: int) -> BlockingSession:
    if pid:
        return BlockingSession(pid, ending=f"SELECT pg_terminate_backend({pid})")
    # A prepared transaction has no session: PostgreSQL says 0.
    ending = "ROLLBACK PREPARED (see pg_prepared_xacts)"
    return BlockingSession(0, doing="a prepared transaction", ending=ending)


def _read_mysql(
    number: int, user: Any, host: Any, command: Any, state: Any, open_s: Any, statement: Any
) -> BlockingSession:
    return BlockingSession(
        int(number),
        str(user or ""),
        "",
        str(host or ""),
        str(state or command or ""),
        None if open_s is None else max(0, int(open_s)),
        _shorten(statement, "mysql"),
        f"KILL {number}",
        is_waiting=_WAITS_FOR_METADATA.fullmatch(str(state or "")) is not None,
    )


def _shorten(statement: Any, dialect: str) -> str:
    text = " ".join(redact_statement(str(statement or ""), dialect).split())
    return text if len(text) <= _STATEMENT_CHARACTERS else text[:_STATEMENT_CHARACTERS] + "..."
