"""What has happened to a log since a position, and how far the next batch goes, decided without any I/O."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

import pytest

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.losses.stream_loss_errors import explain_stream_losses
from penstock.core.model import At, Earliest, TopicPartition, TopicView
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.planning.partition_selection import (
    Selection,
    SelectPartitions,
    SelectPattern,
    SelectTopics,
)
from penstock.core.planning.task_splitting import PlanLimits
from penstock.core.planning.topic_pattern import TopicPattern
from penstock.core.streaming.log_changes import Course, StreamView, chart
from penstock.core.streaming.log_questions import LogLook, find_questions
from penstock.core.streaming.next_batch import aim, holds_back, plan_batch, share_budget, take

ID, OTHER_ID = b"a" * 16, b"b" * 16
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
T = SelectTopics(("t",))


def topic(partitions: int = 2, *, name: str = "t", topic_id: bytes = ID, epoch: int = 3) -> TopicView:
    numbers = tuple(range(partitions))
    return TopicView(name, numbers, topic_id, leader_epochs=(epoch,) * partitions)


def at(offsets: Mapping[TopicPartition, int], **more: object) -> StreamPosition:
    epochs = dict.fromkeys(offsets, 3)
    return StreamPosition(offsets, {"t": ID}, epochs, **more)  # type: ignore[arg-type]


def see(
    latest: Mapping[TopicPartition, int],
    *,
    earliest: Mapping[TopicPartition, int] | None = None,
    epoch_ends: Mapping[TopicPartition, int] | None = None,
    topics: list[TopicView] | None = None,
) -> StreamView:
    views = {view.name: view for view in (topics or [topic(len(latest))])}
    return StreamView(views, latest, earliest or {}, epoch_ends or {})


def doubt(
    position: StreamPosition, view: TopicView, latest: Mapping[TopicPartition, int]
) -> tuple[Set[TopicPartition], Mapping[TopicPartition, int]]:
    """Return whose start to ask for, and the ends of which epochs, when topics and ends are known."""
    look = LogLook(T, position, {}, {}, {"t": view}, tuple(latest), latest, agrees=True)
    asked = find_questions(look)
    return asked.earliest, asked.epochs


def conditions(course: Course) -> list[tuple[str, str, int, int]]:
    return [
        (each.condition, f"{each.topic}-{each.partition}", each.start, each.until) for each in course.losses
    ]


# --- the ordinary ---------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_stands_and_to_the_ends_there_are() -> None:
    course = chart(T, at({T0: 5, T1: 7}), see({T0: 9, T1: 7}, earliest={T0: 0}))
    assert (course.begins, course.ends, course.losses) == ({T0: 5, T1: 7}, {T0: 9, T1: 7}, ())
    assert course.waiting == 4
    end = take(course)
    assert end.offsets == {T0: 9, T1: 7}
    assert (end.topic_ids, end.leader_epochs, end.starts) == ({"t": ID}, {T0: 3, T1: 3}, {})


def test_an_idle_stream_keeps_its_very_position() -> None:
    """B026, T48: it is the same object, so the text is the same, and there is no batch."""
    position = at({T0: 5, T1: 7})
    assert take(chart(T, position, see({T0: 5, T1: 7}))) is position


def test_an_idle_stream_keeps_its_position_when_only_a_leader_has_moved() -> None:
    position = at({T0: 5})
    view = see({T0: 5}, epoch_ends={T0: 5}, topics=[topic(1, epoch=4)])
    assert take(chart(T, position, view)) is position


def test_the_first_end_carries_where_the_stream_began() -> None:
    """B021, F23: a repeated first batch begins there, whatever `latest` is by then."""
    first = at({T0: 5, T1: 7}, starts={T0: 5, T1: 7})
    end = take(chart(T, first, see({T0: 9, T1: 7}, earliest={T0: 0})))
    assert end.starts == {T0: 5, T1: 7}
    resolved_again = at({T0: 9, T1: 9}, starts={T0: 9, T1: 9})
    ((order,),) = plan_batch(resolved_again, end, PlanLimits())
    assert (order.partition, order.start, order.until) == (0, At(5), At(9))


def test_a_later_end_carries_no_start_that_the_position_before_tells() -> None:
    first = at({T0: 9, T1: 7}, starts={T0: 5, T1: 7})
    end = take(chart(T, first, see({T0: 12, T1: 7}, earliest={T0: 0})))
    assert end.starts == {T1: 7}  # nothing of it has been read, so it still has its start


def test_a_new_partition_is_read_from_its_first_offset() -> None:
    """B006, F29: and its start is kept in the end, for a repeated batch."""
    course = chart(T, at({T0: 5}), see({T0: 5, T1: 4}, earliest={T1: 0}))
    assert course.added == (T1,)
    assert any("t-1" in each for each in course.news)
    end = take(course)
    assert (end.offsets, end.starts) == ({T0: 5, T1: 4}, {T1: 0})


def test_a_new_and_empty_partition_is_no_batch() -> None:
    position = at({T0: 5})
    assert take(chart(T, position, see({T0: 5, T1: 0}, earliest={T1: 0}))) is position


def test_no_partition_at_all_is_never_a_new_position() -> None:
    """B027, T14: it would make every partition look new the next time."""
    position = at({T0: 5})
    view = StreamView({}, {})
    course = chart(SelectPattern(TopicPattern("t.*")), position, view)
    assert take(course) is position


def test_a_pattern_that_matched_nothing_reads_the_first_topic_from_its_beginning() -> None:
    course = chart(SelectPattern(TopicPattern("t.*")), StreamPosition({}), see({T0: 9}, earliest={T0: 4}))
    assert (course.begins, course.losses) == ({T0: 4}, ())
    assert take(course).starts == {T0: 4}


def without_ids(view: TopicView) -> TopicView:
    return replace(view, topic_id=None)


@pytest.mark.parametrize("end", [2, 9])
def test_without_topic_ids_epochs_that_begin_anew_tell_a_topic_made_anew(end: int) -> None:
    """Whether it ends before the position or after it, all of it is read from its beginning."""
    position = replace(at({T0: 5, T1: 7}), topic_ids={})
    topics = [without_ids(topic(2, epoch=0))]
    assert doubt(position, topics[0], {T0: end, T1: end}) == ({T0, T1}, {})
    course = chart(T, position, see({T0: end, T1: end}, earliest={T0: 0, T1: 0}, topics=topics))
    assert course.begins == {T0: 0, T1: 0}
    assert conditions(course) == [("TOPIC_RECREATED", "t-0", 5, 5), ("TOPIC_RECREATED", "t-1", 7, 7)]
    assert "leader epochs begin anew" in course.losses[0].detail
    end_of_batch = take(course)
    assert (end_of_batch.offsets, end_of_batch.leader_epochs) == ({T0: end, T1: end}, {T0: 0, T1: 0})
    again = chart(T, end_of_batch, see({T0: end, T1: end}, topics=topics))
    assert again.losses == ()


def test_without_topic_ids_a_topic_made_anew_and_still_empty_is_told_once() -> None:
    """Nothing of the new topic has been read, so only its epochs differ; they are stored."""
    position = replace(at({T0: 0}), topic_ids={})
    view = see({T0: 0}, earliest={T0: 0}, topics=[without_ids(topic(1, epoch=0))])
    end = take(chart(T, position, view))
    assert end.leader_epochs == {T0: 0}
    assert chart(T, end, view).losses == ()


def test_with_a_topic_id_that_stays_lower_epochs_are_the_same_topic() -> None:
    """The id is more reliable: the brokers' metadata came from a backup."""
    view = see({T0: 9}, earliest={T0: 0}, topics=[topic(1, epoch=0)])
    course = chart(T, at({T0: 5}), view)
    assert (course.begins, course.losses) == ({T0: 5}, ())


# --- limits ---------------------------------------------------------------------------------------


def test_a_cap_is_shared_by_what_waits() -> None:
    """B037, F27: rounded down, but a partition with records always gets some."""
    course = chart(T, at({T0: 0, T1: 0, T2: 0}), see({T0: 1000, T1: 10, T2: 0}, earliest={T0: 0, T1: 0}))
    assert take(course, share_budget(course, [50], None)).offsets == {T0: 49, T1: 1, T2: 0}


def test_the_largest_cap_does_not_overflow() -> None:
    """B040: there are at most 64 bits of records."""
    course = chart(T, at({T0: 2**62}), see({T0: 2**62 + 7}, earliest={T0: 0}))
    assert take(course, share_budget(course, [2**63 - 1], None)).offsets == {T0: 2**62 + 7}


def test_a_budget_for_each_partition_is_kept() -> None:
    course = chart(T, at({T0: 0, T1: 0}), see({T0: 10, T1: 10}, earliest={T0: 0, T1: 0}))
    assert take(course, {T0: 3, T1: 99}).offsets == {T0: 3, T1: 10}


def test_the_tightest_limit_wins_in_each_partition() -> None:
    course = chart(T, at({T0: 0, T1: 0}), see({T0: 100, T1: 100}, earliest={T0: 0, T1: 0}))
    assert share_budget(course, [None, None], None) is None
    assert share_budget(course, [None, 80, 60], {T0: 20, T1: 90}) == {T0: 20, T1: 30}


def test_a_batch_waits_for_its_minimum_but_not_for_ever() -> None:
    """B038, B039: the first never waits; the delay counts from the previous batch."""
    course = chart(T, at({T0: 0}), see({T0: 9}, earliest={T0: 0}))
    assert holds_back(course, 10, 999, 1000)
    assert not holds_back(course, 10, 1000, 1000)
    assert not holds_back(course, 9, 0, 1000)
    assert not holds_back(course, 10, None, 1000)
    assert not holds_back(course, None, 0, 1000)


# --- what is lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [2, 50])
def test_a_recreated_topic_is_noticed_whether_its_end_is_lower_or_higher(end: int) -> None:
    """T10, T11, B052: the new one is read from its beginning, not from the old offset."""
    view = see({T0: end}, earliest={T0: 1}, topics=[topic(1, topic_id=OTHER_ID)])
    course = chart(T, at({T0: 5}), view, known_ends={T0: 8})
    assert conditions(course) == [
        ("TOPIC_RECREATED", "t-0", 5, 8),
        ("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", "t-0", 0, 1),
    ]
    after = take(course)
    assert (after.offsets, after.starts, after.topic_ids) == ({T0: end}, {T0: 1}, {"t": OTHER_ID})


def test_a_recreated_topic_with_nothing_in_it_is_remembered_as_the_new_one() -> None:
    """T10: otherwise the next batch would call it recreated again."""
    view = see({T0: 0}, earliest={T0: 0}, topics=[topic(1, topic_id=OTHER_ID)])
    after = take(chart(T, at({T0: 0}), view))
    assert after.topic_ids == {"t": OTHER_ID}
    assert plan_batch(at({T0: 0}), after, PlanLimits()) == ()


def test_a_truncated_log_goes_on_at_the_cut() -> None:
    """T12: the rows behind the cut are different rows and were never read."""
    view = see({T0: 9}, earliest={T0: 0}, epoch_ends={T0: 4}, topics=[topic(1, epoch=7)])
    course = chart(T, at({T0: 6}), view)
    assert conditions(course) == [("LOG_TRUNCATED", "t-0", 4, 6)]
    after = take(course)
    assert (after.offsets, after.starts, after.leader_epochs) == ({T0: 9}, {T0: 4}, {T0: 7})
    text = str(explain_stream_losses(course.losses))
    assert all(part in text for part in ("epoch 7, was 3", "[4, 6)", "ends at 9"))


def test_offsets_that_aged_out_are_lost_up_to_where_the_log_begins() -> None:
    """B061, G12: the exact range."""
    course = chart(T, at({T0: 2}), see({T0: 9}, earliest={T0: 6}))
    assert conditions(course) == [("START_OFFSET_RESET", "t-0", 2, 6)]
    after = take(course)
    assert (after.offsets, after.starts) == ({T0: 9}, {T0: 6})


def test_a_log_that_aged_out_altogether_still_moves_the_position() -> None:
    """Otherwise the same loss would be found again at every trigger, each time a little longer."""
    after = take(chart(T, at({T0: 2}), see({T0: 6}, earliest={T0: 6})))
    assert after.offsets == {T0: 6}


def test_an_end_that_went_back_is_doubted_and_never_becomes_an_end() -> None:
    """B063, T13: nothing is read twice, whatever a lagging broker says."""
    position = at({T0: 8})
    course = chart(T, position, see({T0: 5}, earliest={T0: 0}))
    assert conditions(course) == [("PARTITION_OFFSET_CHANGED", "t-0", 5, 8)]
    assert course.doubts
    assert take(course) is position


def test_an_end_that_went_back_behind_the_position_is_a_loss_of_what_was_seen() -> None:
    """T13: those rows existed, were not read, and no longer exist."""
    course = chart(T, at({T0: 3}), see({T0: 5}, earliest={T0: 0}), known_ends={T0: 9})
    assert conditions(course) == [("PARTITION_OFFSET_CHANGED", "t-0", 5, 9)]
    assert take(course).offsets == {T0: 5}


def test_a_partition_that_is_gone_is_told_with_what_it_last_held_and_keeps_its_position() -> None:
    """B061, F37, T14: if it was only hidden for a moment, nothing is read twice."""
    selection = SelectPattern(TopicPattern(".*"))
    other = TopicPartition("u", 0)
    position = StreamPosition({T0: 5, other: 1}, {"t": ID, "u": OTHER_ID}, {T0: 3})
    view = see({other: 4}, earliest={other: 0}, topics=[topic(1, name="u", topic_id=OTHER_ID)])
    course = chart(selection, position, view, known_ends={T0: 9})
    assert conditions(course) == [("PARTITIONS_DELETED", "t-0", 5, 9)]
    assert course.doubts
    after = take(course)
    assert (after.offsets, after.gone) == ({other: 4}, {T0: 5})
    assert chart(selection, after, view).losses == ()  # reported once, not at every trigger or restart
    assert (after.topic_ids, after.leader_epochs[T0]) == ({"t": ID, "u": OTHER_ID}, 3)
    back = see({T0: 7, other: 4}, earliest={T0: 0}, topics=[topic(1), topic(1, name="u", topic_id=OTHER_ID)])
    assert take(chart(selection, after, back)).offsets == {T0: 7, other: 4}


def test_a_subscribed_topic_that_is_gone_is_a_loss_but_one_never_seen_is_an_error() -> None:
    course = chart(T, at({T0: 5}), StreamView({}, {}))
    assert conditions(course) == [("PARTITIONS_DELETED", "t-0", 5, 5)]
    with pytest.raises(BrokerError, match=r"\[UNKNOWN_TOPIC\].*u"):
        chart(SelectTopics(("t", "u")), at({T0: 5}), see({T0: 5}))


def test_a_shared_group_is_named_when_partitions_are_gone() -> None:
    """B061: the hint for a fixed group id."""
    losses = chart(T, at({T0: 5}), StreamView({}, {})).losses
    assert "group g" in str(explain_stream_losses(losses, fixed_group="g"))
    assert "group" not in str(explain_stream_losses(losses))


def test_a_topic_that_is_no_longer_selected_is_no_loss() -> None:
    other = TopicPartition("u", 0)
    position = StreamPosition({T0: 5, other: 1}, {"t": ID})
    view = see({T0: 6}, earliest={T0: 0}, topics=[topic(1), topic(1, name="u")])
    course = chart(T, position, view)
    assert course.losses == ()
    assert any("u-0" in each for each in course.news)
    assert take(course).offsets == {T0: 6}
    assert find_questions(LogLook(T, position, {}, {})).topics == ("t", "u")


def test_a_new_partition_whose_first_rows_are_gone_is_a_loss_from_zero() -> None:
    """B061: it was never seen with offset 0."""
    course = chart(T, at({T0: 5}), see({T0: 5, T1: 9}, earliest={T1: 4}))
    assert conditions(course) == [("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", "t-1", 0, 4)]


def test_a_new_partition_without_a_first_offset_is_an_error_of_its_own() -> None:
    """B061: it was deleted again before it could be asked about."""
    with pytest.raises(DataLossError, match="INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"):
        chart(T, at({T0: 5}), see({T0: 5, T1: 9}))


def test_an_assigned_partition_that_does_not_exist_is_told() -> None:
    course = chart(SelectPartitions((T0, T2)), at({T0: 5}), see({T0: 6}, earliest={T0: 0}))
    assert any("t-2 does not exist" in each for each in course.news)


def test_many_losses_are_one_error_with_every_range() -> None:
    losses = chart(T, at({T0: 2, T1: 3}), see({T0: 9, T1: 9}, earliest={T0: 6, T1: 7})).losses
    error = explain_stream_losses(losses)
    assert error.condition == "START_OFFSET_RESET"
    assert "[2, 6)" in str(error)
    assert "[3, 7)" in str(error)


# --- what is asked ----------------------------------------------------------------------------------


def test_an_idle_stream_asks_for_no_starts_and_no_epochs() -> None:
    assert doubt(at({T0: 5}), topic(1), {T0: 5}) == (set(), {})


@pytest.mark.parametrize(
    ("position", "latest", "view"),
    [
        (at({}), {T0: 0}, topic(1)),
        (at({T0: 5}), {T0: 6}, topic(1)),
        (at({T0: 5}), {T0: 4}, topic(1)),
        (at({T0: 5}), {T0: 5}, topic(1, topic_id=OTHER_ID)),
    ],
)
def test_what_is_new_or_moved_or_another_is_asked_for_its_start(
    position: StreamPosition, latest: dict[TopicPartition, int], view: TopicView
) -> None:
    assert doubt(position, view, latest)[0] == {T0}


def test_a_position_seen_under_another_leader_is_asked_where_that_leaders_records_end() -> None:
    """T12: once; a log without epochs is not asked."""
    assert doubt(at({T0: 5}), topic(1, epoch=4), {T0: 5})[1] == {T0: 3}
    assert doubt(at({T0: 5}), TopicView("t", (0,), ID), {T0: 5})[1] == {}


# --- AvailableNow -----------------------------------------------------------------------------------


def targets(offsets: Mapping[TopicPartition, int], topic_id: bytes = ID) -> StreamPosition:
    return StreamPosition(offsets, {"t": topic_id})


def test_available_now_never_goes_past_the_ends_it_fixed() -> None:
    """B033: later records and later partitions wait for the next run."""
    course = chart(T, at({T0: 0}), see({T0: 50, T1: 5}, earliest={T0: 0, T1: 0}))
    assert take(aim(course, targets({T0: 9}))).offsets == {T0: 9}


def test_available_now_is_over_when_its_ends_are_reached() -> None:
    """T47: it returns the same position, and Spark ends the query."""
    position = at({T0: 9})
    assert take(aim(chart(T, position, see({T0: 50}, earliest={T0: 0})), targets({T0: 9}))) is position


def test_available_now_names_both_sets_when_a_partition_is_lost() -> None:
    """B034: it is an error whatever the loss option says."""
    course = chart(T, at({T0: 0, T1: 0}), see({T0: 5}, earliest={T0: 0}))
    with pytest.raises(DataLossError, match=r"AVAILABLE_NOW_PARTITIONS_LOST.*t-0, t-1; .*is t-0\."):
        aim(course, targets({T0: 5, T1: 5}))


def test_available_now_leaves_a_partition_lost_before_it_began_to_the_loss_option() -> None:
    """T47: this run was never going to read it; an error here would come back at every run."""
    course = aim(chart(T, at({T0: 0, T1: 3}), see({T0: 5}, earliest={T0: 0})), targets({T0: 5}))
    assert [(loss.condition, loss.partition) for loss in course.losses] == [("PARTITIONS_DELETED", 1)]
    end = take(course)
    assert (end.offsets, end.gone) == ({T0: 5}, {T1: 3})


def test_available_now_keeps_the_position_of_a_partition_that_was_hidden_when_it_began() -> None:
    """T14: it is not among this run's ends; if forgotten, it would be read again from its first row."""
    course = chart(T, at({T0: 0, T1: 3}), see({T0: 5, T1: 9}, earliest={T0: 0, T1: 0}))
    assert take(aim(course, targets({T0: 5}))).offsets == {T0: 5, T1: 3}


def test_available_now_may_start_after_its_ends() -> None:
    """B033: rows came between the looks at the ends and at `latest`; none of them is to be read."""
    position = at({T0: 7})
    assert take(aim(chart(T, position, see({T0: 8}, earliest={T0: 0})), targets({T0: 5}))) is position


@pytest.mark.parametrize(("end", "topic_id"), [(4, ID), (9, OTHER_ID)])
def test_available_now_shows_both_offsets_when_the_log_shrank(end: int, topic_id: bytes) -> None:
    """B035, T47: it would never reach its fixed end, or would reach another log's."""
    course = chart(T, at({T0: 0}), see({T0: end}, earliest={T0: 0}))
    with pytest.raises(DataLossError, match=rf"AVAILABLE_NOW_END_WENT_BACK.*up to 5.*ends at {end}"):
        aim(course, targets({T0: 5}, topic_id))


# --- tasks ------------------------------------------------------------------------------------------


def plan(
    before: StreamPosition, end: StreamPosition, limits: PlanLimits
) -> list[list[tuple[int, object, object]]]:
    return [
        [(order.partition, order.start, order.until) for order in task]
        for task in plan_batch(before, end, limits)
    ]


def test_small_ranges_share_a_task() -> None:
    before, end = at({T0: 0, T1: 0, T2: 4}), at({T0: 3, T1: 900, T2: 4})
    assert plan(before, end, PlanLimits(min_records_per_task=1000)) == [
        [(0, At(0), At(3)), (1, At(0), At(900))]
    ]
    assert plan(before, end, PlanLimits()) == [[(0, At(0), At(3))], [(1, At(0), At(900))]]


def test_ranges_that_share_a_task_stay_within_its_cap() -> None:
    before, end = at({T0: 0, T1: 0}), at({T0: 6, T1: 6})
    limits = PlanLimits(max_records_per_partition=10, min_records_per_task=8)
    assert plan(before, end, limits) == [[(0, At(0), At(6))], [(1, At(0), At(6))]]


def test_big_ranges_are_cut() -> None:
    before, end = at({T0: 0}), at({T0: 10})
    assert plan(before, end, PlanLimits(min_partitions=2)) == [[(0, At(0), At(5))], [(0, At(5), At(10))]]


def test_tasks_carry_the_topics_id() -> None:
    """T11: so the broker itself refuses a topic that is recreated after planning."""
    ((order,),) = plan_batch(at({T0: 0}), at({T0: 3}), PlanLimits())
    assert order.topic_id == ID


def test_a_batch_that_another_connector_planned_reads_new_partitions_from_their_beginning() -> None:
    before, end = StreamPosition({T0: 5}), StreamPosition({T0: 7, T1: 4})
    assert plan(before, end, PlanLimits()) == [[(0, At(5), At(7))], [(1, Earliest(), At(4))]]


def test_a_batch_that_runs_backwards_is_refused() -> None:
    with pytest.raises(DataLossError, match=r"PARTITION_OFFSET_CHANGED.*from 5 back to 2"):
        plan_batch(StreamPosition({T0: 5}), StreamPosition({T0: 2}), PlanLimits())


def _selections() -> list[Selection]:
    return [T, SelectPartitions((T0, T1)), SelectPattern(TopicPattern("t"))]


@pytest.mark.parametrize("selection", _selections())
def test_a_restart_may_change_how_partitions_are_selected(selection: Selection) -> None:
    """A position stores partitions, not how they were found."""
    course = chart(selection, at({T0: 5, T1: 7}), see({T0: 6, T1: 8}, earliest={T0: 0, T1: 0}))
    assert (take(course).offsets, course.losses) == ({T0: 6, T1: 8}, ())
