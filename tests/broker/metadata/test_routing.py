"""How the right broker among three is found, and found again after a change."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.metadata.routing import Routing, routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection import Deadline
from penstock.kafka.transport.connection_pool import ConnectionPool
from tests.support.kafka.topic_filling import create_placed

if TYPE_CHECKING:
    from penstock.cluster import LocalKafka


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    pool = ConnectionPool()
    yield pool
    pool.close()


def deadline(limit_ms: int = 30_000) -> Deadline:
    return Deadline.after_ms(limit_ms, "default.api.timeout.ms")


def settings_for(cluster: LocalKafka, *places: int, **limits: int) -> ClientSettings:
    """Return settings that know only the brokers at these places."""
    return ClientSettings(
        tuple(("127.0.0.1", cluster.brokers[place].port) for place in places),
        **limits,  # type: ignore[arg-type]
    )


def place_topic(cluster: LocalKafka, assignments: list[list[int]]) -> str:
    """Return a new topic whose partitions lie on brokers given by their place; the first one leads."""
    name = f"routing-{secrets.token_hex(4)}"
    ids = [broker.node_id for broker in cluster.brokers]
    create_placed(cluster.bootstrap, name, [[ids[place] for place in places] for places in assignments])
    return name


def produce(cluster: LocalKafka, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for index in range(partitions):
        producer.produce(topic, b"value", partition=index)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_broker_is_enough_to_reach_every_partition(kafka3: LocalKafka, place: int) -> None:
    """A12: even a broker that leads no partition of the topic knows where everything is."""
    others = [other for other in range(3) if other != place]
    topic = place_topic(kafka3, [[others[0]], [others[1]], [others[0]]])
    produce(kafka3, topic, 3)
    settings = settings_for(kafka3, place)
    partitions = [TopicPartition(topic, index) for index in range(3)]

    assert KafkaLogView(settings).latest(partitions) == dict.fromkeys(partitions, 1)
    leaders = routing_for(settings).leaders(partitions, deadline())
    assert kafka3.brokers[place].node_id not in {leader.node_id for leader in leaders.values()}
    order = WorkOrder(
        tuple(RangeOrder(topic, index, At(0), At(1)) for index in range(3)), settings, ("partition",)
    )
    rows = [row for batch in KafkaReader().read(order) for row in batch.to_pylist()]
    assert rows == [{"partition": 0}, {"partition": 1}, {"partition": 2}]


def test_dead_bootstrap_servers_are_passed_over(kafka3: LocalKafka, pool: ConnectionPool) -> None:
    alive = settings_for(kafka3, 1)
    dead = (("127.0.0.1", 1), ("no-such-host.invalid", 9092))
    settings = ClientSettings((*dead, *alive.bootstrap_servers))
    for _ in range(3):  # whichever server a new map begins with
        assert len(Routing(settings, pool).brokers(deadline())) == 3


def test_a_moved_leader_is_found_again(kafka3: LocalKafka, pool: ConnectionPool) -> None:
    """A12: bounds are still answered after the broker that led the partition has stopped."""
    topic = place_topic(kafka3, [[0, 1], [1, 2]])
    produce(kafka3, topic, 2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    settings = settings_for(kafka3, 0, 1, 2)
    routing = Routing(settings, pool)
    view = KafkaLogView(settings, routing=routing)
    expected = dict.fromkeys(partitions, 1)
    assert view.latest(partitions) == expected
    before = routing.leader(topic, 0, deadline())
    assert before.node_id == kafka3.brokers[0].node_id

    kafka3.brokers[0].stop()
    try:
        assert view.latest(partitions) == expected
        after = routing.leader(topic, 0, deadline())
        assert after.node_id == kafka3.brokers[1].node_id
        assert after.leader_epoch > before.leader_epoch
    finally:
        kafka3.brokers[0].start()
        kafka3.wait_until_ready()


def test_committed_offsets_survive_the_loss_of_their_coordinator(
    kafka3: LocalKafka, pool: ConnectionPool
) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ConfluentPartition

    topic = place_topic(kafka3, [[0, 1, 2]])
    partition = TopicPartition(topic, 0)
    group = f"group-{secrets.token_hex(4)}"
    consumer = Consumer({"bootstrap.servers": kafka3.bootstrap, "group.id": group})
    consumer.commit(offsets=[ConfluentPartition(topic, 0, 41)], asynchronous=False)
    consumer.close()
    settings = settings_for(kafka3, 0, 1, 2)
    routing = Routing(settings, pool)
    view = KafkaLogView(settings, routing=routing)
    assert view.committed(group, [partition]) == {partition: 41}
    ((_, port),) = routing._coordinators.values()
    (coordinator,) = [broker for broker in kafka3.brokers if broker.port == port]

    coordinator.stop()
    try:
        assert view.committed(group, [partition]) == {partition: 41}
        ((_, other_port),) = routing._coordinators.values()
        assert other_port != port
    finally:
        coordinator.start()
        kafka3.wait_until_ready()


def test_a_partition_without_any_live_replica_ends_at_the_deadline(
    kafka3: LocalKafka, pool: ConnectionPool
) -> None:
    topic = place_topic(kafka3, [[2]])
    settings = settings_for(kafka3, 0, 1, default_api_timeout_ms=1_500)
    view = KafkaLogView(settings, routing=Routing(settings, pool))
    assert view.latest([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
    kafka3.brokers[2].stop()
    try:
        with pytest.raises(BrokerError) as caught:
            view.latest([TopicPartition(topic, 0)])
        assert caught.value.condition == "BROKER_TIMEOUT"
        assert f"{topic}-0" in str(caught.value)
        # A topic that has lost its leader still exists; it is not a missing topic.
        assert view.describe([topic])[topic].partitions == (0,)
    finally:
        kafka3.brokers[2].start()
        kafka3.wait_until_ready()


def test_a_missing_topic_is_called_missing_long_before_the_deadline(
    kafka3: LocalKafka, pool: ConnectionPool
) -> None:
    limit = deadline(60_000)
    with pytest.raises(BrokerError) as caught:
        Routing(settings_for(kafka3, 0), pool).leader("never-made", 0, limit)
    assert caught.value.condition == "UNKNOWN_TOPIC_OR_PARTITION"
    assert limit.remaining_s() > 50


def test_maps_are_shared_in_a_process_whatever_the_group(kafka3: LocalKafka) -> None:
    from dataclasses import replace

    settings = settings_for(kafka3, 0)
    one = routing_for(replace(settings, group_id="a", isolation_level="read_committed"))
    assert routing_for(replace(settings, group_id="b")) is one
    assert routing_for(settings_for(kafka3, 1)) is not one
