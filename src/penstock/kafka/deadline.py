"""How long anything may wait: a moment on the monotonic clock, and the name of the limit that set it.

Rule: whoever waits for a broker waits until a `Deadline`, and when it passes the error names what was
waited for, for how long, and which setting to raise. Why not plain timeouts: a timeout of 30 s in each
of five nested calls is 150 s, and none of the five knows the other four; a deadline is handed down and
stays the same moment.

>>> Deadline.after_ms(0, "request.timeout.ms").timeout_error("an answer to Metadata from b:9092").condition
'BROKER_TIMEOUT'
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.core.errors import BrokerError


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

    def timeout_error(self, waiting_for: str) -> BrokerError:
        return BrokerError(
            "BROKER_TIMEOUT",
            f"Waited for {waiting_for} for {self.limit_ms} ms ({self.name}), in vain.",
            hint=f"Check that the broker is up and reachable, or raise {self.name}.",
            facts={"waiting_for": waiting_for, "limit_ms": self.limit_ms, "limit": self.name},
            retriable=True,
        )
