"""Moving a stream by hand: resolved to numbers, in one direction only, never outside the log."""

from __future__ import annotations

import pytest

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import At, Earliest, Latest, Since, TopicPartition, TopicView
from penstock.core.offsets.rewinds import (
    ByRecords,
    LogBounds,
    RewindDirection,
    RewindTarget,
    ToOffsets,
    needs_log,
    plan_adoption,
    plan_replacement,
    plan_rewind,
)
from penstock.core.offsets.stream_position import StreamPosition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OLD, NEW = b"\x01" * 16, b"\x02" * 16
HERE = StreamPosition({T0: 50, T1: 90, U0: 7}, {"t": OLD, "u": OLD}, {T0: 3, T1: 4, U0: 5}, starts={T0: 40})
LOG = LogBounds({T0: 10, T1: 20, U0: 0}, {T0: 100, T1: 95, U0: 7}, {T0: 30, T1: None, U0: 2})


@pytest.mark.parametrize(
    ("target", "direction", "after"),
    [
        (ByRecords(-20), RewindDirection.BACK, {T0: 30, T1: 70, U0: 0}),
        (ByRecords(-1000), RewindDirection.BACK, {T0: 10, T1: 20, U0: 0}),  # not before the log's start
        (ByRecords(1000), RewindDirection.AHEAD, {T0: 100, T1: 95, U0: 7}),  # not behind its end
        (ByRecords(5), RewindDirection.BACK, HERE.offsets),  # a rewind moves nothing ahead
        (ByRecords(-5), RewindDirection.AHEAD, HERE.offsets),
        (At(60), RewindDirection.BACK, {T0: 50, T1: 60, U0: 7}),  # T0 is already before it
        (At(60), RewindDirection.AHEAD, {T0: 60, T1: 90, U0: 7}),
        (At(60), RewindDirection.EITHER, {T0: 60, T1: 60, U0: 7}),
        (Earliest(), RewindDirection.BACK, LOG.earliest),
        (Latest(), RewindDirection.AHEAD, LOG.latest),
        (Since(1), RewindDirection.BACK, {T0: 30, T1: 90, U0: 2}),  # nothing in T1 is that young
        (Since(1), RewindDirection.EITHER, {T0: 30, T1: 95, U0: 2}),
        (ToOffsets({T1: 21}), RewindDirection.BACK, {T0: 50, T1: 21, U0: 7}),
    ],
)
def test_each_target_is_bound_within_the_log_and_one_way_only(
    target: RewindTarget, direction: RewindDirection, after: dict[TopicPartition, int]
) -> None:
    plan = plan_rewind(HERE, target, direction, log=LOG)
    assert plan.after.offsets == after
    moved = {each for each, offset in after.items() if HERE.offsets[each] != offset}
    assert set(plan.after.leader_epochs) == set(HERE.offsets) - moved
    assert plan.after.starts == ({} if moved else HERE.starts)
    assert plan.after.topic_ids == HERE.topic_ids
    assert plan.changes_nothing == (not moved)
    assert [each.partition for each in plan.moves] == [T0, T1, U0]


def test_what_did_not_go_where_it_was_asked_to_is_told() -> None:
    told = [str(each) for each in plan_rewind(HERE, At(99), RewindDirection.AHEAD, log=LOG).moves]
    assert told == [
        "t-0: 50 -> 99",
        "t-1: 90 -> 95 (the log ends there, not at 99)",
        "u-0: 7 -> 7 (the log ends there, not at 99)",
    ]
    told = [str(each) for each in plan_rewind(HERE, At(60), RewindDirection.BACK, log=LOG).moves]
    assert told[0] == "t-0: 50 -> 50 (stays: 60 lies ahead)"
    told = [str(each) for each in plan_rewind(HERE, Since(1), log=LOG).moves]
    assert told[1] == "t-1: 90 -> 95 (the end of the log: no record is of that time or later)"


def test_without_the_log_offsets_are_taken_as_they_are_and_times_are_refused() -> None:
    plan = plan_rewind(HERE, At(3), RewindDirection.BACK)
    assert plan.after.offsets == {T0: 3, T1: 3, U0: 3}
    assert "not looked at" in plan.notes[0]
    for target in (Earliest(), Latest(), Since(1)):
        assert needs_log(target)
        with pytest.raises(OptionError, match="LOG_NEEDED"):
            plan_rewind(HERE, target)
    assert not any(map(needs_log, (ByRecords(1), At(1), ToOffsets({}))))


def test_only_what_is_named_moves() -> None:
    assert plan_rewind(HERE, At(0), only=[T1]).after.offsets == {T0: 50, T1: 0, U0: 7}
    stranger = TopicPartition("v", 0)
    for wrong in (
        lambda: plan_rewind(HERE, At(0), only=[stranger]),
        lambda: plan_rewind(HERE, ToOffsets({stranger: 1})),
    ):
        with pytest.raises(OptionError, match=r"NOT_IN_STREAM.*v-0.*t-0, t-1, u-0"):
            wrong()


def test_a_restored_topic_is_gone_on_with_at_the_same_offsets() -> None:
    """It has a new id, its epochs are forgotten, and a position outside it goes to the nearer end."""
    view = TopicView("t", (0, 1), topic_id=NEW, leader_epochs=(0, 0))
    plan = plan_adoption(HERE, "t", view, LogBounds({T0: 60, T1: 0}, {T0: 70, T1: 80}))
    assert plan.after == StreamPosition({T0: 60, T1: 80, U0: 7}, {"t": NEW, "u": OLD}, {U0: 5})
    assert [each.note for each in plan.moves] == [
        "the log begins there, not at 50",
        "the log ends there, not at 90",
    ]
    (told,) = plan.notes
    assert told.startswith(f"Topic t: id {OLD.hex()} -> {NEW.hex()}. Right only if it holds the same records")
    same = plan_adoption(HERE, "t", TopicView("t", (0, 1), topic_id=OLD), LOG)
    assert same.changes_nothing
    with pytest.raises(OffsetStoreError, match=r"ADOPTED_TOPIC_TOO_SMALL.*t-1"):
        plan_adoption(HERE, "t", TopicView("t", (0,), topic_id=NEW), LOG)
    with pytest.raises(OptionError, match="NOT_IN_STREAM"):
        plan_adoption(HERE, "v", TopicView("v", (0,), topic_id=NEW), LOG)


def test_a_whole_position_takes_the_place_of_another() -> None:
    plan = plan_replacement(StreamPosition({T0: 1, T1: 2}), StreamPosition({T1: 3, U0: 4}))
    assert [str(each) for each in plan.moves] == ["t-0: 1 -> -", "t-1: 2 -> 3", "u-0: - -> 4"]
    assert not plan_replacement(None, StreamPosition({})).changes_nothing
    assert plan_replacement(HERE, HERE).changes_nothing
