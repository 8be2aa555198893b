"""Decides when batches run: at multiples of the interval, one at a time; missed ticks become one batch.

Rule: a batch's time is a multiple of its interval since the epoch, so the same interval gives the same times
on every machine and after every restart. Why missed ticks are not caught up one by one: the first would leave
the others nothing to read, and the stream would fall behind through bookkeeping.

>>> next_tick(None, now_ms=1234, interval_ms=1000)
2000
>>> next_tick(2000, now_ms=5400, interval_ms=1000)
5000
"""

from __future__ import annotations


def next_tick(last_ms: int | None, now_ms: int, interval_ms: int) -> int:
    """Return the time of the next batch: in the future, or, if late, the newest tick that has passed."""
    passed = now_ms - now_ms % interval_ms
    if last_ms is None:
        return passed if passed == now_ms else passed + interval_ms
    return max(passed, last_ms + interval_ms)
