"""Outages of a server that was reachable before: which failures mean that, how long to wait, what to log.

Rules: a failure is an outage by its condition, and only if trying again may help. An outage ends only when
something has been done, not when a server answers: a server that each request crashes would otherwise be
asked forever. Logged lengths count from the beginning of the attempt that failed first: a request to a silent
server has lasted a minute when it fails. The limit counts from that failure, because it is unknown how much
of the attempt was work.

Code that waits logs how long the stream waits in all, because its own limit alone would be read as the
stream's. All code that runs for a stream can find that length (`find_patience`): waits of half a minute each,
deep in stores and clients, are parts of it. A request to stop is heard only where nothing is at stake
(`hearing_stop`): there, no answer is awaited for longer than `STOP_PATIENCE_S` after the request. The offsets
of finished work are at stake: if they are given up, the work is repeated.

>>> write_span(900)
'15 min'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.errors import find_verdict, list_causes

_Value = TypeVar("_Value")

#: When to log an outage: first after this time, then again after each of these.
TOLD_AFTER_S = 5.0
TOLD_EVERY_S = 30.0

#: How long a stream with nothing at stake waits for an answer once it was asked to stop.
STOP_PATIENCE_S = 5.0

#: Conditions of a database that is away or takes no writes now; it, or another host, may soon take them.
DATABASE_AWAY = frozenset({"DATABASE_UNREACHABLE", "DATABASE_READ_ONLY"})
#: Conditions of servers that do not answer, or that refuse for a while.
CONDITIONS = DATABASE_AWAY | frozenset(
    {
        "BROKER_DISCONNECTED",
        "BROKER_TIMEOUT",
        "BROKER_UNKNOWN",
        "BROKER_UNREACHABLE",
        "FETCH_TIMEOUT",
        "SCHEMA_REGISTRY_UNREACHABLE",
        "ZOOKEEPER_UNREACHABLE",
    }
)
_TOLD = re.compile(r"\[(" + "|".join(sorted(CONDITIONS)) + r")\]")


def is_outage(error: BaseException) -> bool:
    """Return whether this failed because a server is away.

    The error itself may say so, or a cause of it, or one whose traceback Spark has made the text of another.
    """
    return find_verdict(error) is True and any(_TOLD.search(str(each)) for each in list_causes(error))


def has_stopped(error: BaseException) -> bool:
    """Return whether this failed only because its stream was asked to stop while it waited."""
    return getattr(error, "condition", "") == "STOPPED_WAITING"


class Outage:
    """A stream's outage, if there is one. Times are seconds on any one clock."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._told_s: float | None = None
        self._failures = 0

    def note(self, now_s: float, begun_s: float) -> None:
        """Count a failure of an attempt that began at `begun_s`; the first one begins the outage."""
        self._failures += 1
        if self._since_s is None:
            self._since_s, self._failed_s = begun_s, now_s

    def end(self, now_s: float) -> float | None:
        """End the outage, because something was done; return how long it lasted, or None without one."""
        since_s, self._since_s, self._told_s, self._failures = self._since_s, None, None, 0
        return None if since_s is None else now_s - since_s

    @property
    def is_on(self) -> bool:
        return self._since_s is not None

    def measure(self, now_s: float) -> float:
        """Return how long nothing has been done."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def find_rest_s(self, now_s: float) -> float:
        """Return how much longer to wait, or 0.0 if the limit is reached."""
        waited_s = 0.0 if self._since_s is None else now_s - self._failed_s
        return max(0.0, self.limit_s - waited_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to log the outage; a caller that gets True must log it."""
        if self._told_s is not None and now_s - self._told_s < TOLD_EVERY_S:
            return False
        self._told_s = now_s
        return True

    def choose_pause_s(self) -> float:
        """Return how long to wait before the next attempt: 1 s, 2 s, 4 s, then 5 s."""
        return float(min(5, 2 ** max(0, self._failures - 1)))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stream waits in all, for any server."""

    limit_s: float

    def __str__(self) -> str:
        return f"The stream waits up to {write_span(self.limit_s)} in all (outageTimeout)."


_PATIENCE: ContextVar[Patience | None] = ContextVar("penstock_patience", default=None)


def waiting_for_servers(patience: Patience | None) -> AbstractContextManager[None]:
    """Run the block for a stream with this patience. Threads that it starts do not inherit it."""
    return _setting(_PATIENCE, patience)


def find_patience() -> Patience | None:
    """Return the patience of the stream for which this code runs, or None if there is no such stream."""
    return _PATIENCE.get()


#: Returns when a stop was requested, on the monotonic clock, or None if it was not yet.
FindStop = Callable[[], float | None]
_STOP: ContextVar[FindStop | None] = ContextVar("penstock_stop", default=None)


def hearing_stop(find: FindStop) -> AbstractContextManager[None]:
    """Run the block so that it gives up soon after its stream is asked to stop.

    Threads that it starts do not. No user code may run inside, and nothing that must finish once begun.
    """
    return _setting(_STOP, find)


def find_stop() -> FindStop | None:
    """Return the function that says when a stop was requested, or None if none can be requested here."""
    return _STOP.get()


@contextmanager
def _setting(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)  # no token: a generator may be closed in another context


def write_span(seconds: float) -> str:
    """Return a length of time with the largest unit that needs no fraction."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1000:g} ms" if 0 < seconds < 1 else f"{seconds:g} s"
