"""What a loss is, how losses are joined, and how they add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.losses.loss_ranges import Loss, merge_losses, summarise_losses
from penstock.engines.reading.loss_book import LossBook


def make_loss(start: int, until: int, *, condition: str = "DATA_LOST", partition: int = 0) -> Loss:
    return Loss(condition, "t", partition, start, until)


@pytest.mark.parametrize(("partition", "start", "until"), [(0, 5, 4), (0, -1, 4), (-1, 0, 4)])
def test_a_range_that_is_none_is_refused(partition: int, start: int, until: int) -> None:
    with pytest.raises(ValueError, match="is no range"):
        make_loss(start, until, partition=partition)


def test_a_loss_tells_its_condition_place_range_and_reason() -> None:
    loss = Loss("DATA_LOST", "t", 3, 5, 6, detail="It aged out.")
    assert str(loss) == "[DATA_LOST] t-3: 1 offset from 5 until 6. It aged out."
    assert str(make_loss(5, 5)) == "[DATA_LOST] t-0: offsets from 5 on, how many is not known."


def test_a_report_tells_of_how_many_losses_nobody_knows_the_size() -> None:
    """0 offsets next to 2 ranges would read as if nothing was lost."""
    book = LossBook(None)
    for _ in range(2):  # each one is reported once
        book.keep([make_loss(5, 5), make_loss(7, 7, partition=1)])
    assert book.sum_up() == {"ranges": 2, "offsets": 0, "openEnds": 2}
    book.keep([make_loss(1, 4, partition=2)])
    assert book.sum_up() == {"ranges": 3, "offsets": 3, "openEnds": 2}


def test_ranges_that_touch_or_overlap_become_one() -> None:
    pieces = [make_loss(7, 9), make_loss(0, 3), make_loss(3, 5), make_loss(8, 12)]
    assert merge_losses(pieces) == (make_loss(0, 5), make_loss(7, 12))


def test_joined_losses_keep_all_details_once() -> None:
    one, other = replace(make_loss(0, 3), detail="First."), replace(make_loss(3, 5), detail="Second.")
    assert merge_losses([other, one, one]) == (replace(make_loss(0, 5), detail="First. Second."),)


@pytest.mark.parametrize(
    "other",
    [
        Loss("OTHER_REASON", "t", 0, 3, 5),
        Loss("DATA_LOST", "u", 0, 3, 5),
        Loss("DATA_LOST", "t", 1, 3, 5),
        Loss("DATA_LOST", "t", 0, 3, 5, b"\x01" * 16),
        Loss("DATA_LOST", "t", 0, 4, 5),
        Loss("DATA_LOST", "t", 0, 1, 1),
    ],
    ids=["reason", "topic", "partition", "topic id", "gap", "unknown end"],
)
def test_what_is_not_the_same_loss_stays_apart(other: Loss) -> None:
    assert set(merge_losses([make_loss(0, 3), other])) == {make_loss(0, 3), other}


def test_a_sum_counts_an_offset_once_whatever_the_reasons() -> None:
    recreated = Loss("TOPIC_RECREATED", "t", 0, 0, 4, b"\x01" * 16)
    losses = [make_loss(0, 6), make_loss(4, 10, condition="OTHER_REASON"), make_loss(20, 20), recreated]
    found = summarise_losses([*losses, Loss("DATA_LOST", "a", 0, 0, 1)])
    assert list(found) == ["a", "t"]
    # Offsets 0 to 9 of one topic, and 0 to 3 of the topic that had the name before.
    assert (found["t"].offsets, found["t"].ranges, found["t"].open_ends) == (14, 4, 1)


ranges = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))
losses = st.builds(
    lambda condition, partition, range_: make_loss(*range_, condition=condition, partition=partition),
    st.sampled_from(["DATA_LOST", "OTHER_REASON"]),
    st.integers(0, 1),
    ranges,
)


@given(st.lists(losses, max_size=20))
def test_joining_and_summing_agree_with_sets_of_offsets(given_losses: list[Loss]) -> None:
    merged = merge_losses(given_losses)
    for condition in ("DATA_LOST", "OTHER_REASON"):
        for partition in (0, 1):
            chosen = [
                [x for x in some if (x.condition, x.partition) == (condition, partition)]
                for some in (given_losses, merged)
            ]
            before, after = ([n for x in some for n in range(x.start, x.until)] for some in chosen)
            assert set(before) == set(after)
            assert len(after) == len(set(after))
            open_ends = [{x.start for x in some if not x.has_known_end} for some in chosen]
            assert open_ends[0] == open_ends[1]
    assert merge_losses(merged) == merged
    assert merge_losses(reversed(given_losses)) == merged
    distinct = {(x.partition, n) for x in given_losses for n in range(x.start, x.until)}
    assert sum(each.offsets for each in summarise_losses(given_losses).values()) == len(distinct)
