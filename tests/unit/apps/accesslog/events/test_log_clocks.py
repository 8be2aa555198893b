"""Clocks and watermarks: what holds them back, what releases them, and that they never go back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.events.log_clocks import (
    NEVER,
    Clocks,
    LogClock,
    advance,
    cap_at_watermark,
    decide_idle,
    finish,
    pass_time,
)
from penstock.core.errors import DecodeError

SECOND = 1_000_000


def test_the_watermark_is_the_slowest_partition_less_the_lateness() -> None:
    clocks = advance(Clocks.begin([0, 1]), {0: 90 * SECOND, 1: 60 * SECOND}, lateness_us=SECOND)
    assert clocks.watermark_us == 59 * SECOND


def test_a_partition_without_a_line_holds_the_watermark_until_it_is_called_idle() -> None:
    clocks = advance(Clocks.begin([0, 1]), {0: 90 * SECOND}, lateness_us=SECOND)
    assert clocks.watermark_us == NEVER
    clocks = decide_idle(clocks, now_us=0, with_lines=[0], known=[0, 1], idle_after_us=5 * SECOND)
    clocks = decide_idle(clocks, now_us=4 * SECOND, with_lines=[0], known=[0, 1], idle_after_us=5 * SECOND)
    assert not clocks.partitions[1].is_idle
    clocks = decide_idle(clocks, now_us=5 * SECOND, with_lines=[0], known=[0, 1], idle_after_us=5 * SECOND)
    assert clocks.partitions[1].is_idle
    assert advance(clocks, {}, lateness_us=SECOND).watermark_us == 89 * SECOND


def test_a_partition_with_lines_is_idle_no_more() -> None:
    clocks = Clocks({0: LogClock(5, True, 0)})
    assert not decide_idle(clocks, now_us=9, with_lines=[0], known=[], idle_after_us=1).partitions[0].is_idle


def test_when_all_are_idle_nothing_waits() -> None:
    clocks = advance(Clocks.begin([0, 1]), {0: 90 * SECOND, 1: 60 * SECOND}, lateness_us=SECOND)
    assert finish(clocks).watermark_us == 90 * SECOND + 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12), st.booleans())))
def test_a_watermark_never_goes_back(steps: list[tuple[int, int, bool]]) -> None:
    clocks = Clocks.begin(range(4))
    for number, time, idle in steps:
        if idle:
            idle_clock = LogClock(clocks.partitions[number].max_us, True, 0)
            clocks = Clocks({**clocks.partitions, number: idle_clock},
                            clocks.watermark_us)  # fmt: skip
        after = advance(clocks, {number: time}, lateness_us=SECOND)
        assert after.watermark_us >= clocks.watermark_us
        clocks = after


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(st.integers(), st.booleans(), st.integers())), st.integers()
)
def test_clocks_are_the_same_after_storing(
    partitions: dict[int, tuple[int, bool, int]], watermark: int
) -> None:
    clocks = Clocks({number: LogClock(*each) for number, each in partitions.items()}, watermark)
    assert Clocks.unpack(clocks.pack()) == clocks


def test_clocks_of_another_version_are_refused() -> None:
    with pytest.raises(DecodeError, match="CLOCKS_VERSION"):
        Clocks.unpack(b'{"version": 2}')


def test_a_partition_that_was_seen_in_the_future_is_waited_for_as_if_it_was_seen_now() -> None:
    clocks = Clocks({0: LogClock(5 * SECOND, False, 3600 * SECOND)}, 4 * SECOND)
    for now, is_idle in ((10, False), (14, False), (15, True)):
        clocks = decide_idle(clocks, now_us=now * SECOND, with_lines=[], known=[0], idle_after_us=5 * SECOND)
        assert clocks.partitions[0].is_idle == is_idle


def test_a_clock_that_is_set_right_is_no_further_than_the_watermark_and_others_stay() -> None:
    clocks = Clocks({0: LogClock(900, True), 1: LogClock(50), 2: LogClock(40, True)}, 49)
    right = cap_at_watermark(clocks, [0, 2])
    assert [clock.max_us for clock in right.partitions.values()] == [49, 50, 40]
    assert right.watermark_us == 49


def test_time_runs_on_at_half_the_speed_only_if_nobody_is_waited_for() -> None:
    clocks = Clocks({0: LogClock(900, True), 1: LogClock(50, True)}, 901)
    assert pass_time(clocks, 100).watermark_us == 951
    assert pass_time(clocks, 0).watermark_us == 902
    waiting = Clocks({**clocks.partitions, 1: LogClock(50)}, 901)
    assert pass_time(waiting, 100) == waiting
    assert pass_time(Clocks(clocks.partitions), 100).watermark_us == NEVER
