"""Clocks that are ahead of the wall clock: whether lines confirm them, and how they are corrected.

Rule: a clock in the future counts only while lines come that are as far ahead. Once a wrong clock is set
right, its server sends lines that are behind it. A partition with only such lines counts as silent, so after
a while it is no longer waited for. The watermark never goes back, so a line confirms the future only if it is
not behind the watermark either. Otherwise all would wait until the wall clock has caught up with it.

>>> clocks = Clocks({0: LogClock(max_us=30_000_000)}, watermark_us=29_000_000)
>>> row = {"partition": 0, "parsed": 1, "late": 1, "maximum": 30_000_000}
>>> list_timely([row], clocks, now_us=0), list_timely([row], clocks, now_us=26_000_000)
(frozenset(), frozenset({0}))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.apps.accesslog.events.log_clocks import Clocks, LogClock, cap_at_watermark

#: Clocks of servers normally differ by seconds. A clock that is ahead by less than this is waited for.
FUTURE_US = 5_000_000


def list_timely(rows: Iterable[Mapping[str, int]], clocks: Clocks, now_us: int) -> frozenset[int]:
    """Return the partitions with a line that could be parsed.

    Where the clock is in the future, one of the lines must be as far ahead. `rows` are what tasks counted:
    `partition`, `parsed`, `late`, and the `maximum` of the partition after its lines.
    """

    def is_timely(row: Mapping[str, int]) -> bool:
        if not _is_future(clocks, row["partition"], now_us):
            return row["parsed"] > 0
        return row["parsed"] > row["late"] and row["maximum"] >= clocks.watermark_us

    return frozenset(row["partition"] for row in rows if is_timely(row))


def correct_future_clocks(clocks: Clocks, without_timely: Collection[int], now_us: int) -> Clocks:
    """Return the clocks with idle partitions that lack a timely line set back from the future."""
    wrong = [
        number
        for number, clock in clocks.partitions.items()
        if number in without_timely and clock.is_idle and _is_future(clocks, number, now_us)
    ]
    return cap_at_watermark(clocks, wrong)


def _is_future(clocks: Clocks, number: int, now_us: int) -> bool:
    reached_us = max(clocks.partitions.get(number, LogClock()).max_us, clocks.watermark_us)
    return reached_us > now_us + FUTURE_US
