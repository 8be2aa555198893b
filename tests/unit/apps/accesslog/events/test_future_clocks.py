"""A clock that was ahead and is right again: the log's time soon advances, however far ahead it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.apps.accesslog.events.future_clocks import correct_future_clocks, list_timely
from penstock.apps.accesslog.events.log_clocks import Clocks, LogClock, advance, decide_idle, pass_time

SECOND_US = 1_000_000
START_US = 1_900_000_000 * SECOND_US
LATENESS_US = SECOND_US
IDLE_AFTER_US = 5 * SECOND_US


def list_moves(ahead_s: int, seconds: int) -> list[int]:
    """Return the seconds in which the watermark moves, with one right line and one batch per second.

    Before the first, one partition got this far ahead. Each step does what the pipeline does with a batch.
    """
    reached_us = START_US + ahead_s * SECOND_US
    clocks = Clocks({0: LogClock(reached_us, seen_at_us=START_US)}, reached_us - LATENESS_US)
    without_timely: frozenset[int] = frozenset()
    moves = []
    for second in range(1, seconds):
        now_us = START_US + second * SECOND_US
        decided = decide_idle(
            clocks,
            now_us=now_us,
            with_lines={0} - without_timely,
            known=[0],
            idle_after_us=IDLE_AFTER_US,
        )
        decided = correct_future_clocks(decided, without_timely, now_us)
        if decided.watermark_us > now_us:
            decided = pass_time(decided, SECOND_US)
        before_us = decided.partitions[0].max_us
        most_us = max(now_us, before_us)
        row = {"partition": 0, "parsed": 1, "late": int(now_us < before_us - LATENESS_US), "maximum": most_us}
        after = advance(decided, {0: most_us}, lateness_us=LATENESS_US)
        timely = list_timely([row], decided, now_us)
        seen = {each: replace(after.partitions[each], seen_at_us=now_us) for each in timely}
        if after.watermark_us > clocks.watermark_us:
            moves.append(second)
        clocks = replace(after, partitions={**after.partitions, **seen})
        without_timely = frozenset({0}) - timely
    return moves


@pytest.mark.parametrize("ahead_s", [0, 2, 5, 8, 10, 11, 20, 65, 120, 3600])
def test_the_watermark_never_stops_for_longer_than_the_guide_says(ahead_s: int) -> None:
    """Neither at first nor later, when the wall clock approaches the time that the log had reached."""
    moves = list_moves(ahead_s, 3 * ahead_s + 60)
    longest_s = max(after - before for before, after in zip([0, *moves], moves, strict=False))
    assert longest_s <= 11
    assert moves[-30:] == list(range(3 * ahead_s + 30, 3 * ahead_s + 60)), "it is as fast as the wall again"


def test_servers_whose_clocks_differ_by_seconds_are_waited_for() -> None:
    """One server is three seconds ahead of the others in the same partition, which is normal."""
    clocks = Clocks({0: LogClock(START_US + 3 * SECOND_US)}, START_US + 2 * SECOND_US)
    row = {"partition": 0, "parsed": 4, "late": 4, "maximum": START_US + 3 * SECOND_US}
    assert list_timely([row], clocks, START_US) == {0}
