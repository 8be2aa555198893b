"""Chooses the size of the next batch, so that batches take about as long as they should.

Rule: the rate follows what batches really achieved, with the arithmetic and defaults of Spark's PID
estimator. Three of its mistakes are corrected, each with a test. Lateness counts up to one batch's time:
unbounded, one slow batch throws the rate to its minimum, and it takes several to grow back. A batch that read
all there was, in time, may raise the rate but not lower it: it shows how much arrived, not how much can be
done. The initial rate bounds every batch until there is an estimate. The caller must not count waiting for
the next tick as processing.

>>> pacing = Pacing(target_ms=1000, initial_rate=500)
>>> pacing.budget(PaceState(), {"a": 3000, "b": 1000, "c": 0})
{'a': 375, 'b': 125, 'c': 0}
>>> state = pacing.observe(PaceState(), finished_at_ms=1000, records=500, processing_ms=2000)
>>> pacing.observe(state, finished_at_ms=3000, records=500, processing_ms=2500).rate
200.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.core.streaming.limit_sharing import share_by_lag

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class PidSettings:
    """The gains: how much of the error, the lateness and the error's change is subtracted from the rate."""

    proportional: float = 1.0
    integral: float = 0.2
    derived: float = 0.0
    min_rate: float = 100.0


@dataclass(frozen=True, slots=True)
class PaceState:
    """What has been learned so far; a new state holds nothing."""

    observed_at_ms: int | None = None  # when the last batch that counted ended
    level: float = 0.0  # records/s; after one observation only a reference to compare the next with
    error: float = 0.0
    is_estimate: bool = False

    @property
    def rate(self) -> float | None:
        """Return the records per second, or None while there is no estimate."""
        return self.level if self.is_estimate else None


@dataclass(frozen=True, slots=True)
class Pacing:
    """The controller: batches should take `target_ms`. Rates are in records per second; None means no bound.

    The option table has refused what makes no sense, such as a gain below 0 or a bound of 0.
    """

    target_ms: int
    pid: PidSettings = field(default_factory=PidSettings)
    initial_rate: float | None = None
    max_rate_per_partition: float | None = None
    min_rate_per_partition: float = 1.0

    def observe(
        self,
        state: PaceState,
        finished_at_ms: int,
        records: int,
        processing_ms: float,
        scheduling_delay_ms: float = 0.0,
        *,
        was_limited: bool = True,
    ) -> PaceState:
        """Return the state after a finished batch. Ignore one without rows or duration, or out of order.

        `scheduling_delay_ms` is how much later than planned it began. `was_limited` means that it left
        records behind.
        """
        before = state.observed_at_ms
        if records <= 0 or processing_ms <= 0 or (before is not None and finished_at_ms <= before):
            return state
        speed = records / processing_ms * 1000
        if before is None:
            return PaceState(finished_at_ms, speed)
        error = state.level - speed
        lateness = min(max(0.0, scheduling_delay_ms), self.target_ms) / self.target_ms * speed
        change = (error - state.error) / ((finished_at_ms - before) / 1000)
        correction = self.pid.proportional * error + self.pid.integral * lateness + self.pid.derived * change
        rate = max(self.pid.min_rate, state.level - correction)
        if not was_limited and processing_ms <= self.target_ms:
            rate = max(rate, state.level)
        return PaceState(finished_at_ms, rate, error, is_estimate=True)

    def budget(self, state: PaceState, lags: Mapping[_Key, int]) -> dict[_Key, int] | None:
        """Return the next batch's records of each partition, at most its lag, or None if there is no bound.

        The rate is shared by lag. Each share is held under `max_rate_per_partition`, which wins, and over
        `min_rate_per_partition`, times the batch's target duration. A partition that has records always gets
        at least one, or short batches would never move it.
        """
        rate = self.initial_rate if state.rate is None else state.rate
        if rate is None and self.max_rate_per_partition is None:
            return None
        seconds = self.target_ms / 1000
        waiting = {each: max(0, lag) for each, lag in lags.items()}
        shares = waiting if rate is None else share_by_lag(math.floor(rate * seconds), waiting)
        least = _records(self.min_rate_per_partition, seconds)
        most = None
        if self.max_rate_per_partition is not None:
            most = _records(self.max_rate_per_partition, seconds)
        return {each: _bound(share, least, most, waiting[each]) for each, share in shares.items()}


def _records(rate: float, seconds: float) -> int:
    return max(1, math.floor(rate * seconds))


def _bound(share: int, least: int, most: int | None, waiting: int) -> int:
    raised = max(share, least)
    return min(raised if most is None else min(raised, most), waiting)
