"""The loop that judges seconds: a few thousand steps for a second of a server, however many requests it had.

Everything it knows is in the arrays it is given, so it can stop after any second and continue later with the
same result. `spike_detection` explains the numbers. The cost is about 1 us for a second of a server.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from penstock.kernels.compilation import inlined, kernel, part

#: What is known of a second: requests, errors, latencies, sum and sum of squares of their buckets.
FACTS = 5
#: Seconds that are kept one by one, and ten-second bins of the past (fifteen minutes).
RECENT, BIN, BINS = 60, 10, 90
#: Windows, in bins.
WINDOWS = 3
#: Kinds of alerts, and the three baselines they are judged against.
SPIKE, DROP, ERRORS, LATENCY = 0, 1, 2, 3
KINDS = 4
#: What is known about each kind of alert of a series: opened at (0: not open), window, seconds hot, seconds
#: calm, last closed at. Beside it, `extremes` holds what an alert reports: the value that was furthest off
#: so far, and the value, the expected value and the score when it opened.
OPENED, WINDOW, HOT, CALM, CLOSED = 0, 1, 2, 3, 4
MARKS = 5
#: Baselines of a series: for each window median, spread up, spread down; then errors and latencies.
ERROR_RATIO, ERROR_SPREAD, LATENCY_MEDIAN, LATENCY_SPREAD, LATENCY_NOISE = 9, 10, 11, 12, 13
BASELINES = 14
#: Columns of an event: series, kind, 1 opened / 2 closed / 3 closed because the level stays, second, opened
#: at; its values are those of `extremes`.
EVENT_NUMBERS, EVENT_VALUES = 5, 4

#: Numbers of the limits, see `spike_detection.AnomalyLimits`.
Z, UP, DOWN, EXCESS, STEADY, CALM_SECONDS, LONGEST, ERROR_STEP, LATENCY_STEP = range(9)
_UNKNOWN = -1.0


@inlined
def _steady(count):
    """Return a count on Anscombe's scale, where Poisson noise has a standard deviation of 1."""
    return 2.0 * math.sqrt(max(count, 0.0) + 0.375)


@inlined
def _unsteady(value):
    return max(value * value / 4.0 - 0.375, 0.0)


@inlined
def _width(window):
    return 1 if window == 0 else (3 if window == 1 else 6)


@part
def _sort(values, size):
    for i in range(1, size):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


@inlined
def _spread(values, size, median, up):
    """Return the larger of two estimates of a standard deviation on one side of the median of sorted values.

    Few values understate how far off others may be, so an estimate from few values is enlarged.
    """
    near = values[(size - 1) * 84 // 100] if up else values[(size - 1) - (size - 1) * 84 // 100]
    far = values[(size - 1) * 95 // 100] if up else values[(size - 1) - (size - 1) * 95 // 100]
    return max(abs(near - median), abs(far - median) / 1.645) * (1.0 + 3.0 / size)


@part
def _learn(bins, usable, number, base, scratch):
    """Compute baselines from the bins before the last minute; `number` is the bin just ended."""
    newest = number - RECENT // BIN
    oldest = number - BINS + 1
    for window in range(WINDOWS):
        width, size = _width(window), 0
        last = newest
        while last - width + 1 >= oldest:
            total, fine = np.int64(0), True
            for i in range(width):
                at = (last - i) % BINS
                fine = fine and usable[at, 0] != 0
                total += bins[at, 0]
            if fine:
                scratch[size] = _steady(float(total))
                size += 1
            last -= width
        if size >= (12 if window == 0 else 8):
            _sort(scratch, size)
            median = scratch[(size - 1) // 2]
            base[3 * window] = median
            base[3 * window + 1] = max(1.0, _spread(scratch, size, median, True))
            base[3 * window + 2] = max(1.0, _spread(scratch, size, median, False))
    requests, errors, size = np.int64(0), np.int64(0), 0
    for last in range(oldest, newest + 1):
        if usable[last % BINS, 1]:
            requests += bins[last % BINS, 0]
            errors += bins[last % BINS, 1]
            size += 1
    if size >= 12 and requests >= 100:
        ratio = (errors + 0.5) / (requests + 1.0)
        base[ERROR_RATIO] = ratio
        size = 0
        for last in range(oldest, newest + 1):
            count = bins[last % BINS, 0]
            if usable[last % BINS, 1] and count >= 5:
                share = math.asin(math.sqrt(bins[last % BINS, 1] / count)) - math.asin(math.sqrt(ratio))
                scratch[size] = 2.0 * share * math.sqrt(count)
                size += 1
        _sort(scratch, size)
        base[ERROR_SPREAD] = max(1.0, _spread(scratch, size, 0.0, True)) if size >= 12 else 1.0
    size, squares, sums, count = 0, 0.0, 0.0, 0.0
    for last in range(oldest, newest + 1):
        known = float(bins[last % BINS, 2])
        if usable[last % BINS, 2] and known >= 5:
            scratch[size] = bins[last % BINS, 3] / known
            squares += bins[last % BINS, 4]
            sums += bins[last % BINS, 3]
            count += known
            size += 1
    if size >= 12:
        _sort(scratch, size)
        base[LATENCY_MEDIAN] = scratch[(size - 1) // 2]
        base[LATENCY_SPREAD] = _spread(scratch, size, base[LATENCY_MEDIAN], True)
        base[LATENCY_NOISE] = math.sqrt(max(squares / count - (sums / count) ** 2, 1.0))


@inlined
def _judge_rate(sums, base, limits, window, up):
    """Return how far a window's requests are off, in standard deviations; 0 if that does not matter."""
    if base[3 * window] == _UNKNOWN:
        return 0.0
    now, expected = float(sums[window, 0]), _unsteady(base[3 * window])
    off = _steady(now) - base[3 * window]
    if up:
        excess = limits[EXCESS] * (10.0 + 5.0 * _width(window))  # 15, 25, 40 seconds' worth
        if now < limits[UP] * expected or now - expected < excess:
            return 0.0
        return off / base[3 * window + 1]
    return -off / base[3 * window + 2] if now <= limits[DOWN] * expected else 0.0


@inlined
def _judge_errors(sums, base, limits, window):
    count, errors = float(sums[window, 0]), float(sums[window, 1])
    if base[ERROR_RATIO] == _UNKNOWN or errors < 10:
        return 0.0
    ratio, expected = errors / count, base[ERROR_RATIO]
    if ratio < 2.0 * expected or ratio - expected < limits[ERROR_STEP]:
        return 0.0
    share = math.asin(math.sqrt(min(ratio, 1.0))) - math.asin(math.sqrt(min(expected, 1.0)))
    return 2.0 * share * math.sqrt(count) / base[ERROR_SPREAD]


@inlined
def _judge_latency(sums, base, limits, window):
    count = float(sums[window, 2])
    if base[LATENCY_MEDIAN] == _UNKNOWN or count < 20:
        return 0.0
    off = sums[window, 3] / count - base[LATENCY_MEDIAN]
    if off < limits[LATENCY_STEP]:
        return 0.0
    return off / max(base[LATENCY_NOISE] / math.sqrt(count), base[LATENCY_SPREAD], 1.0)


@inlined
def _is_calm(kind, window, sums, base, limits):
    """Return whether an open alert's cause has gone, as its own window sees it."""
    now, expected = float(sums[window, 0]), _unsteady(base[3 * window])
    if kind == SPIKE:
        excess = limits[EXCESS] * (10.0 + 5.0 * _width(window))
        return now <= (1.0 + limits[UP]) / 2.0 * expected or now - expected < excess / 2.0
    if kind == DROP:
        return now >= (1.0 + limits[DOWN]) / 2.0 * expected
    if kind == ERRORS:
        ratio = sums[window, 1] / max(now, 1.0)
        return ratio < max(1.5 * base[ERROR_RATIO], base[ERROR_RATIO] + limits[ERROR_STEP] / 2.0)
    count = float(sums[window, 2])
    return count < 1 or sums[window, 3] / count - base[LATENCY_MEDIAN] < limits[LATENCY_STEP] / 2.0


@inlined
def _observed(kind, window, sums):
    if kind <= DROP:
        return sums[window, 0] / (10.0 * _width(window))
    if kind == ERRORS:
        return sums[window, 1] / max(float(sums[window, 0]), 1.0)
    return sums[window, 3] / max(float(sums[window, 2]), 1.0)


@inlined
def _expected(kind, window, base):
    if kind <= DROP:
        return _unsteady(base[3 * window]) / (10.0 * _width(window))
    return base[ERROR_RATIO] if kind == ERRORS else base[LATENCY_MEDIAN]


@kernel
def judge_seconds(
    first, facts, born, recent, bins, usable, base, marks, extremes, limits, scratch, sums, events, values
):
    """Judge the seconds from `first` on, given `facts[second, series]`; return how many, and how many events.

    Stop early if there may be no room for the events of one more second.
    """
    found, series_count = 0, len(born)
    for step in range(len(facts)):
        if found + KINDS * series_count > len(events):
            return step, found
        second = first + step
        number = second // BIN
        for series in range(series_count):
            if second < born[series]:
                continue
            bin_at, at = number % BINS, second % RECENT
            if second % BIN == 0 or second == born[series]:
                bins[series, bin_at, :] = 0
                usable[series, bin_at, :] = 1 if second % BIN == 0 else 0
            for fact in range(FACTS):
                recent[series, at, fact] = facts[step, series, fact]
                bins[series, bin_at, fact] += facts[step, series, fact]
            sums[:, :] = 0
            for back in range(RECENT):
                row = (second - back) % RECENT
                for fact in range(FACTS):
                    sums[2, fact] += recent[series, row, fact]
                    if back < 30:
                        sums[1, fact] += recent[series, row, fact]
                    if back < 10:
                        sums[0, fact] += recent[series, row, fact]
            known = base[series]
            for kind in range(KINDS):
                mark = marks[series, kind]
                kept = max(kind - 1, 0)  # spike and drop share a baseline
                if mark[OPENED] == 0:
                    score, window = 0.0, 0
                    for each in range(WINDOWS):
                        # A longer window still contains what has just ended.
                        if second - mark[CLOSED] < BIN * _width(each) - limits[CALM_SECONDS]:
                            continue
                        if kind <= DROP:
                            new = _judge_rate(sums, known, limits, each, kind == SPIKE)
                        elif kind == ERRORS:
                            new = _judge_errors(sums, known, limits, each)
                        else:
                            new = _judge_latency(sums, known, limits, each)
                        if new > score:
                            score, window = new, each
                    other = kind <= DROP and marks[series, 1 - kind, OPENED] != 0
                    mark[HOT] = mark[HOT] + 1 if score >= limits[Z] and not other else 0
                    if mark[HOT] < limits[STEADY]:
                        continue
                    mark[OPENED], mark[WINDOW], mark[CALM] = second, window, 0
                    told = extremes[series, kind]
                    told[0] = told[1] = _observed(kind, window, sums)
                    told[2], told[3] = _expected(kind, window, known), score
                    for back in range(_width(window) + 1):
                        usable[series, (number - back) % BINS, kept] = 0
                    events[found, 0], events[found, 1], events[found, 2] = series, kind, 1
                    events[found, 3] = events[found, 4] = second
                    for each in range(EVENT_VALUES):
                        values[found, each] = told[each]
                    found += 1
                    continue
                window = mark[WINDOW]
                usable[series, bin_at, kept] = 0
                now = _observed(kind, window, sums)
                worst = extremes[series, kind, 0]
                extremes[series, kind, 0] = min(worst, now) if kind == DROP else max(worst, now)
                mark[CALM] = mark[CALM] + 1 if _is_calm(kind, window, sums, known, limits) else 0
                stays = second - mark[OPENED] >= limits[LONGEST]
                if mark[CALM] < limits[CALM_SECONDS] and not stays:
                    continue
                events[found, 0], events[found, 1], events[found, 2] = series, kind, 2
                events[found, 3], events[found, 4] = second, mark[OPENED]
                for each in range(EVENT_VALUES):
                    values[found, each] = extremes[series, kind, each]
                if mark[CALM] < limits[CALM_SECONDS]:
                    # A level that stays this long is the new normal: what came before it no longer counts.
                    events[found, 2] = 3
                    begun = mark[OPENED] // BIN
                    for back in range(BINS):
                        usable[series, (number - back) % BINS, kept] = 1 if number - back > begun else 0
                    usable[series, bin_at, kept] = 0
                    _learn(bins[series], usable[series], number - 1, known, scratch)
                found += 1
                mark[OPENED], mark[HOT], mark[CLOSED] = 0, 0, second
            if second % BIN == BIN - 1:
                _learn(bins[series], usable[series], number, known, scratch)
    return len(facts), found
