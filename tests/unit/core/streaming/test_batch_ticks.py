"""The times of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streaming.batch_ticks import next_tick


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (None, 1_000, 1_000),
        (None, 1_001, 2_000),
        (1_000, 1_000, 2_000),
        (1_000, 1_400, 2_000),
        (1_000, 2_000, 2_000),
        (1_000, 2_300, 2_000),  # late, but its time is the one it was planned for
        (1_000, 9_999, 9_000),  # eight were missed: one batch
    ],
)
def test_a_batch_runs_at_the_next_multiple_and_missed_ones_are_one(
    last: int | None, now: int, expected: int
) -> None:
    """I14: batch times are multiples of the interval."""
    assert next_tick(last, now, 1_000) == expected


@given(st.integers(0, 10**13), st.integers(1, 10**6), st.lists(st.integers(0, 10**7), max_size=20))
def test_times_only_grow_and_are_never_more_than_an_interval_ahead(
    now: int, interval: int, steps: list[int]
) -> None:
    last = None
    for step in steps:
        tick = next_tick(last, now, interval)
        assert tick % interval == 0
        assert last is None or tick > last
        assert tick < max(now, last or 0) + interval + 1
        last, now = tick, max(now, tick) + step
