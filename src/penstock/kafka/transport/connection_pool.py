"""Connections that outlive a task: a process-wide pool, keyed by broker and login.

Rules: a connection goes to one borrower at a time; one with an unanswered request, or one that
met an error, is closed instead of kept, because its next bytes belong to another request; borrowing never
waits for the pool: the capacity is a soft limit. Idle connections are closed when they are older than
connections.max.idle.ms, at the next borrow or return. Why not by a background thread: a Python worker that
leaves a thread behind cannot be reused or forked safely, and an idle process with an idle socket does no
harm (the broker has the same limit and closes it).

    with POOL.lend(settings, host, port, deadline) as connection:
        connection.call(request, deadline)
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings, SaslSettings, TlsSettings
from penstock.kafka.transport.connection import Connection
from penstock.kafka.transport.deadlines import Deadline

_IDLE_PER_KEY = 3


@dataclass(frozen=True, slots=True)
class _Key:
    """What cannot change for an open socket. Renewed credentials make another key; another group does not."""

    host: str
    port: int
    client_id: str
    security_protocol: str
    tls: TlsSettings | None
    sasl: SaslSettings | None
    receive_buffer_bytes: int
    send_buffer_bytes: int


def _key_of(settings: ClientSettings, host: str, port: int) -> _Key:
    return _Key(
        host,
        port,
        settings.client_id,
        settings.security_protocol,
        settings.tls,
        settings.sasl,
        settings.receive_buffer_bytes,
        settings.send_buffer_bytes,
    )


class ConnectionPool:
    """Lends connections. `capacity` counts lent and idle ones together and is a soft limit."""

    def __init__(self, capacity: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[tuple[_Key, Connection]] = []  # oldest return first
        self._lent: weakref.WeakSet[Connection] = weakref.WeakSet()  # a leaked one is not counted forever

    def borrow(
        self, settings: ClientSettings, host: str, port: int, deadline: Deadline, *, fresh: bool = False
    ) -> Connection:
        """Return an idle connection that is still open, or a new one.

        `fresh` first closes the idle ones to this broker: a repeated task must not reuse what failed before.
        """
        key = _key_of(settings, host, port)
        with self._lock:
            self._close_aged()
            if fresh:
                self._close_idle([pair for pair in self._idle if pair[0] == key])
            connection = self._take_idle(key)
            if connection is None:
                # Idle connections to other brokers make room; if none are left, the pool simply grows.
                excess = len(self._lent) + len(self._idle) + 1 - self.capacity
                self._close_idle(self._idle[: max(0, excess)])
            else:
                connection.settings = settings  # the time limits of this borrower, not of the first one
                self._lent.add(connection)
                return connection
        connection = Connection(settings, host, port, deadline)
        with self._lock:
            self._lent.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep the connection for the next borrower, or close it if it must not be kept."""
        with self._lock:
            self._lent.discard(connection)
            self._close_aged()
            key = _key_of(connection.settings, connection.host, connection.port)
            idle_here = sum(1 for other, _ in self._idle if other == key)
            crowded = len(self._lent) + len(self._idle) >= self.capacity
            if connection.in_flight or connection.closed or crowded or idle_here >= _IDLE_PER_KEY:
                connection.close()
            else:
                connection.last_used = self._clock()
                self._idle.append((key, connection))

    def discard(self, connection: Connection) -> None:
        """Close a connection that met an error."""
        with self._lock:
            self._lent.discard(connection)
        connection.close()

    @contextmanager
    def lend(
        self, settings: ClientSettings, host: str, port: int, deadline: Deadline
    ) -> Iterator[Connection]:
        """Lend a connection for a block; give it back at the end, or discard it when the block raises."""
        connection = self.borrow(settings, host, port, deadline)
        try:
            yield connection
        except BaseException:
            self.discard(connection)
            raise
        self.give_back(connection)

    def close(self) -> None:
        """Close everything idle. Lent connections are closed when they are returned or released."""
        with self._lock:
            self._close_idle(list(self._idle))

    def forget_after_fork(self) -> None:
        """Let go of the parent's sockets, in a forked child.

        This closes only the child's copies of the descriptors. No TLS farewell is sent (Python's
        `close` never does), so the parent's sessions go on; using one from both sides would mix their bytes.
        """
        self._lock = threading.Lock()  # the old one may be held by a thread that does not exist here
        for connection in [*(connection for _, connection in self._idle), *self._lent]:
            connection.close()
        self._idle.clear()
        self._lent = weakref.WeakSet()

    def _take_idle(self, key: _Key) -> Connection | None:
        # The most recently used first, so that the others may grow old and be closed.
        for other, connection in reversed(list(self._idle)):
            if other != key:
                continue
            self._idle.remove((other, connection))
            expired = connection.login_expires_at is not None and self._clock() >= connection.login_expires_at
            if connection.is_alive() and not expired:
                return connection
            connection.close()
        return None

    def _close_aged(self) -> None:
        now = self._clock()
        self._close_idle(
            [
                (key, connection)
                for key, connection in self._idle
                if (now - connection.last_used) * 1000 >= connection.settings.connections_max_idle_ms
            ]
        )

    def _close_idle(self, pairs: list[tuple[_Key, Connection]]) -> None:
        for pair in pairs:
            self._idle.remove(pair)
            pair[1].close()


#: The pool of this process.
POOL = ConnectionPool()
os.register_at_fork(after_in_child=POOL.forget_after_fork)
atexit.register(POOL.close)
