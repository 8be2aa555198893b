"""What a log reveals about its past after clean and unclean elections, in memory and on three brokers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import LogView, TopicPartition
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.testing.memory_log import MemoryLog
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

_numbers = count()


class Elections(Protocol):
    """One partition whose leader can be changed."""

    partition: TopicPartition

    def view(self) -> LogView: ...
    def write(self, records: int) -> None: ...
    def elect(self) -> None:
        """Elect another leader, one that has every record."""

    def write_and_lose(self, records: int) -> int:
        """Write records that only the leader has, elect one without them, and return their leader epoch."""


class ElectionsInMemory:
    partition = TopicPartition("elections", 0)

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create_topic(self.partition.topic)

    def view(self) -> LogView:
        return self.log.view()

    def write(self, records: int) -> None:
        for _ in range(records):
            self.log.append(self.partition.topic, 0, value=b"x")

    def elect(self) -> None:
        self.log.move_leader(self.partition.topic, 0)

    def write_and_lose(self, records: int) -> int:
        (end,) = self.view().latest([self.partition]).values()
        self.write(records)
        epoch = epoch_of(self)
        self.log.truncate_after(self.partition.topic, 0, end)
        return epoch


class ElectionsOnBrokers:
    def __init__(self, cluster: Any, topic: Callable[..., str]) -> None:
        config = {"min_insync_replicas": 1, "unclean_leader_election_enable": "true"}
        self.cluster = cluster
        self.partition = TopicPartition(topic(on=cluster, factor=2, **config), 0)
        servers = [broker.address.rsplit(":", 1) for broker in cluster.brokers]
        self.settings = ClientSettings(tuple((host, int(port)) for host, port in servers))
        wait_until(self.all_agree, "all brokers know the new topic")

    def view(self) -> LogView:
        return KafkaLogView(self.settings)

    def write(self, records: int) -> None:
        produce(self.cluster.bootstrap, self.partition.topic, [b"x"] * records, acks="all")

    def elect(self) -> None:
        before = self.state()
        leader = self.broker(before.leader)
        leader.stop()
        try:
            wait_until(lambda: self.state().leader not in (-1, before.leader), "another broker leads")
        finally:
            self.bring_back(leader)

    def write_and_lose(self, records: int) -> int:
        before = self.state()
        leader = self.broker(before.leader)
        follower = next(self.broker(each) for each in before.replicas if each != before.leader)
        follower.stop()
        try:
            wait_until(lambda: self.state().isrs == [leader.node_id], "the leader is alone")
            produce(self.cluster.bootstrap, self.partition.topic, [b"lost"] * records, acks=1)
            epoch = epoch_of(self)
            leader.kill()
        finally:
            follower.start()
        try:
            wait_until(lambda: self.state().leader == follower.node_id, "the follower leads", timeout_s=60)
        finally:
            self.bring_back(leader)
        return epoch

    def bring_back(self, broker: Any) -> None:
        broker.start()
        self.cluster.wait_until_ready()
        wait_until(lambda: len(self.state().isrs) == 2, "both copies are in sync", timeout_s=60)
        wait_until(self.all_agree, "all brokers tell the same epoch", timeout_s=60)

    def all_agree(self) -> bool:
        """Return whether all brokers report one epoch: a restarted one may report an old one, or none."""
        told = set()
        for host, port in self.settings.bootstrap_servers:
            # Each broker is asked by a new client, because one that knows the other brokers would ask them
            # too.
            client = ClientSettings(((host, port),), client_id=f"look-{next(_numbers)}")
            found = KafkaLogView(client).describe([self.partition.topic]).get(self.partition.topic)
            told.add(None if found is None else found.leader_epoch(self.partition.partition))
        return len(told) == 1 and None not in told

    def state(self) -> Any:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        return admin.list_topics(self.partition.topic, timeout=20).topics[self.partition.topic].partitions[0]

    def broker(self, node_id: int) -> Any:
        return next(broker for broker in self.cluster.brokers if broker.node_id == node_id)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def elections(request: pytest.FixtureRequest) -> Elections:
    if request.param == "memory":
        return ElectionsInMemory()
    return ElectionsOnBrokers(request.getfixturevalue("kafka3"), request.getfixturevalue("topic"))


def epoch_of(elections: Elections) -> int:
    partition = elections.partition
    epoch = elections.view().describe([partition.topic])[partition.topic].leader_epoch(partition.partition)
    assert epoch is not None
    return epoch


def end_of(elections: Elections, epoch: int) -> int | None:
    return elections.view().epoch_ends({elections.partition: epoch}).get(elections.partition)


def test_the_end_of_an_epoch_tells_a_cut_that_the_end_of_the_log_hides(elections: Elections) -> None:
    """A clean election moves no end; after an unclean one, positions above the cut are outdated."""
    elections.write(5)
    first = epoch_of(elections)
    assert end_of(elections, first) == 5
    elections.elect()
    second = epoch_of(elections)
    assert second > first
    elections.write(3)
    assert end_of(elections, first) == 5
    assert end_of(elections, second) == 8
    lost = elections.write_and_lose(4)  # a reader may have come to 12 and remembers this epoch
    assert epoch_of(elections) > lost >= second
    assert end_of(elections, lost) == 8
    elections.write(10)
    assert elections.view().latest([elections.partition]) == {elections.partition: 18}
    assert end_of(elections, lost) == 8
    assert end_of(elections, first) == 5
    assert end_of(elections, epoch_of(elections)) == 18


def test_a_log_in_memory_forgets_what_an_unclean_election_cut_off() -> None:
    log = MemoryLog()
    log.create_topic("t")
    partition = TopicPartition("t", 0)
    for number in range(4):
        log.append("t", 0, value=b"%d" % number, transaction="open" if number == 3 else None)
    log.truncate_after("t", 0, 2)
    assert log.view().latest([partition]) == log.view("read_committed").latest([partition]) == {partition: 2}
    assert log.append("t", 0, value=b"new") == 2
    assert log.view().epoch_ends({partition: 0}) == {partition: 2}
    log.truncate_after("t", 0, 99)  # past the end: an election that lost nothing
    assert log.view().latest([partition]) == {partition: 3}
    assert log.view().describe(["t"])["t"].leader_epochs == (2,)
