"""Backpressure of one running stream: measures its batches and asks `core.streaming.backpressure` how much
the next one may take.

A batch is measured from its planning to the first call of the next trigger or, better, by the time that the
query listener says its trigger took (see `listener_feedback`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.loggers import get_logger
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition, write_position
from penstock.core.streaming.backpressure import PaceState, Pacing
from penstock.core.streaming.log_changes import Course
from penstock.engines.source.listener_feedback import FeedbackPort, name_end

log = get_logger(__name__)

_BATCHES_BEFORE_A_WORD = 5


@dataclass(frozen=True, slots=True)
class _Batch:
    name: str
    records: int
    was_limited: bool
    begun_at: float


class Pace:
    """One stream's backpressure. `clock` is monotonic, in seconds."""

    def __init__(self, pacing: Pacing, clock: Callable[[], float]) -> None:
        self._pacing, self._clock = pacing, clock
        self._state = PaceState()
        self._port = FeedbackPort()
        self._batch: _Batch | None = None
        self._last_ms: float = 0.0
        self._told = False
        self._batches = 0

    def begin(self, course: Course, end: StreamPosition) -> None:
        """Note that a batch up to `end` is about to run."""
        self._batch = _Batch(name_end(write_position(end)), *course.measure(end), self._clock())

    def learn(self) -> None:
        """Learn from the previous batch: the next trigger is here, so that batch is over."""
        told = {each.end: each.trigger_ms for each in self._port.drain()}
        self._told = self._told or bool(told)
        batch, self._batch = self._batch, None
        if batch is None:
            return
        now = self._clock()
        took_ms = told.get(batch.name, (now - batch.begun_at) * 1000)
        late_ms = max(0.0, self._last_ms - self._pacing.target_ms)
        self._state = self._pacing.observe(
            self._state, int(now * 1000), batch.records, took_ms, late_ms, was_limited=batch.was_limited
        )
        self._last_ms = took_ms
        self._batches += 1
        if self._batches == _BATCHES_BEFORE_A_WORD and not self._told and took_ms > self._pacing.target_ms:
            log.warning(
                "Batches seem to take %d ms, but it is unknown how much of that is waiting for the trigger. "
                "With a trigger interval, add `penstock.listener.QueryListener` to the session, or "
                "backpressure will make the batches smaller and smaller.",
                took_ms,
            )

    def budget(self, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        return self._pacing.budget(self._state, sizes)

    def close(self) -> None:
        self._port.close()

    def report(self) -> dict[str, Any]:
        return {
            "recordsPerSecond": self._state.rate,
            "lastBatchMs": int(self._last_ms),
            "targetMs": self._pacing.target_ms,
            "feedback": self._port.address,
        }
