"""From rules and a snapshot to work orders, with the same decisions as Spark's batch read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import BrokerError, OptionError, PenstockError
from penstock.core.model import (
    Ago,
    At,
    Bound,
    Committed,
    Earliest,
    Latest,
    Position,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
    TopicView,
)
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.position_rules import ForAll, ForEach, PositionRule
from penstock.core.options.stream_options import parse_stream_options
from penstock.core.planning.offset_planning import PlanStep, explain_losses, find_questions, step
from penstock.core.planning.partition_selection import (
    Selection,
    SelectPartitions,
    SelectPattern,
    SelectTopics,
    select_partitions,
)
from penstock.core.planning.range_bounds import BatchRead, Snapshot
from penstock.core.planning.task_splitting import PlanLimits
from penstock.core.planning.topic_pattern import TopicPattern

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
TOPIC_ID = b"0123456789abcdef"
ALL, END = ForAll(Earliest()), ForAll(Latest())
Range = tuple[int, Bound, Bound]


def topics(partitions: int = 1, name: str = "t") -> dict[str, TopicView]:
    return {name: TopicView(name, tuple(range(partitions)), TOPIC_ID)}


def plan(
    start: PositionRule = ALL,
    end: PositionRule = END,
    *,
    partitions: int = 1,
    earliest: dict[TopicPartition, int] | None = None,
    latest: dict[TopicPartition, int] | None = None,
    unmatched: str = "error",
    limits: PlanLimits | None = None,
    selection: Selection | None = None,
    committed_only: bool = False,
    **seen: object,
) -> PlanStep:
    snapshot = Snapshot(topics(partitions), earliest or {}, latest or {}, **seen)  # type: ignore[arg-type]
    read = BatchRead(selection or SelectTopics(("t",)), start, end, unmatched, committed_only=committed_only)
    return step(read, snapshot, limits or PlanLimits())


def tasks(decided: PlanStep) -> list[list[Range]]:
    return [[(each.partition, each.start, each.until) for each in task] for task in decided.tasks]


def each_of(**positions: Position) -> ForEach:
    return ForEach({TopicPartition("t", int(name[1:])): value for name, value in positions.items()}, {})


# --- bounds ---------------------------------------------------------------------------------------


def test_earliest_and_latest_stay_words_until_the_task_starts() -> None:
    """B085, B086, B098: resolved when the task runs, so a reused frame sees the log as it is then."""
    assert tasks(plan(partitions=2)) == [[(0, Earliest(), Latest())], [(1, Earliest(), Latest())]]


def test_nothing_is_asked_for_a_read_from_earliest_to_latest() -> None:
    """F15: planning such a read needs the topics and nothing else."""
    questions = find_questions(BatchRead(SelectTopics(("t",)), ALL, END), PlanLimits(), topics(3), now_ms=0)
    assert not any((questions.earliest, questions.latest, questions.committed))
    assert not questions.start_times_ms
    assert not questions.end_times_ms


def test_fixed_ends_stay_fixed_and_latest_ends_move() -> None:
    """B087: numbers are kept, and -1 stays a word."""
    decided = plan(
        each_of(p0=At(2), p1=Earliest()),
        each_of(p0=At(5), p1=Latest()),
        partitions=2,
        earliest={T0: 0},
    )
    assert tasks(decided) == [[(0, At(2), At(5))], [(1, Earliest(), Latest())]]


def test_a_fixed_range_without_offsets_becomes_no_task() -> None:
    """F31: nothing can ever be in such a range."""
    decided = plan(each_of(p0=At(3), p1=At(1)), each_of(p0=At(3), p1=At(2)), partitions=2)
    assert tasks(decided) == [[(1, At(1), At(2))]]


def test_an_order_carries_the_topics_id() -> None:
    """F33: with it the broker itself refuses a topic that was deleted and recreated."""
    assert plan().tasks[0][0].topic_id == TOPIC_ID


def test_times_become_the_offsets_found_for_them() -> None:
    """B088, B093: start included, end excluded, both fixed at planning."""
    decided = plan(ForAll(Since(100)), ForAll(Since(200)), at_time={(T0, 100): 3, (T0, 200): 8})
    assert tasks(decided) == [[(0, At(3), At(8))]]


def test_a_start_time_goes_with_a_fixed_end() -> None:
    """B089: time to offset."""
    decided = plan(ForAll(Since(100)), each_of(p0=At(9)), at_time={(T0, 100): 3})
    assert tasks(decided) == [[(0, At(3), At(9))]]


def test_a_fixed_start_goes_with_an_end_time() -> None:
    """B090: offset to time."""
    decided = plan(each_of(p0=At(1)), ForAll(Since(100)), at_time={(T0, 100): 3}, earliest={T0: 0})
    assert tasks(decided) == [[(0, At(1), At(3))]]


def test_a_start_time_goes_with_the_default_end() -> None:
    """B091: the end stays a word."""
    decided = plan(ForAll(Since(100)), at_time={(T0, 100): 3}, latest={T0: 9})
    assert tasks(decided) == [[(0, At(3), Latest())]]


def test_the_default_start_goes_with_an_end_time() -> None:
    """B092: the start stays a word."""
    assert tasks(plan(ALL, ForAll(Since(5)), at_time={(T0, 5): 3})) == [[(0, Earliest(), At(3))]]


def test_no_record_at_or_after_the_start_time_is_an_error_with_the_facts() -> None:
    """B094, F24: the partition and the time are named."""
    with pytest.raises(OptionError) as caught:
        plan(ForAll(Since(100)), at_time={(T0, 100): None}, latest={T0: 7})
    assert caught.value.condition == "NO_OFFSET_FOR_TIMESTAMP"
    assert "t-0" in str(caught.value)
    assert "100" in str(caught.value)


def test_the_strategy_latest_starts_such_a_partition_at_its_end() -> None:
    """B094: the strategy option asks for that."""
    decided = plan(ForAll(Since(100)), at_time={(T0, 100): None}, latest={T0: 7}, unmatched="latest")
    assert tasks(decided) == [[(0, At(7), Latest())]]


def test_no_record_at_or_after_the_end_time_reads_to_the_end() -> None:
    """B095: whatever the strategy for starts is."""
    assert tasks(plan(ALL, ForAll(Since(5)), at_time={(T0, 5): None}, latest={T0: 7})) == [
        [(0, Earliest(), At(7))]
    ]


def test_a_length_of_time_counts_back_from_the_moment_of_planning() -> None:
    decided = plan(ForAll(Ago(40)), at_time={(T0, 60): 3}, latest={T0: 9}, now_ms=100)
    assert tasks(decided) == [[(0, At(3), Latest())]]


def test_a_number_of_records_counts_back_from_the_end_but_not_before_the_start() -> None:
    decided = plan(
        ForAll(RecordsBeforeEnd(10)), partitions=2, earliest={T0: 0, T1: 95}, latest={T0: 100, T1: 100}
    )
    assert tasks(decided) == [[(0, At(90), Latest())], [(1, At(95), Latest())]]


def test_a_committed_offset_is_the_next_one_to_read() -> None:
    """C26: the group's position is taken as it is, without adding or subtracting one."""
    decided = plan(ForAll(Committed()), committed={T0: 6}, latest={T0: 9}, earliest={T0: 0})
    assert tasks(decided) == [[(0, At(6), Latest())]]


def test_a_partition_without_a_commit_is_named() -> None:
    with pytest.raises(OptionError, match=r"\[NO_COMMITTED_OFFSET\].*t-0"):
        plan(ForAll(Committed()), committed={T0: None}, latest={T0: 9}, earliest={T0: 0})


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [(T0, T1), (T0, T1, T2, TopicPartition("t", 3))])
def test_start_offsets_must_name_exactly_the_partitions_there_are(named: tuple[TopicPartition, ...]) -> None:
    """B132: both sets are in the error."""
    with pytest.raises(OptionError) as caught:
        plan(ForEach(dict.fromkeys(named, Earliest()), {}), partitions=3)
    assert caught.value.condition == "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    assert caught.value.facts["specified"] == [str(each) for each in named]
    assert caught.value.facts["assigned"] == ["t-0", "t-1", "t-2"]


@pytest.mark.parametrize("named", [(T0, T1), (T0, T1, T2, TopicPartition("t", 3))])
@pytest.mark.parametrize("side", ["start", "end"])
def test_times_must_name_exactly_the_partitions_there_are(
    named: tuple[TopicPartition, ...], side: str
) -> None:
    """B133: too few or too many, at the start or at the end; both sets are in the error."""
    rule = ForEach(dict.fromkeys(named, Since(5)), {}, by_time=True)
    with pytest.raises(OptionError) as caught:
        plan(*((rule, END) if side == "start" else (ALL, rule)), partitions=3)
    assert caught.value.condition == "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    assert caught.value.facts["position"] == side
    assert caught.value.facts["specified"] == [str(each) for each in named]
    assert caught.value.facts["assigned"] == ["t-0", "t-1", "t-2"]


def test_a_topics_own_entry_covers_all_its_partitions() -> None:
    assert tasks(plan(ForEach({}, {"t": Earliest()}), partitions=2)) == tasks(plan(partitions=2))


def test_an_entry_for_a_topic_that_is_not_read_is_a_mismatch() -> None:
    with pytest.raises(OptionError, match=r"DOES_NOT_MATCH_ASSIGNED.*other"):
        plan(ForEach({T0: Earliest()}, {"other": Earliest()}))


def test_a_start_behind_the_end_found_by_time_is_refused() -> None:
    """B102: start 3, end 1."""
    with pytest.raises(OptionError) as caught:
        plan(each_of(p0=At(3)), ForAll(Since(5)), at_time={(T0, 5): 1}, earliest={T0: 0})
    assert caught.value.condition == "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
    assert caught.value.facts == {"partition": "t-0", "start": 3, "end": 1}


def test_a_time_that_no_record_has_is_told_before_a_start_behind_its_end() -> None:
    """Spark's order of checks: partition 0 starts at 5, behind its end 3; partition 1 has no such record."""
    seen = {"at_time": {(T0, 5): 5, (T1, 5): None}, "earliest": {T0: 0, T1: 0}, "latest": {T0: 9, T1: 9}}
    with pytest.raises(OptionError, match="NO_OFFSET_FOR_TIMESTAMP"):
        plan(ForAll(Since(5)), each_of(p0=At(3), p1=At(3)), partitions=2, **seen)


def test_a_record_that_comes_between_two_looks_does_not_turn_the_range_around() -> None:
    """At the start's time nothing was there; a moment later the end's time finds a new record at 7."""
    seen = {"at_time": {(T0, 5): None, (T0, 9): 7}, "earliest": {T0: 0}, "latest": {T0: 8}}
    assert tasks(plan(ForAll(Since(5)), ForAll(Since(9)), unmatched="latest", **seen)) == []
    turned = {**seen, "at_time": {(T0, 5): 7, (T0, 9): None}}
    with pytest.raises(OptionError, match="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"):
        plan(ForAll(Since(9)), ForAll(Since(5)), unmatched="latest", **turned)


def test_a_start_above_the_logs_end_is_refused() -> None:
    """B103: start 1 in an empty log that is read to its end."""
    with pytest.raises(OptionError, match="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"):
        plan(each_of(p0=At(1)), latest={T0: 0}, earliest={T0: 0})


def test_a_start_behind_an_open_transaction_is_not_laid_to_a_topic_made_anew() -> None:
    """The log for committed readers ends at 1803, although there are offsets up to 2103."""
    seen = {"latest": {T0: 1803}, "earliest": {T0: 0}}
    with pytest.raises(OptionError) as caught:
        plan(each_of(p0=At(2050)), committed_only=True, **seen)
    assert caught.value.condition == "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
    assert "the log ends where the oldest open transaction begins" in caught.value.what
    assert "if one is open, run it again when that has ended" in caught.value.what
    assert "and no transaction is open, the topic was deleted" in caught.value.hint
    for committed_only, end in ((False, END), (True, each_of(p0=At(5)))):
        with pytest.raises(OptionError) as caught:
            plan(each_of(p0=At(2050)), end, committed_only=committed_only, **seen)
        assert "transaction" not in str(caught.value)


def test_every_read_knows_whether_it_reads_committed_rows_only() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    for level, expected in (("read_committed", True), ("read_uncommitted", False)):
        options = {**given, "kafka.isolation.level": level}
        assert parse_batch_options(options, unique="u").reading.committed_only is expected
        assert parse_stream_options(options, unique="u").reading.committed_only is expected


def test_a_start_at_the_logs_end_waits_for_new_rows() -> None:
    assert tasks(plan(each_of(p0=At(5)), latest={T0: 5}, earliest={T0: 0})) == [[(0, At(5), Latest())]]


def test_earliest_behind_a_fixed_end_is_no_error() -> None:
    """B098: retention removed the rows, so nothing is left to read."""
    limits = PlanLimits(max_records_per_partition=10)
    assert tasks(plan(ALL, each_of(p0=At(5)), earliest={T0: 9}, limits=limits)) == []


def test_offsets_asked_for_but_gone_are_reported_as_losses() -> None:
    """F24: the range is not moved, and the loss is named."""
    decided = plan(each_of(p0=At(2)), latest={T0: 9}, earliest={T0: 5})
    assert tasks(decided) == [[(0, At(2), Latest())]]
    assert [(each.start, each.until) for each in decided.losses] == [(2, 5)]
    assert "t-0 [2, 5)" in str(explain_losses(decided.losses))
    assert explain_losses(decided.losses).condition == "KAFKA_DATA_LOSS"


def test_no_loss_is_reported_for_a_log_that_still_has_the_start() -> None:
    assert plan(each_of(p0=At(5)), latest={T0: 9}, earliest={T0: 5}).losses == ()


def test_an_answer_the_brokers_did_not_give_is_a_broker_error() -> None:
    with pytest.raises(BrokerError, match="OFFSET_NOT_ANSWERED"):
        plan(ForAll(RecordsBeforeEnd(5)), earliest={T0: 0})


# --- selection ------------------------------------------------------------------------------------


def selected(selection: Selection, *views: TopicView) -> list[str]:
    return [
        str(each) for each in select_partitions(selection, {view.name: view for view in views}).partitions
    ]


A, B = TopicView("a", (0, 1)), TopicView("b", (0,))
INTERNAL = TopicView("a-internal", (0,), internal=True)


def test_assign_reads_exactly_the_listed_partitions() -> None:
    """B139: and no other partition of the topic."""
    assert selected(SelectPartitions((TopicPartition("a", 1),)), A, B) == ["a-1"]


def test_assign_leaves_out_partitions_that_do_not_exist_and_says_so() -> None:
    """B140: the rest is read."""
    decided = plan(selection=SelectPartitions((T0, TopicPartition("t", 7))))
    assert tasks(decided) == [[(0, Earliest(), Latest())]]
    assert decided.news == ("t-7 does not exist and is left out.",)


def test_topics_that_a_pattern_matches_in_part_are_left_out_and_named() -> None:
    """B11, B142: Spark's connector reads them, so a job that moves from it must be told."""
    views = {name: TopicView(name, (0,), internal=name == "__t") for name in ("t", "t2", "my-t", "x", "__t")}
    reading = BatchRead(SelectPattern(TopicPattern("t")), ALL, END)
    decided = step(reading, Snapshot(views), PlanLimits())
    assert [order.topic for (order,) in decided.tasks] == ["t"]
    (news,) = decided.news
    assert "2 topics (my-t, t2)" in news


def test_subscribe_reads_all_partitions_of_the_listed_topics_and_no_others() -> None:
    """B141: sorted by topic and partition."""
    assert selected(SelectTopics(("b", "a")), A, B, TopicView("c", (0,))) == ["a-0", "a-1", "b-0"]


def test_a_pattern_reads_all_partitions_of_matching_topics_and_no_others() -> None:
    """B142, B11: the whole name must match."""
    assert selected(SelectPattern(TopicPattern("a|c")), A, B, TopicView("ab", (0,))) == ["a-0", "a-1"]


def test_no_pattern_matches_an_internal_topic_and_a_name_alone_makes_none_internal() -> None:
    """B142: a topic is internal if the brokers flag it."""
    assert selected(SelectPattern(TopicPattern(".*")), A, INTERNAL, TopicView("__x", (0,))) == [
        "__x-0",
        "a-0",
        "a-1",
    ]


def test_a_subscribed_topic_that_does_not_exist_is_named() -> None:
    with pytest.raises(BrokerError, match=r"\[UNKNOWN_TOPIC\].*gone") as caught:
        selected(SelectTopics(("a", "gone")), A)
    assert caught.value.retriable


def test_an_internal_topic_is_not_read_as_data() -> None:
    with pytest.raises(OptionError, match="INTERNAL_TOPIC"):
        selected(SelectTopics(("a-internal",)), INTERNAL)


# --- cutting --------------------------------------------------------------------------------------


def test_a_fixed_range_is_cut_into_exact_pieces() -> None:
    """B127: 1 to 4, in three pieces."""
    decided = plan(
        each_of(p0=At(1)), each_of(p0=At(4)), earliest={T0: 0}, limits=PlanLimits(min_partitions=3)
    )
    assert tasks(decided) == [[(0, At(1), At(2))], [(0, At(2), At(3))], [(0, At(3), At(4))]]


def test_the_outer_bounds_of_a_cut_range_stay_words() -> None:
    """B128, B104: new rows fall into the last piece when the frame is used again."""
    decided = plan(earliest={T0: 0}, latest={T0: 4}, limits=PlanLimits(min_partitions=3))
    assert tasks(decided) == [[(0, Earliest(), At(1))], [(0, At(1), At(2))], [(0, At(2), Latest())]]


def test_mixed_words_and_numbers_are_cut_partition_by_partition() -> None:
    """B129: the small one stays whole, with its bounds as they were given."""
    decided = plan(
        each_of(p0=Earliest(), p1=Earliest()),
        each_of(p0=Latest(), p1=At(3)),
        partitions=2,
        earliest={T0: 0, T1: 0},
        latest={T0: 100, T1: 4},
        limits=PlanLimits(min_partitions=4),
    )
    assert tasks(decided) == [
        [(0, Earliest(), At(33))],
        [(0, At(33), At(66))],
        [(0, At(66), Latest())],
        [(1, Earliest(), At(3))],
    ]


def test_ranges_that_are_numbers_already_are_cut_by_size() -> None:
    """B130: 100 and 3 offsets in four pieces."""
    decided = plan(
        each_of(p0=At(0), p1=At(0)),
        each_of(p0=At(100), p1=At(3)),
        partitions=2,
        limits=PlanLimits(min_partitions=4),
    )
    pieces = [(number, start.offset, until.offset) for [(number, start, until)] in tasks(decided)]  # type: ignore[union-attr]
    assert pieces == [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 3)]


def test_enough_partitions_already_leave_the_words_alone() -> None:
    """B110: nothing is looked up, and nothing is cut."""
    limits = PlanLimits(min_partitions=2)
    assert tasks(plan(partitions=2, limits=limits)) == [
        [(0, Earliest(), Latest())],
        [(1, Earliest(), Latest())],
    ]
    assert not find_questions(BatchRead(SelectTopics(("t",)), ALL, END), limits, topics(2), 0).latest


def test_a_partition_that_is_empty_now_rides_along_in_the_last_task() -> None:
    """B104: it gets no piece, but rows that arrive later are read when the frame is used again."""
    decided = plan(
        partitions=2, earliest={T0: 0, T1: 0}, latest={T0: 0, T1: 4}, limits=PlanLimits(min_partitions=4)
    )
    assert len(decided.tasks) == 4
    assert tasks(decided)[-1] == [(1, At(3), Latest()), (0, Earliest(), Latest())]


def test_when_all_is_empty_one_task_waits_for_rows() -> None:
    """B104: the same when nothing has rows yet."""
    decided = plan(
        partitions=2, earliest={T0: 0, T1: 0}, latest={T0: 0, T1: 0}, limits=PlanLimits(min_partitions=4)
    )
    assert tasks(decided) == [[(0, Earliest(), Latest()), (1, Earliest(), Latest())]]


def test_small_ranges_share_a_task_when_asked_to() -> None:
    decided = plan(
        partitions=3,
        earliest=dict.fromkeys((T0, T1, T2), 0),
        latest=dict.fromkeys((T0, T1, T2), 5),
        limits=PlanLimits(min_records_per_task=10),
    )
    assert [[each[0] for each in task] for task in tasks(decided)] == [[0, 1, 2]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), min_size=1, max_size=6),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 50),
    st.integers(0, 300),
)
def test_a_plan_covers_every_partition_exactly_once(
    logs: list[tuple[int, int]], wanted: int | None, cap: int | None, packed: int
) -> None:
    """B104, T28: resolved again at the same moment, the orders tile [start, end) of every partition."""
    earliest = {TopicPartition("t", number): first for number, (first, _) in enumerate(logs)}
    latest = {TopicPartition("t", number): first + size for number, (first, size) in enumerate(logs)}
    limits = PlanLimits(None if packed else wanted, cap, packed)
    decided = plan(partitions=len(logs), earliest=earliest, latest=latest, limits=limits)
    for partition in earliest:
        place = earliest[partition]
        for order in (
            each for task in decided.tasks for each in task if each.partition == partition.partition
        ):
            start = order.start.offset if isinstance(order.start, At) else earliest[partition]
            until = order.until.offset if isinstance(order.until, At) else latest[partition]
            assert start == place
            place = until
        assert place == latest[partition]


def test_planning_raises_only_errors_of_its_own_tree() -> None:
    with pytest.raises(PenstockError):
        plan(earliest={}, latest={}, limits=PlanLimits(min_partitions=9))
