"""Decides how much a direct stream's next batch takes: fixed bounds, or what recent batches could handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.streaming.backpressure import PaceState, Pacing
from penstock.core.streaming.log_changes import Course
from penstock.engines.reading.stream_watch import StreamPace


class DirectPace(StreamPace):
    """The bounds of a direct stream's batches. The loop reports how long each batch took, so no clock is
    needed. With `learns`, the bounds follow what recent batches could handle (backpressure)."""

    def __init__(self, pacing: Pacing, *, learns: bool) -> None:
        self._pacing, self._learns = pacing, learns
        self._state = PaceState()
        self._records = 0
        self._was_limited = False

    def begin(self, course: Course, end: StreamPosition) -> None:
        self._records, self._was_limited = course.measure(end)

    def observe(self, finished_at_ms: int, processing_ms: float, delay_ms: float) -> None:
        if self._learns:
            self._state = self._pacing.observe(
                self._state,
                finished_at_ms,
                self._records,
                processing_ms,
                delay_ms,
                was_limited=self._was_limited,
            )

    def budget(self, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        return self._pacing.budget(self._state, sizes)

    def report(self) -> dict[str, Any]:
        return {"recordsPerSecond": self._state.rate, "targetMs": self._pacing.target_ms}
