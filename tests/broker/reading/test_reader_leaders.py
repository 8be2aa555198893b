"""Reading continues while leaders move: three brokers, one of which goes away in the middle of a range."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.reading.partition_fetcher import PartitionFetcher
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce

RECORDS = 3000


def leader_of(cluster: Any, topic: str) -> Any:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics(topic=topic, timeout=20).topics[topic].partitions[0].leader
    return next(broker for broker in cluster.brokers if broker.node_id == leader)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_read_goes_on_when_the_leader_is_gone(kafka3: Any, topic: Any, end: str) -> None:
    """T18: it is shut down cleanly or killed between two fetches; every row arrives once, in order."""
    name = topic(on=kafka3, factor=3)
    produce(kafka3.bootstrap, name, (os.urandom(1000) for _ in range(RECORDS)), acks="all")
    settings = settings_of(
        kafka3.bootstrap, max_partition_fetch_bytes=100_000, socket_connection_setup_timeout_ms=2000
    )
    order = WorkOrder((RangeOrder(name, 0, At(0), At(RECORDS)),), settings, ("offset",))
    batches = KafkaReader().read(order)
    seen = next(batches).column("offset").to_pylist()
    leader = leader_of(kafka3, name)
    getattr(leader, end)()
    try:
        seen += [each for batch in batches for each in batch.column("offset").to_pylist()]
        assert seen == list(range(RECORDS))
    finally:
        leader.start()
        kafka3.wait_until_ready()


@pytest.fixture
def asked_ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ports of the brokers that were connected to for fetches, in order."""
    ports: list[int] = []
    connect = PartitionFetcher._connect

    def note(self: PartitionFetcher, deadline: Any) -> Any:
        connection = connect(self, deadline)
        ports.append(connection.port)
        return connection

    monkeypatch.setattr(PartitionFetcher, "_connect", note)
    return ports


def test_a_follower_in_the_same_rack_is_read_and_its_loss_leads_back_to_the_leader(
    kafka3: Any, topic: Any, asked_ports: list[int]
) -> None:
    """T16: the leader by default, a follower only by `client.rack`; rows stay complete when it is killed."""
    name = topic(on=kafka3, factor=3)
    produce(kafka3.bootstrap, name, (os.urandom(1000) for _ in range(RECORDS)), acks="all")
    leader = leader_of(kafka3, name)
    follower = next(broker for broker in kafka3.brokers if broker is not leader)
    settings = settings_of(
        kafka3.bootstrap, max_partition_fetch_bytes=100_000, socket_connection_setup_timeout_ms=2000
    )
    wanted = (RangeOrder(name, 0, At(0), At(RECORDS)),)
    rows = sum(batch.num_rows for batch in KafkaReader().read(WorkOrder(wanted, settings, ("offset",))))
    assert (rows, asked_ports) == (RECORDS, [leader.port])

    asked_ports.clear()
    near = replace(settings, client_rack=f"rack-{follower.node_id}")
    batches = KafkaReader().read(WorkOrder(wanted, near, ("offset",)))
    seen = next(batches).column("offset").to_pylist()
    assert asked_ports == [leader.port, follower.port]
    follower.kill()
    try:
        seen += [each for batch in batches for each in batch.column("offset").to_pylist()]
    finally:
        follower.start()
        kafka3.wait_until_ready()
    assert seen == list(range(RECORDS))
    assert asked_ports[-1] == leader.port
