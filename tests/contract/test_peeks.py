"""What every `LogView` reports of leader epochs and records at a position, in memory and on a broker."""

from __future__ import annotations

import pytest

from penstock.core.model import TopicPartition
from tests.contract.worlds import World, Written

#: What a record batch (61 bytes) and the lengths in a record may cost beyond key and value.
FRAMING_BYTES = 80


def test_every_partition_of_a_new_topic_has_a_leader_epoch(world: World) -> None:
    topic = world.create_topic(3)
    view = world.view().describe([topic])[topic]
    assert len(view.leader_epochs) == 3
    assert all(epoch >= 0 for epoch in view.leader_epochs)
    assert world.view().topics()[topic].leader_epochs == view.leader_epochs


def test_the_epoch_of_today_ends_where_the_log_ends(world: World) -> None:
    topic = world.create_topic(2)
    world.write(topic, [Written(b"a"), Written(b"b"), Written(b"c", partition=1)])
    described = world.view().describe([topic])[topic]
    epochs = {TopicPartition(topic, each): described.leader_epochs[each] for each in (0, 1)}
    assert world.view().epoch_ends(epochs) == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1}


def test_an_epoch_nobody_has_led_and_a_partition_that_is_not_there_have_no_end(world: World) -> None:
    """A position from a topic that was deleted and recreated may have an epoch from the new one's future."""
    topic = world.create_topic()
    world.write(topic, [Written(b"a")])
    known, missing = TopicPartition(topic, 0), TopicPartition(topic, 7)
    (epoch,) = world.view().describe([topic])[topic].leader_epochs
    assert world.view().epoch_ends({known: epoch + 5}) == {}
    asked = {known: epoch, missing: epoch, TopicPartition("never-made", 0): 0}
    assert world.view().epoch_ends(asked) == {known: 1}


def test_a_peek_tells_when_the_record_was_written_and_how_big_records_are(world: World) -> None:
    topic = world.create_topic(2)
    for time_ms in (1_000, 2_000, 3_000):  # one batch per record
        world.write(topic, [Written(b"x" * 900, key=b"k" * 100, timestamp_ms=time_ms)])
    world.write(topic, [Written(b"y" * 100, timestamp_ms=9_000, partition=1) for _ in range(50)])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    looks = world.view().peek({first: 1, second: 0})
    assert (looks[first].timestamp_ms, looks[second].timestamp_ms) == (2_000, 9_000)
    assert 1_000 <= looks[first].bytes_per_record <= 1_000 + FRAMING_BYTES
    assert 100 <= looks[second].bytes_per_record <= 100 + FRAMING_BYTES


def test_a_peek_leaves_out_what_is_not_there(world: World) -> None:
    """At the end, past it, before the start, in a missing partition or topic: no answer and no error."""
    topic = world.create_topic(4)
    for _ in range(3):
        world.write(topic, [Written(b"x", partition=each) for each in range(3)])
    world.truncate_before(topic, 2, 2)
    at = [TopicPartition(topic, each) for each in range(6)]
    positions = {at[0]: 3, at[1]: 99, at[2]: 1, at[3]: 0, at[5]: 0, TopicPartition("never-made", 0): 0}
    assert world.view().peek(positions) == {}
    assert list(world.view().peek({**positions, at[0]: 2})) == [at[0]]


def test_a_peek_of_committed_rows_does_not_see_into_an_open_transaction(world: World) -> None:
    partition = TopicPartition(world.create_topic(), 0)
    world.write(partition.topic, [Written(b"plain", timestamp_ms=5_000)])
    transaction = world.open_transaction(partition.topic, [Written(b"open", timestamp_ms=6_000)])
    assert world.view("read_committed").peek({partition: 1}) == {}
    assert world.view("read_uncommitted").peek({partition: 1})[partition].timestamp_ms == 6_000
    assert world.view("read_committed").peek({partition: 0})[partition].timestamp_ms == 5_000
    transaction.commit()


def test_a_marker_is_no_record_to_peek_at(world: World) -> None:
    partition = TopicPartition(world.create_topic(), 0)
    world.write_transaction(partition.topic, [Written(b"a", timestamp_ms=5_000)], commit=True)
    assert world.view().peek({partition: 1}) == {}
    world.write(partition.topic, [Written(b"b", timestamp_ms=7_000)])
    assert world.view().peek({partition: 1})[partition].timestamp_ms == 7_000


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_batches_larger_than_a_look_are_measured_too(world: World, size: int) -> None:
    """A broker omits a batch that exceeds its partition's share, unless that partition is asked for alone."""
    topic = world.create_topic(3)
    world.write(topic, [Written(bytes(size), timestamp_ms=4_000, partition=each) for each in range(3)])
    looks = world.view().peek({TopicPartition(topic, each): 0 for each in range(3)})
    assert [look.timestamp_ms for look in looks.values()] == [4_000] * 3
    assert all(size <= look.bytes_per_record <= size + FRAMING_BYTES for look in looks.values())
