"""Sharing a limit by lag: Spark's rounding, and what holds for every limit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streaming.limit_sharing import share_by_lag

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("limit", "sizes", "shares"),
    [
        (10, [100, 100, 100], [3, 3, 3]),  # 3.33 each
        (10, [100, 10, 1], [9, 1, 1]),  # 9.009, 0.9009, 0.09: the small ones are rounded up, past the limit
        (10, [0, 5, 0], [0, 5, 0]),  # never past the end
        (1, [1000, 1000], [1, 1]),  # one half each is one each
        (7, [3, 4], [3, 4]),
        (1000, [3, 4], [3, 4]),
        (5, [], []),
        (5, [0, 0], [0, 0]),
        (0, [10], [0]),
        (3, [1, 1, 1], [1, 1, 1]),  # 3 * (1/3) is 1.0 in doubles
        (49, [1, 48], [1, 48]),
        (100, [29, 71], [28, 71]),  # 100 * 0.29 is 28.999999999999996: Spark loses one here, and so do we
    ],
)
def test_a_limit_is_shared_by_lag_and_rounded_as_spark_does(
    limit: int, sizes: list[int], shares: list[int]
) -> None:
    """B037: in proportion to the backlog, rounded down, but a partition with records gets at least one."""
    assert list(share_by_lag(limit, dict(enumerate(sizes))).values()) == shares


def test_the_largest_limit_takes_everything_and_does_not_overflow() -> None:
    """B040: the largest 64-bit number as a limit means no limit."""
    sizes = {"a": 5, "b": 2**62, "c": LARGEST}
    assert share_by_lag(LARGEST, {"a": 5, "b": 7}) == {"a": 5, "b": 7}
    shares = share_by_lag(LARGEST, sizes)
    assert all(0 < shares[each] <= sizes[each] for each in sizes)


@given(st.integers(1, LARGEST), st.lists(st.integers(0, 2**40), max_size=30))
def test_no_share_is_more_than_there_is_and_none_is_starved(limit: int, sizes: list[int]) -> None:
    """B037: bounds of every share, and of their sum."""
    shares = list(share_by_lag(limit, dict(enumerate(sizes))).values())
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert all((share > 0) == (size > 0) for share, size in zip(shares, sizes, strict=True))
    # Rounding up adds less than one for each partition; a double is exact to one part in 2**52.
    assert sum(shares) <= limit + len(sizes) + limit / 2**50


@given(st.integers(1, 10**6), st.lists(st.integers(1, 10**9), min_size=2, max_size=20))
def test_who_has_more_gets_no_less(limit: int, sizes: list[int]) -> None:
    shares = share_by_lag(limit, dict(enumerate(sizes)))
    in_order = sorted(shares, key=lambda each: sizes[each])
    assert all(shares[a] <= shares[b] for a, b in itertools.pairwise(in_order))
