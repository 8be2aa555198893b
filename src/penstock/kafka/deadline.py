"""How long anything may wait: a moment on the monotonic clock, and the name of the limit that set it.

Rule: whoever waits for a broker waits until a `Deadline`, and when it passes the error names what was
waited for, for how long, and which setting to raise. Why not plain timeouts: a timeout of 30 s in each
of five nested calls is 150 s, and none of the five knows the other four; a deadline is handed down and
stays the same moment.

>>> Deadline.after_ms(0, "request.timeout.ms").timeout_error("an answer to Metadata from b:9092").condition
'BROKER_TIMEOUT'
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.core.errors import BrokerError

log = logging.getLogger(__name__)
LEAST_PAUSE_MS = 50  # between two tries, whatever is set: without it a loop of failures keeps a core busy
_LONGEST_PAUSE_MS = 1_000
#: Failures are told as a warning once they last so long: a leader election is over by then.
_TOLD_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment (`at`, seconds on this process's monotonic clock) and the setting it comes from."""

    at: float
    limit_ms: int
    name: str

    @classmethod
    def after_ms(cls, limit_ms: int, name: str = "request.timeout.ms") -> Deadline:
        return cls(time.monotonic() + limit_ms / 1000, limit_ms, name)

    def or_sooner(self, limit_ms: int, name: str) -> Deadline:
        """This deadline, or one `limit_ms` from now if that comes first."""
        other = Deadline.after_ms(limit_ms, name)
        return other if other.at < self.at else self

    def remaining_s(self) -> float:
        """Seconds left; 0.0 when it has passed, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at

    def wait_s(self, waiting_for: str) -> float:
        """Seconds left to hand to a blocking call; raises BROKER_TIMEOUT when there are none."""
        remaining = self.at - time.monotonic()
        if remaining <= 0:
            raise self.timeout_error(waiting_for)
        return remaining

    def pause(self, milliseconds: int) -> None:
        """Sleep so long, or until the deadline."""
        time.sleep(min(milliseconds / 1000, self.remaining_s()))

    def timeout_error(self, waiting_for: str) -> BrokerError:
        return BrokerError(
            "BROKER_TIMEOUT",
            f"Waited for {waiting_for} for {self.limit_ms} ms ({self.name}), in vain.",
            hint=f"Check that the broker is up and reachable, or raise {self.name}.",
            facts={"waiting_for": waiting_for, "limit_ms": self.limit_ms, "limit": self.name},
            retriable=True,
        )


class Attempts:
    """Tries until a deadline, with growing pauses. The loop ends after the deadline: raise `given_up()` then.

    for _ in attempts:
        with attempts.forgiving():
            return ask()
    raise attempts.given_up()
    """

    def __init__(self, deadline: Deadline, waiting_for: str, first_pause_ms: int) -> None:
        self.deadline = deadline
        self.waiting_for = waiting_for
        self._pause_ms = max(first_pause_ms, LEAST_PAUSE_MS)
        self._last: BrokerError | None = None
        self._began_at = time.monotonic()
        self._told = False

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            if number:
                self.deadline.pause(self._pause_ms)
                self._pause_ms = min(self._pause_ms * 2, _LONGEST_PAUSE_MS)
            if self.deadline.expired:
                return
            yield number

    @contextmanager
    def forgiving(self) -> Iterator[None]:
        """Let a retriable failure pass and remember it; any other goes through."""
        try:
            yield
        except BrokerError as error:
            if not error.retriable:
                raise
            log.info("Will try again: %s", error)
            self._tell(error)
            # The very last failure is often only "no time left": the one before it says why.
            if self._last is None or not self.deadline.expired:
                self._last = error

    def _tell(self, error: BrokerError) -> None:
        """Once, when it lasts: nobody should have to guess why nothing happens."""
        waited_s = time.monotonic() - self._began_at
        if not self._told and waited_s >= _TOLD_AFTER_S and not self.deadline.expired:
            self._told = True
            log.warning(
                "For %.0f s no success with %s; trying on for %.0f s (%s). The last failure was: %s",
                waited_s,
                self.waiting_for,
                self.deadline.remaining_s(),
                self.deadline.name,
                error,
            )

    def given_up(self) -> BrokerError:
        error = self.deadline.timeout_error(self.waiting_for)
        if self._last is None:
            return error
        error = BrokerError(
            error.condition,
            f"{error.what} The last failure was: {self._last}",
            facts={**error.facts, "last_condition": self._last.condition},
            retriable=True,
        )
        error.__cause__ = self._last
        return error
