"""Commits to a consumer group by a program outside it, checked with librdkafka, and the resulting lag."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import commit_offsets
from penstock.kafka.groups.group_overview import describe_group
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import open_transaction, produce, send
from tests.support.waiting import wait_until


def seen_by_others(cluster: Any, group: str) -> dict[TopicPartition, Position]:
    """Return the group's offsets as an independent client reads them."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(timeout=30).topic_partitions
    return {TopicPartition(each.topic, each.partition): each for each in found}


def test_other_clients_see_exactly_what_was_committed(kafka: Any, topic: Any, group: str) -> None:
    """C3: offsets, the note and the leader epoch, per partition; a later commit replaces an earlier one."""
    first, second = topic(3), topic(1)
    offsets = {TopicPartition(first, 0): 7, TopicPartition(first, 2): 0, TopicPartition(second, 0): 2**40}
    commit_offsets(settings_of(kafka.bootstrap), group, dict.fromkeys(offsets, 1), timeout_ms=30_000)
    epochs = {TopicPartition(first, 0): 0}
    commit_offsets(
        settings_of(kafka.bootstrap),
        group,
        offsets,
        timeout_ms=30_000,
        metadata="batch 4",
        leader_epochs=epochs,
    )
    seen = seen_by_others(kafka, group)
    assert {each: position.offset for each, position in seen.items()} == offsets
    assert {position.metadata for position in seen.values()} == {"batch 4"}
    assert seen[TopicPartition(first, 0)].leader_epoch == 0
    assert seen[TopicPartition(second, 0)].leader_epoch in (-1, None)


def test_a_commit_may_go_back(kafka: Any, topic: Any, group: str) -> None:
    """Kafka keeps whatever was committed last; a caller that must never go back compares first."""
    partition = TopicPartition(topic(), 0)
    commit_offsets(settings_of(kafka.bootstrap), group, {partition: 9}, timeout_ms=30_000)
    commit_offsets(settings_of(kafka.bootstrap), group, {partition: 3}, timeout_ms=30_000)
    assert seen_by_others(kafka, group)[partition].offset == 3


def test_nothing_to_commit_opens_no_connection(group: str) -> None:
    commit_offsets(ClientSettings((("127.0.0.1", 1),)), group, {}, timeout_ms=1)


def test_an_offset_below_zero_is_refused_before_anything_is_sent(group: str) -> None:
    with pytest.raises(ValueError, match="orders-0 to -1"):
        commit_offsets(
            ClientSettings((("127.0.0.1", 1),)), group, {TopicPartition("orders", 0): -1}, timeout_ms=1
        )


@contextmanager
def a_member(cluster: Any, group: str, topic: str, protocol: str) -> Iterator[None]:
    settings = {"group.id": group, "group.protocol": protocol, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
    consumer.subscribe([topic])

    def has_joined() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    try:
        wait_until(has_joined, "the consumer has its partitions")
        yield
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_refuses_an_outsider(kafka: Any, topic: Any, group: str, protocol: str) -> None:
    """T37: two programs use one group id; the error says who can fix it and how."""
    name = topic()
    partition = TopicPartition(name, 0)
    with a_member(kafka, group, name, protocol):
        with pytest.raises(BrokerError) as caught:
            commit_offsets(settings_of(kafka.bootstrap), group, {partition: 1}, timeout_ms=30_000)
        assert caught.value.condition == "GROUP_HAS_MEMBERS"
        assert group in str(caught.value)
        assert str(partition) in str(caught.value)
        assert not caught.value.retriable
    assert partition not in seen_by_others(kafka, group)


def test_a_missing_topic_is_told_at_once_and_the_others_are_stored(
    kafka: Any, topic: Any, group: str
) -> None:
    there, gone = TopicPartition(topic(), 0), TopicPartition("never-made", 0)
    commit_offsets(settings_of(kafka.bootstrap), group, {there: 1}, timeout_ms=30_000)
    began = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        commit_offsets(settings_of(kafka.bootstrap), group, {there: 4, gone: 2}, timeout_ms=60_000)
    assert time.monotonic() - began < 20
    assert caught.value.condition == "UNKNOWN_TOPIC_OR_PARTITION"
    assert caught.value.facts["partitions"] == [str(gone)]
    assert {each: seen.offset for each, seen in seen_by_others(kafka, group).items()} == {there: 4}


def test_a_note_that_is_too_long_is_refused_with_kafkas_reason(kafka: Any, topic: Any, group: str) -> None:
    with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
        commit_offsets(
            settings_of(kafka.bootstrap),
            group,
            {TopicPartition(topic(), 0): 1},
            timeout_ms=30_000,
            metadata="x" * 5_000,
        )


def test_a_commit_ends_at_its_deadline(group: str) -> None:
    began = time.monotonic()
    with pytest.raises(BrokerError, match="BROKER_TIMEOUT"):
        commit_offsets(
            ClientSettings((("127.0.0.1", 1),)), group, {TopicPartition("orders", 0): 1}, timeout_ms=500
        )
    assert 0.4 < time.monotonic() - began < 10


def test_the_lag_counts_from_the_commit_to_the_end_that_readers_see(
    kafka: Any, topic: Any, group: str
) -> None:
    """C3: current offset and lag are right after a commit, and partitions without a commit are not listed."""
    name = topic(3)
    at = [TopicPartition(name, each) for each in range(3)]
    for each in range(3):
        produce(kafka.bootstrap, name, [b"x"] * 10, partition=each)
    producer = open_transaction(kafka.bootstrap)
    send(producer, name, [b"open"] * 5, partition=1)
    assert producer.flush(30) == 0
    settings = settings_of(kafka.bootstrap)
    commit_offsets(settings, group, {at[0]: 4, at[1]: 10}, timeout_ms=30_000)
    rows = describe_group(settings, group).rows
    assert [(each.partition, each.committed, each.end, each.lag) for each in rows] == [
        (at[0], 4, 10, 6),
        (at[1], 10, 15, 5),
    ]
    committed_only = replace(settings, isolation_level="read_committed")
    assert [each.lag for each in describe_group(committed_only, group).rows] == [6, 0]
    producer.abort_transaction(30)


def test_a_commit_follows_the_coordinator_to_another_broker(kafka3: Any, topic: Any, group: str) -> None:
    """The broker that coordinates the group is stopped; the next commit finds the new coordinator."""
    partition = TopicPartition(topic(on=kafka3, factor=3), 0)
    settings = settings_of(kafka3.bootstrap, socket_connection_setup_timeout_ms=2_000)
    commit_offsets(settings, group, {partition: 1}, timeout_ms=60_000)
    client = AdminClient({"bootstrap.servers": kafka3.bootstrap})
    described = client.describe_consumer_groups([group])[group].result(timeout=30)
    coordinator = next(each for each in kafka3.brokers if each.node_id == described.coordinator.id)
    coordinator.stop()
    try:
        commit_offsets(settings, group, {partition: 2}, timeout_ms=60_000)
        assert seen_by_others(kafka3, group)[partition].offset == 2
    finally:
        coordinator.start()
        kafka3.wait_until_ready()
