"""How long anything may wait: a moment on the monotonic clock, and the name of the limit that set it.

Rule: every wait for a broker ends at a `Deadline`, and then the error says what was waited for, how long,
and which setting to raise. Why not plain timeouts: a timeout of 30 s in each of five nested calls is 150 s,
and none of the five knows of the other four; a deadline is passed down and stays the same moment. A request
to stop the stream (`core.outages.hearing_stop`) makes it come sooner.

>>> Deadline.after_ms(0, "request.timeout.ms").timeout_error("an answer to Metadata from b:9092").condition
'BROKER_TIMEOUT'
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.outages import STOP_PATIENCE_S, find_stop

#: A stream that may be asked to stop blocks for this long at most, then checks whether it was.
LOOK_FOR_STOP_S = 0.5


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment (`at`, seconds on this process's monotonic clock) and the setting it comes from.

    `whole_begun_at` is when the wait that this one is part of began; None if it is not part of another.
    """

    at: float
    limit_ms: int
    name: str
    whole_begun_at: float | None = None

    @classmethod
    def after_ms(cls, limit_ms: int, name: str = "request.timeout.ms") -> Deadline:
        return cls(time.monotonic() + limit_ms / 1000, limit_ms, name)

    @classmethod
    def of_call(cls, settings: ClientSettings) -> Deadline:
        return cls.after_ms(settings.default_api_timeout_ms, "default.api.timeout.ms")

    def or_sooner(self, limit_ms: int, name: str) -> Deadline:
        """Return this deadline, or one `limit_ms` from now if that comes first.

        The new deadline is part of this wait, so a stop ends both at the same moment.
        """
        at = time.monotonic() + limit_ms / 1000
        return Deadline(at, limit_ms, name, self._find_begin()) if at < self.at else self

    def remaining_s(self) -> float:
        """Return the seconds left, never below 0.0."""
        return max(0.0, self._find_end() - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._find_end()

    def wait_s(self, waiting_for: str) -> float:
        """Return the seconds left, for a blocking call; raise BROKER_TIMEOUT if there are none."""
        remaining = self._find_end() - time.monotonic()
        if remaining <= 0:
            raise self.timeout_error(waiting_for)
        return remaining

    def slice_s(self, waiting_for: str) -> float:
        """Return the seconds for one of several blocking calls: few if a stop must be noticed soon."""
        remaining = self.wait_s(waiting_for)
        return remaining if find_stop() is None else min(remaining, LOOK_FOR_STOP_S)

    def _find_begin(self) -> float:
        return self.at - self.limit_ms / 1000 if self.whole_begun_at is None else self.whole_begun_at

    def _find_end(self) -> float:
        """Return the moment itself, or an earlier one set by a stop.

        A wait begun after the stop gets as long as one begun before: brokers that are up answer in time.
        """
        find = find_stop()
        asked_at = None if find is None else find()
        if asked_at is None:
            return self.at
        return min(self.at, max(asked_at, self._find_begin()) + STOP_PATIENCE_S)

    def pause(self, milliseconds: int) -> None:
        """Sleep for this time, but not past the deadline."""
        time.sleep(min(milliseconds / 1000, self.remaining_s()))

    def timeout_error(self, waiting_for: str) -> BrokerError:
        if time.monotonic() < self.at and self._find_end() < self.at:
            return BrokerError(
                "STOPPED_WAITING",
                f"Gave up waiting for {waiting_for}: the stream was asked to stop.",
                hint="Start it again: it goes on where its offsets are stored. Check that the broker is up.",
                facts={"waiting_for": waiting_for},
            )
        return BrokerError(
            "BROKER_TIMEOUT",
            f"Waited for {waiting_for} for {self.limit_ms} ms ({self.name}) without success.",
            # A name in words is not a setting, so it cannot be raised.
            hint="Check that the broker is up and reachable"
            + ("." if " " in self.name else f", or raise {self.name}."),
            facts={"waiting_for": waiting_for, "limit_ms": self.limit_ms, "limit": self.name},
            retriable=True,
        )
