"""The pace of batches, number by number: the estimate, its limits, and the share of each partition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streaming.backpressure import PaceState, Pacing, PidSettings
from tests.reference.pid_rate import SparkPid

SECOND = Pacing(target_ms=1000)
FIRST = SECOND.observe(PaceState(), 1_000, 2_000, 1_000)  # 2000 records/s, no estimate yet


def estimated(rate: float) -> PaceState:
    return PaceState(observed_at_ms=1_000, level=rate, is_estimate=True)


# --- settings -----------------------------------------------------------------------------------------


def test_the_gains_are_sparks() -> None:
    """B285: they are Spark's defaults."""
    assert PidSettings() == PidSettings(proportional=1.0, integral=0.2, derived=0.0, min_rate=100.0)


# --- the estimate -------------------------------------------------------------------------------------


def test_the_first_batch_gives_no_estimate_and_the_second_does() -> None:
    """B286: one point is a speed to compare with, but not yet a rate."""
    assert FIRST.rate is None
    assert SECOND.observe(FIRST, 2_000, 1_000, 1_000).rate == 1_000


@pytest.mark.parametrize(
    ("at_ms", "records", "processing_ms"),
    [(1_000, 500, 500), (999, 500, 500), (2_000, 0, 500), (2_000, 500, 0)],
    ids=["same time", "earlier", "no rows", "no duration"],
)
@pytest.mark.parametrize("state", [FIRST, estimated(700.0)], ids=["one before", "many before"])
def test_a_batch_that_tells_nothing_changes_nothing(
    state: PaceState, at_ms: int, records: int, processing_ms: int
) -> None:
    """B286: the same time twice, no rows, or no processing time."""
    assert SECOND.observe(state, at_ms, records, processing_ms) is state


@pytest.mark.parametrize(
    ("pid", "records", "processing_ms", "delay_ms", "rate"),
    [
        # speed 500, error 2000 - 500 = 1500: 2000 - 1500
        (PidSettings(), 1_000, 2_000, 0, 500),
        # the same, 300 ms late: 500 - 0.2 * (300 / 1000) * 500
        (PidSettings(), 1_000, 2_000, 300, 470),
        # late by four batches counts as one: 500 - 0.2 * 500
        (PidSettings(), 1_000, 2_000, 4_000, 400),
        # half the error only: 2000 - 0.5 * 1500
        (PidSettings(proportional=0.5), 1_000, 2_000, 0, 1_250),
        # faster: error 2000 - 8000 = -6000: 2000 + 6000
        (PidSettings(), 4_000, 500, 0, 8_000),
        # the error rose from 0 to 1500 within 2 s, that is 750 a second: 500 - 0.1 * 750
        (PidSettings(derived=0.1), 1_000, 2_000, 0, 425),
        # 10 records in 10 s is a speed of 1, below the minimum
        (PidSettings(), 10, 10_000, 0, 100),
        (PidSettings(min_rate=3), 10, 10_000, 0, 3),
    ],
)
def test_the_rate_after_one_more_batch(
    pid: PidSettings, records: int, processing_ms: int, delay_ms: int, rate: float
) -> None:
    """B287: it follows the speed, stays below it when late, never falls below the minimum. Done by hand."""
    pacing = Pacing(target_ms=1000, pid=pid)
    after = pacing.observe(FIRST, 3_000, records, processing_ms, delay_ms)
    assert after.rate == pytest.approx(rate)


_BATCH = st.tuples(
    st.integers(1, 10**6), st.integers(1, 60_000), st.integers(0, 1_000), st.integers(1, 9_000)
)
_GAIN = st.floats(0, 2)


@given(_GAIN, _GAIN, _GAIN, st.floats(0.5, 1_000), st.lists(_BATCH, max_size=12))
def test_while_no_batch_is_later_than_one_interval_rates_are_sparks(
    proportional: float, integral: float, derived: float, min_rate: float, batches: list[tuple[int, ...]]
) -> None:
    """B287: compared with a second implementation of Spark's estimator, with any gains."""
    pacing = Pacing(target_ms=1000, pid=PidSettings(proportional, integral, derived, min_rate))
    spark = SparkPid(1000, proportional, integral, derived, min_rate)
    state, now_ms, last = PaceState(), 0, None
    for records, processing_ms, delay_ms, pause_ms in batches:
        now_ms += pause_ms
        state = pacing.observe(state, now_ms, records, processing_ms, delay_ms)
        last = spark.compute(now_ms, records, processing_ms, delay_ms)
        assert (state.rate is None) == (last is None)
        assert state.rate is None or state.rate >= min_rate
        assert state.rate == (last if last is None else pytest.approx(last, rel=1e-6, abs=1e-3))


def test_a_batch_that_took_everything_in_time_does_not_lower_the_rate() -> None:
    """Ten records in 200 ms are 50 records/s, though the consumer could do 8000; a slow batch is believed."""
    state = estimated(8_000)
    assert SECOND.observe(state, 2_000, 10, 200, was_limited=False).rate == 8_000
    assert SECOND.observe(state, 2_000, 10, 200, was_limited=True).rate == 100
    assert SECOND.observe(state, 2_000, 3_000, 1_500, was_limited=False).rate == 2_000
    assert SECOND.observe(state, 2_000, 9_000, 900, was_limited=False).rate == 10_000


# --- the budget ---------------------------------------------------------------------------------------


def test_without_an_estimate_and_without_bounds_there_is_no_limit() -> None:
    assert SECOND.budget(PaceState(), {"a": 10**9}) is None
    assert SECOND.budget(FIRST, {"a": 10**9}) is None


def test_the_initial_rate_bounds_every_batch_until_there_is_an_estimate() -> None:
    """D27, I2, B222: including the second one, and any that follow batches without rows."""
    pacing = Pacing(target_ms=2_000, initial_rate=50)
    lags = {"a": 9_000, "b": 1_000}
    state = PaceState()
    assert pacing.budget(state, lags) == {"a": 90, "b": 10}
    for at_ms, records in ((1_000, 0), (2_000, 100), (3_000, 0)):
        state = pacing.observe(state, at_ms, records, 500)
        assert pacing.budget(state, lags) == {"a": 90, "b": 10}
    state = pacing.observe(state, 4_000, 100, 200)
    assert pacing.budget(state, lags) == {"a": 900, "b": 100}


def test_the_cap_of_a_partition_beats_the_initial_rate_and_the_estimate() -> None:
    """D28, I4, B222: a cap of 1 and an initial rate of 5 give one record per partition in a second."""
    pacing = Pacing(target_ms=1_000, initial_rate=5, max_rate_per_partition=1)
    lags = dict.fromkeys("abc", 100)
    assert pacing.budget(PaceState(), lags) == {"a": 1, "b": 1, "c": 1}
    assert pacing.budget(estimated(5_000), lags) == {"a": 1, "b": 1, "c": 1}


def test_the_cap_alone_is_cap_times_seconds() -> None:
    """B218: without backpressure, and never more than there is."""
    pacing = Pacing(target_ms=3_000, max_rate_per_partition=10)
    assert pacing.budget(PaceState(), {"a": 100, "b": 7, "c": 0}) == {"a": 30, "b": 7, "c": 0}


def test_the_estimate_is_shared_by_lag_and_held_under_the_cap() -> None:
    """B220, B221: 1000 a second over lags 8:1:1 with a cap of 500; half the rate, half the shares."""
    pacing = Pacing(target_ms=1_000, max_rate_per_partition=500)
    lags = {"a": 80_000, "b": 10_000, "c": 10_000}
    assert pacing.budget(estimated(1_000), lags) == {"a": 500, "b": 100, "c": 100}
    assert pacing.budget(estimated(500), lags) == {"a": 400, "b": 50, "c": 50}
    shorter = Pacing(target_ms=500, max_rate_per_partition=500)
    assert shorter.budget(estimated(1_000), lags) == {"a": 250, "b": 50, "c": 50}


def test_without_lag_there_is_nothing_to_share() -> None:
    """B219: and nothing is divided by zero."""
    assert Pacing(1_000, initial_rate=5).budget(PaceState(), {"a": 0, "b": 0}) == {"a": 0, "b": 0}
    assert Pacing(1_000, initial_rate=5).budget(estimated(100), {}) == {}


def test_the_minimum_keeps_a_small_partition_moving() -> None:
    """B223: its share of 100 would be 0.01; by default it gets one record, or more on request."""
    lags = {"large": 1_000_000, "small": 100}
    assert Pacing(1_000).budget(estimated(100), lags) == {"large": 99, "small": 1}
    pacing = Pacing(1_000, min_rate_per_partition=20)
    assert pacing.budget(estimated(100), lags) == {"large": 99, "small": 20}
    assert Pacing(10).budget(estimated(100), lags) == {"large": 1, "small": 1}
    assert pacing.budget(estimated(100), {**lags, "small": 3}) == {"large": 99, "small": 3}


_LAGS = st.dictionaries(st.integers(0, 50), st.integers(0, 2**40), max_size=20)
_RATE = st.floats(0.01, 1e7)


@given(_LAGS, st.none() | _RATE, st.none() | _RATE, _RATE, st.integers(1, 60_000))
def test_a_budget_keeps_all_its_bounds(
    lags: dict[int, int], rate: float | None, most: float | None, least: float, target_ms: int
) -> None:
    """B220, B223, B283: below lag and cap, above the minimum, and together no more than the rate allows."""
    pacing = Pacing(target_ms, max_rate_per_partition=most, min_rate_per_partition=least)
    budget = pacing.budget(PaceState() if rate is None else estimated(rate), lags)
    if budget is None:
        assert rate is None
        assert most is None
        return
    seconds = target_ms / 1000
    cap = 2**63 if most is None else max(1, most * seconds)
    floor = max(1, int(least * seconds))
    assert budget.keys() == lags.keys()
    for each, lag in lags.items():
        assert budget[each] <= min(lag, cap)
        assert budget[each] >= min(lag, floor, int(cap))
    if rate is not None:
        assert sum(budget.values()) <= rate * seconds + len(lags) * floor + 1


@given(_LAGS.filter(lambda lags: len(lags) > 1), _RATE)
def test_who_has_more_waiting_gets_no_less(lags: dict[int, int], rate: float) -> None:
    """B220: shares follow the lag."""
    budget = SECOND.budget(estimated(rate), lags)
    assert budget is not None
    in_order = sorted(lags, key=lambda each: lags[each])
    assert all(budget[a] <= budget[b] for a, b in itertools.pairwise(in_order))
