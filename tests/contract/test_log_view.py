"""What every `LogView` promises, checked on the log in memory and on a real broker."""

from __future__ import annotations

import secrets
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import BrokerError
from penstock.core.model import LogView, TopicPartition
from tests.contract.worlds import World, Written


def _wait_for_latest(view: LogView, partition: TopicPartition, offset: int) -> None:
    """Wait for an end: the last stable offset trails the acknowledged commit by a moment."""
    deadline = time.monotonic() + 20
    while view.latest([partition])[partition] != offset:
        assert time.monotonic() < deadline, f"{partition} never reached {offset}"
        time.sleep(0.02)


def test_both_worlds_are_log_views(any_world: World) -> None:
    assert isinstance(any_world.view(), LogView)


def test_an_empty_partition_begins_and_ends_at_zero(any_world: World) -> None:
    partition = TopicPartition(any_world.create_topic(), 0)
    assert any_world.view().earliest([partition]) == {partition: 0}
    assert any_world.view().latest([partition]) == {partition: 0}


def test_bounds_are_told_for_each_partition_on_its_own(any_world: World) -> None:
    """F20: the start follows retention, and the end is the offset that the next record gets."""
    topic = any_world.create_topic(3)
    any_world.write(topic, [Written(b"a"), Written(b"b"), Written(b"c", partition=2)])
    any_world.truncate_before(topic, 0, 1)
    partitions = [TopicPartition(topic, index) for index in range(3)]
    assert any_world.view().earliest(partitions) == dict(zip(partitions, [1, 0, 0], strict=True))
    assert any_world.view().latest(partitions) == dict(zip(partitions, [2, 0, 1], strict=True))


def test_the_end_of_an_open_transaction_depends_on_the_isolation_level(world: World) -> None:
    """T02, B131: committed reads end before an open transaction, other reads after its records."""
    partition = TopicPartition(world.create_topic(), 0)
    world.write(partition.topic, [Written(b"plain")])
    transaction = world.open_transaction(partition.topic, [Written(b"open"), Written(b"open")])
    assert world.view("read_uncommitted").latest([partition]) == {partition: 3}
    assert world.view("read_committed").latest([partition]) == {partition: 1}
    transaction.commit()
    _wait_for_latest(world.view("read_committed"), partition, 4)  # two records and the marker
    assert world.view("read_uncommitted").latest([partition]) == {partition: 4}


def test_a_missing_topic_is_left_out_of_the_description(any_world: World) -> None:
    """B140: a topic that does not exist is absent, and the others are still described."""
    topic = any_world.create_topic(2)
    found = any_world.view().describe([topic, "never-made"])
    assert list(found) == [topic]
    assert found[topic].partitions == (0, 1)
    assert not found[topic].internal


def test_describing_nothing_asks_for_nothing(any_world: World) -> None:
    assert any_world.view().describe([]) == {}
    assert any_world.view().latest([]) == {}
    assert any_world.view().earliest([]) == {}
    assert any_world.view().at_time({}) == {}
    assert any_world.view().committed("group", []) == {}
    assert any_world.view().epoch_ends({}) == {}
    assert any_world.view().peek({}) == {}


def test_internal_topics_are_listed_and_flagged(world: World) -> None:
    """B142: so a pattern can distinguish the broker's own topics from the user's."""
    topic = world.create_topic()
    (internal,) = world.internal_topics()
    deadline = time.monotonic() + 20
    while internal not in (listed := world.view().topics()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert listed[internal].internal
    assert not listed[topic].internal


def test_a_recreated_topic_has_another_id(any_world: World) -> None:
    topic = any_world.create_topic()
    before = any_world.view().describe([topic])[topic].topic_id
    any_world.recreate_topic(topic)
    after = any_world.view().describe([topic])[topic].topic_id
    assert before is not None
    assert after is not None
    assert len(before) == len(after) == 16
    assert before != after


def test_the_bounds_of_a_missing_partition_are_an_error_that_names_it(any_world: World) -> None:
    topic = any_world.create_topic()
    with pytest.raises(BrokerError) as caught:
        any_world.view().latest([TopicPartition(topic, 0), TopicPartition(topic, 7)])
    assert caught.value.condition == "UNKNOWN_TOPIC_OR_PARTITION"
    assert f"{topic}-7" in str(caught.value)


def test_a_group_without_commits_has_none_and_others_have_their_offsets(any_world: World) -> None:
    """F20: committed offsets are per partition; a missing commit is None, not 0 and not -1."""
    topic = any_world.create_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    any_world.write(topic, [Written(b"a"), Written(b"b")])
    group = f"group-{secrets.token_hex(4)}"
    assert any_world.view().committed(group, [first, second]) == {first: None, second: None}
    any_world.commit_offsets(group, {first: 2})
    assert any_world.view().committed(group, [first, second]) == {first: 2, second: None}
    assert any_world.view().committed(f"{group}-other", [first]) == {first: None}


def test_a_time_after_the_last_record_has_no_offset(any_world: World) -> None:
    partition = TopicPartition(any_world.create_topic(), 0)
    any_world.write(partition.topic, [Written(b"a", timestamp_ms=1_000)])
    view = any_world.view()
    assert view.at_time({partition: 1_001}) == {partition: None}
    assert view.at_time({partition: 1_000}) == {partition: 0}


def test_times_before_1970_mean_the_first_record_and_not_the_end_of_the_log(any_world: World) -> None:
    """In the protocol -1 and -2 mean the ends of the log; as times they are merely early."""
    partition = TopicPartition(any_world.create_topic(), 0)
    any_world.write(partition.topic, [Written(b"a"), Written(b"b")])
    assert any_world.view().at_time({partition: -1}) == {partition: 0}
    assert any_world.view().at_time({partition: -2}) == {partition: 0}


def test_a_time_search_starts_at_the_log_start(any_world: World) -> None:
    partition = TopicPartition(any_world.create_topic(), 0)
    any_world.write(partition.topic, [Written(b"a", timestamp_ms=time_ms) for time_ms in (10, 20, 30)])
    any_world.truncate_before(partition.topic, 0, 2)
    assert any_world.view().at_time({partition: 5}) == {partition: 2}


_histories = st.lists(st.integers(1, 60), min_size=1, max_size=25)
_slow = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_slow
@given(times_ms=_histories, asked_ms=st.integers(0, 70))
def test_a_time_search_agrees_with_a_linear_scan(
    any_world: World, times_ms: list[int], asked_ms: int
) -> None:
    """T27: the answer is the first record at or after the time, although times do not rise with offsets."""
    partition = TopicPartition(any_world.create_topic(), 0)
    # Eight records per call: on a broker, times then go up and down within and between record batches.
    for begin in range(0, len(times_ms), 8):
        some = times_ms[begin : begin + 8]
        any_world.write(partition.topic, [Written(b"x", timestamp_ms=time_ms) for time_ms in some])
    expected = next((offset for offset, time_ms in enumerate(times_ms) if time_ms >= asked_ms), None)
    assert any_world.view().at_time({partition: asked_ms}) == {partition: expected}
