"""The rules of `spike_detection` for one server, worked out from its whole past: slow, and easy to read."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from penstock.apps.accesslog.monitoring.spike_detection import KINDS, AlertChange, AnomalyLimits, _to_micros

Facts = tuple[int, int, int, int, int]
WINDOWS = (10, 30, 60)


def steady(count: float) -> float:
    return 2 * math.sqrt(count + 0.375)


def unsteady(value: float) -> float:
    return max(value * value / 4 - 0.375, 0.0)


def spread(values: list[float], median: float, up: bool) -> float:
    """Return a standard deviation from the values on one side, by two of their quantiles."""
    last = len(values) - 1
    near, far = last * 84 // 100, last * 95 // 100
    if not up:
        near, far = last - near, last - far
    found = max(abs(values[near] - median), abs(values[far] - median) / 1.645)
    return found * (1 + 3 / len(values))


@dataclass
class Opened:
    at: int
    window: int
    value: float
    expected: float
    score: float
    peak: float
    calm: int = 0


@dataclass
class SlowWatch:
    """The watch over one server."""

    born: int
    limits: AnomalyLimits = field(default_factory=AnomalyLimits)
    past: list[Facts] = field(default_factory=list)
    bins: dict[int, list[int] | None] = field(default_factory=dict)
    unusable: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # bin -> baselines
    rates: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    errors: tuple[float, float] | None = None
    latency: tuple[float, float, float] | None = None
    hot: list[int] = field(default_factory=lambda: [0] * 4)
    open: dict[int, Opened] = field(default_factory=dict)
    closed_at: list[int] = field(default_factory=lambda: [0] * 4)
    changes: list[AlertChange] = field(default_factory=list)

    def judge(self, facts: Facts) -> None:
        second = self.born + len(self.past)
        self.past.append(facts)
        if self.born % 10:
            self.unusable[self.born // 10] = {0, 1, 2}
        sums = {window: [sum(of) for of in zip(*self.past[-window:], strict=True)] for window in WINDOWS}
        for kind in range(4):
            if kind in self.open:
                self._follow(kind, second, sums)
            else:
                self._consider(kind, second, sums)
        if second % 10 == 9:
            self._learn(second // 10)

    def _bin(self, number: int) -> list[int] | None:
        """Return the facts of ten seconds; None where the past does not go back so far."""
        if number not in self.bins:  # needed only when its ten seconds are over
            begin = number * 10 - self.born
            some = self.past[max(begin, 0) : max(begin + 10, 0)]
            self.bins[number] = [sum(each[fact] for each in some) for fact in range(5)] if some else None
        return self.bins[number]

    def _usable(self, ended: int, baseline: int, width: int = 1) -> list[list[int]]:
        """Return the facts of usable stretches of bins, newest first, without the last minute."""
        found = []
        last = ended - 6
        while last - width + 1 >= ended - 89:
            some = [self._bin(last - at) for at in range(width)]
            good = all(baseline not in self.unusable[last - at] for at in range(width))
            if good and all(each is not None for each in some):
                found.append([sum(each[fact] for each in some if each) for fact in range(5)])
            last -= width
        return found

    def _learn(self, ended: int) -> None:
        for window in WINDOWS:
            values = sorted(steady(each[0]) for each in self._usable(ended, 0, window // 10))
            if len(values) >= (12 if window == 10 else 8):
                median = values[(len(values) - 1) // 2]
                up, down = (max(1.0, spread(values, median, side)) for side in (True, False))
                self.rates[window] = (median, up, down)
        bins = self._usable(ended, 1)
        if len(bins) >= 12 and sum(each[0] for each in bins) >= 100:
            ratio = (sum(each[1] for each in bins) + 0.5) / (sum(each[0] for each in bins) + 1)
            off = sorted(
                2 * (math.asin(math.sqrt(e[1] / e[0])) - math.asin(math.sqrt(ratio))) * math.sqrt(e[0])
                for e in bins
                if e[0] >= 5
            )
            self.errors = (ratio, max(1.0, spread(off, 0.0, True)) if len(off) >= 12 else 1.0)
        bins = [each for each in self._usable(ended, 2) if each[2] >= 5]
        if len(bins) >= 12:
            means = sorted(each[3] / each[2] for each in bins)
            count, total, squares = (sum(each[fact] for each in bins) for fact in (2, 3, 4))
            median = means[(len(means) - 1) // 2]
            noise = math.sqrt(max(squares / count - (total / count) ** 2, 1.0))
            self.latency = (median, spread(means, median, True), noise)

    def _score(self, kind: int, window: int, sums: list[int]) -> float:
        limits = self.limits
        if kind <= 1:
            if window not in self.rates:
                return 0.0
            median, up, down = self.rates[window]
            expected, off = unsteady(median), steady(sums[0]) - median
            if kind == 1:
                return -off / down if sums[0] <= limits.down * expected else 0.0
            enough = limits.excess_per_s * {10: 15, 30: 25, 60: 40}[window]
            return off / up if sums[0] >= limits.up * expected and sums[0] - expected >= enough else 0.0
        if kind == 2:
            if self.errors is None or sums[1] < 10:
                return 0.0
            expected, wide = self.errors
            ratio = sums[1] / sums[0]
            if ratio < 2 * expected or ratio - expected < limits.error_step:
                return 0.0
            share = math.asin(math.sqrt(ratio)) - math.asin(math.sqrt(expected))
            return 2 * share * math.sqrt(sums[0]) / wide
        if self.latency is None or sums[2] < 20:
            return 0.0
        median, wide, noise = self.latency
        off = sums[3] / sums[2] - median
        return off / max(noise / math.sqrt(sums[2]), wide, 1.0) if off >= limits.latency_step else 0.0

    def _observed(self, kind: int, window: int, sums: list[int]) -> float:
        if kind <= 1:
            return sums[0] / window
        return sums[1] / max(sums[0], 1) if kind == 2 else sums[3] / max(sums[2], 1)

    def _expected(self, kind: int, window: int) -> float:
        if kind <= 1:
            return unsteady(self.rates[window][0]) / window
        assert self.errors is not None or kind == 3
        return self.errors[0] if kind == 2 and self.errors else self.latency[0] if self.latency else 0.0

    def _consider(self, kind: int, second: int, sums: dict[int, list[int]]) -> None:
        fresh = [w for w in WINDOWS if second - self.closed_at[kind] >= w - self.limits.calm_s]
        scores = {window: self._score(kind, window, sums[window]) for window in fresh}
        window = max(scores, key=lambda each: scores[each], default=10)
        is_hot = scores.get(window, 0.0) >= self.limits.z and not (kind <= 1 and 1 - kind in self.open)
        self.hot[kind] = self.hot[kind] + 1 if is_hot else 0
        if self.hot[kind] < self.limits.steady_s:
            return
        value = self._observed(kind, window, sums[window])
        self.open[kind] = Opened(second, window, value, self._expected(kind, window), scores[window], value)
        for back in range(window // 10 + 1):
            self.unusable[second // 10 - back].add(max(kind - 1, 0))
        self._tell(kind, None, False)

    def _follow(self, kind: int, second: int, sums: dict[int, list[int]]) -> None:
        alert, baseline, number = self.open[kind], max(kind - 1, 0), second // 10
        self.unusable[number].add(baseline)
        now = self._observed(kind, alert.window, sums[alert.window])
        alert.peak = min(alert.peak, now) if kind == 1 else max(alert.peak, now)
        alert.calm = alert.calm + 1 if self._is_calm(kind, alert.window, sums[alert.window]) else 0
        if alert.calm < self.limits.calm_s and second - alert.at < self.limits.longest_s:
            return
        stays = alert.calm < self.limits.calm_s
        self._tell(kind, second, stays)
        del self.open[kind]
        self.hot[kind], self.closed_at[kind] = 0, second
        if stays:
            for each in range(number - 89, number):
                if each > alert.at // 10:
                    self.unusable[each].discard(baseline)
                else:
                    self.unusable[each].add(baseline)
            self._learn(number - 1)

    def _is_calm(self, kind: int, window: int, sums: list[int]) -> bool:
        limits = self.limits
        if kind <= 1:
            expected = unsteady(self.rates[window][0])
            if kind == 1:
                return sums[0] >= (1 + limits.down) / 2 * expected
            enough = limits.excess_per_s * {10: 15, 30: 25, 60: 40}[window]
            return sums[0] <= (1 + limits.up) / 2 * expected or sums[0] - expected < enough / 2
        if kind == 2:
            assert self.errors is not None
            usual = self.errors[0]
            return sums[1] / max(sums[0], 1) < max(1.5 * usual, usual + limits.error_step / 2)
        assert self.latency is not None
        return sums[2] < 1 or sums[3] / sums[2] - self.latency[0] < limits.latency_step / 2

    def _tell(self, kind: int, closed_at: int | None, new_level: bool) -> None:
        alert = self.open[kind]
        told = [alert.value, alert.expected, alert.peak]
        if kind == 3:
            told = [_to_micros(each) for each in told]
        self.changes.append(
            AlertChange(KINDS[kind], "server0", alert.at, closed_at, *told, alert.score, new_level)
        )
