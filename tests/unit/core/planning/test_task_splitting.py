"""Cutting ranges into tasks: Spark's own numbers, case by case, and laws that hold for any ranges."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.core.errors import OptionError
from penstock.core.model import OffsetRange
from penstock.core.planning.task_splitting import MOST_PIECES, pack_sizes, split_ranges
from tests.reference.task_splitting import split_like_spark

Range = tuple[int, int, int]  # partition, start, until


def split(ranges: list[Range], wanted: int | None = None, cap: int | None = None) -> list[Range]:
    given_ranges = [OffsetRange("t", *each) for each in ranges]
    pieces = split_ranges(given_ranges, min_partitions=wanted, max_records=cap)
    return [(each.partition, each.start, each.until) for each in pieces]


def test_without_the_option_each_range_stays_one() -> None:
    """B108: one range per partition."""
    assert split([(1, 1, 2), (2, 5, 9)]) == [(1, 1, 2), (2, 5, 9)]


def test_without_the_option_an_empty_range_is_left_out() -> None:
    """B109: empty ranges are left out."""
    assert split([(1, 1, 2), (2, 1, 1)]) == [(1, 1, 2)]


def test_as_many_partitions_as_asked_for_are_not_split() -> None:
    """B110: enough ranges, nothing is cut."""
    assert split([(1, 1, 2), (2, 1, 2), (3, 1, 2)], 3) == [(1, 1, 2), (2, 1, 2), (3, 1, 2)]


def test_one_partition_becomes_n_equal_pieces() -> None:
    """B112: four offsets, four pieces."""
    assert split([(1, 1, 5)], 4) == [(1, 1, 2), (1, 2, 3), (1, 3, 4), (1, 4, 5)]


def test_of_skewed_partitions_only_the_big_one_is_split() -> None:
    """B113: the small one stays whole."""
    assert split([(1, 1, 5), (2, 1, 21)], 4) == [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]


def test_an_empty_range_takes_no_piece() -> None:
    """B114: all four pieces go to the range that has rows."""
    assert split([(1, 1, 1), (2, 1, 21)], 4) == [(2, 1, 6), (2, 6, 11), (2, 11, 16), (2, 16, 21)]


def test_a_tiny_partition_keeps_one_piece_and_the_huge_one_takes_the_others() -> None:
    """B115: very skewed."""
    assert split([(1, 1, 2), (2, 1, 1001)], 4) == [(1, 1, 2), (2, 1, 334), (2, 334, 667), (2, 667, 1001)]


def test_fewer_pieces_than_partitions_merge_nothing() -> None:
    """B116: nothing is merged or cut."""
    assert split([(1, 1, 5), (2, 1, 21)], 1) == [(1, 1, 5), (2, 1, 21)]


def test_the_last_piece_takes_what_does_not_divide() -> None:
    """B117: 10 in 3 is 3, 3, 4."""
    assert split([(1, 1, 11)], 3) == [(1, 1, 4), (1, 4, 7), (1, 7, 11)]


def test_empty_ranges_are_ignored_when_others_are_split() -> None:
    """B118: as if the empty one were not there."""
    expected = [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]
    assert split([(1, 1, 5), (2, 1, 21), (3, 1, 1)], 4) == expected


def test_rounding_never_drops_an_offset() -> None:
    """B119, T28: rather one piece more than requested than one offset fewer."""
    ten = [(0, 3), (3, 6), (6, 10)]
    expected = [(1, *each) for each in ten] + [(2, *each) for each in ten] + [(3, 0, 1)]
    assert split([(1, 0, 10), (2, 0, 10), (3, 0, 1)], 6) == expected


def test_three_large_ranges_get_pieces_in_proportion_to_size() -> None:
    """B120: 10000, 15000 and 20000 in nine pieces of 5000."""
    pieces = split([(1, 0, 10_000), (2, 0, 15_000), (3, 0, 20_000)], 9)
    assert [each[0] for each in pieces] == [1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert all(until - start == 5000 for _, start, until in pieces)


def test_one_small_range_stays_whole_beside_two_large_ones() -> None:
    """B121: the small one is left out of the proportion."""
    expected = [
        (1, 0, 500),
        (2, 0, 6000),
        (2, 6000, 12_000),
        (3, 0, 5000),
        (3, 5000, 10_000),
        (3, 10_000, 15_001),
    ]
    assert split([(1, 0, 500), (2, 0, 12_000), (3, 0, 15_001)], 6) == expected


def test_two_small_ranges_stay_whole_beside_a_large_one() -> None:
    """B122: four of six pieces go to the large one."""
    expected = [(1, 0, 1), (2, 0, 1), (3, 0, 2500), (3, 2500, 5000), (3, 5000, 7500), (3, 7500, 10_000)]
    assert split([(1, 0, 1), (2, 0, 1), (3, 0, 10_000)], 6) == expected


@pytest.mark.parametrize(
    ("until", "expected"), [(5, [(1, 1, 5)]), (2, [(1, 1, 2)]), (6, [(1, 1, 3), (1, 3, 6)])]
)
def test_a_range_at_the_cap_stays_whole_and_above_it_splits_evenly(until: int, expected: list[Range]) -> None:
    """B123: five offsets under a cap of four become two and three."""
    assert split([(1, 1, until)], cap=4) == expected


def test_the_cap_holds_over_several_partitions() -> None:
    """B124: each partition on its own."""
    expected = [
        (1, 1, 20),
        (1, 20, 40),
        (2, 1, 17),
        (2, 17, 33),
        (2, 33, 50),
        (3, 1, 20),
        (3, 20, 40),
        (3, 40, 60),
    ]
    assert split([(1, 1, 40), (2, 1, 50), (3, 1, 60)], cap=20) == expected


def test_a_low_piece_count_leaves_the_cap_in_charge() -> None:
    """B125: one piece wanted, the cap needs two."""
    assert split([(1, 1, 40)], 1, 20) == [(1, 1, 20), (1, 20, 40)]


def test_a_high_piece_count_splits_further_than_the_cap() -> None:
    """B126: the cap gives two, four are wanted."""
    assert split([(1, 1, 40)], 4, 20) == [(1, 1, 10), (1, 10, 20), (1, 20, 30), (1, 30, 40)]


def test_halves_round_up_as_in_scala_and_not_to_even() -> None:
    """T28: shares of 2.5 and 2.5 out of 5 are 3 and 3; Python's round would give 2 and 2."""
    assert len(split([(1, 0, 50), (2, 0, 50)], 5)) == 6


def test_a_cap_that_would_drown_the_driver_is_refused() -> None:
    """T28: a cap of one over a billion offsets is an error, not an endless plan."""
    with pytest.raises(OptionError) as caught:
        split([(1, 0, 10**9)], cap=1)
    assert caught.value.condition == "TOO_MANY_TASKS"
    assert "`maxRecordsPerPartition` 1 " in caught.value.what


@pytest.mark.parametrize(("wanted", "cap"), [(MOST_PIECES + 1, None), (10**12, None), (10**9, 10**6)])
def test_a_piece_count_that_would_drown_the_driver_is_refused(wanted: int, cap: int | None) -> None:
    """T28: more tasks than the driver can plan are an error, whichever option asks for them."""
    with pytest.raises(OptionError) as caught:
        split([(1, 0, 10**9), (2, 0, 10)], wanted, cap)
    assert caught.value.condition == "TOO_MANY_TASKS"
    assert f"`minPartitions` {wanted} " in caught.value.what


def test_a_huge_piece_count_over_few_offsets_makes_no_more_pieces_than_offsets() -> None:
    """T28: the resulting number of tasks counts, not the number in the option."""
    assert len(split([(1, 0, 30), (2, 0, 20)], 10**12)) == 50


def test_the_piece_count_is_no_fiction_for_the_largest_offsets() -> None:
    """T28: sizes near the end of 64 bits neither overflow nor lose an offset."""
    top = 2**63 - 1
    pieces = split([(1, 0, top)], 7)
    assert pieces[0][1] == 0
    assert pieces[-1][2] == top
    assert len(pieces) == 7


sizes = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
wanted_pieces = st.none() | st.integers(1, 60)
caps = st.none() | st.integers(1, 3000)


@settings(deadline=None)
@given(sizes, wanted_pieces, caps)
def test_pieces_cover_every_range_once_and_in_order(
    counts: list[int], wanted: int | None, cap: int | None
) -> None:
    """B119, T28: no gap, no overlap, no empty piece, and the order of the ranges is kept."""
    ranges = [(number, 100 * number, 100 * number + count) for number, count in enumerate(counts)]
    assume(cap is None or sum(counts) / cap < 50_000)
    pieces = split(ranges, wanted, cap)
    assert pieces == sorted(pieces)
    assert all(start < until for _, start, until in pieces)
    for number, start, until in ranges:
        mine = [each for each in pieces if each[0] == number]
        edges = [edge for each in mine for edge in each[1:]]
        assert edges[1:-1:2] == edges[2::2]
        assert (edges[:1] + edges[-1:]) == ([start, until] if start < until else [])
    if cap is not None:
        assert all(until - start <= cap for _, start, until in pieces)


@settings(deadline=None)
@given(sizes, wanted_pieces, caps)
def test_the_numbers_are_those_of_the_reference(
    counts: list[int], wanted: int | None, cap: int | None
) -> None:
    """T28: the planner is compared with an independent implementation of the rule."""
    ranges = [(number, 7 * number, 7 * number + count) for number, count in enumerate(counts)]
    expected = split_like_spark([("t", *each) for each in ranges], wanted, cap)
    assert [("t", *each) for each in split(ranges, wanted, cap)] == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 150), st.none() | st.integers(100, 300))
def test_packing_keeps_every_range_once_and_in_order(counts: list[int], least: int, most: int | None) -> None:
    groups = pack_sizes(counts, at_least=least, at_most=most)
    assert [index for group in groups for index in group] == list(range(len(counts)))
    totals = [sum(counts[index] for index in group) for group in groups]
    if most is None:
        assert all(total >= least for total in totals) or len(groups) == 1
    else:
        assert all(total <= most for total in totals)
