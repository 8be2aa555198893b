"""Spark's PID rate estimator, written independently from its description, to compare and to simulate."""

from __future__ import annotations


class SparkPid:
    """An estimator that keeps the last time, rate and error; its lateness term is unbounded."""

    def __init__(
        self, interval_ms: int, proportional: float, integral: float, derived: float, min_rate: float
    ) -> None:
        self.interval_ms = interval_ms
        self.gains = (proportional, integral, derived)
        self.min_rate = min_rate
        self.published: float | None = None
        self._last: tuple[int, float, float] | None = None

    def compute(self, at_ms: int, records: int, processing_ms: float, delay_ms: float) -> float | None:
        if records > 0 and processing_ms > 0 and (self._last is None or at_ms > self._last[0]):
            speed = 1000 * records / processing_ms
            if self._last is None:
                self._last = (at_ms, speed, 0.0)
            else:
                then_ms, rate, last_error = self._last
                error = rate - speed
                terms = (
                    error,
                    delay_ms * speed / self.interval_ms,
                    1000 * (error - last_error) / (at_ms - then_ms),
                )
                taken_off = sum(gain * term for gain, term in zip(self.gains, terms, strict=True))
                self.published = max(self.min_rate, rate - taken_off)
                self._last = (at_ms, self.published, error)
        return self.published
