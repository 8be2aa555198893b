"""Three real brokers: what they keep when one is lost, and how a client finds all of them from any one."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.cli import main
from penstock.cli.commands.why import EXIT_CODES
from penstock.cluster import LocalKafka
from penstock.cluster.kafka.broker_probe import ask_cluster
from penstock.core.errors import ClusterError
from penstock.core.model import TopicPartition as Own
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from tests.support.console import make_console, read_json
from tests.support.kafka.topic_filling import create_placed
from tests.support.waiting import wait_until

PARTITIONS = 3


def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Write one value to each partition in turn, each acknowledged by all in-sync replicas."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []


def read_all(bootstrap: str, topic: str, partitions: int, count: int) -> set[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            record = consumer.poll(1.0)
            if record is not None and record.error() is None:
                found.append(record.value())
    finally:
        consumer.close()
    return set(found)


def in_sync(kafka: LocalKafka, topic: str) -> set[int]:
    """Return the smallest and the largest number of in-sync replicas of the topic's partitions."""
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=30).topics[topic]
    return {len(partition.isrs) for partition in found.partitions.values()}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_with_any_one_broker_stopped_a_topic_of_factor_two_is_whole(
    kafka3: LocalKafka, topic: Any, place: int
) -> None:
    """A1, A7: three brokers, two copies: with any one down, all records are readable, new ones accepted."""
    name = topic(PARTITIONS, factor=2, on=kafka3)
    before = [secrets.token_bytes(8) for _ in range(9)]
    after = [secrets.token_bytes(8) for _ in range(9)]
    write(kafka3.bootstrap, name, before)
    broker = kafka3.brokers[place]
    broker.stop()
    try:
        assert not broker.is_alive
        assert read_all(kafka3.bootstrap, name, PARTITIONS, 9) == set(before)
        write(kafka3.bootstrap, name, after)
        assert read_all(kafka3.bootstrap, name, PARTITIONS, 18) == {*before, *after}
    finally:
        broker.start()
        kafka3.wait_until_ready()
    wait_until(lambda: in_sync(kafka3, name) == {2}, "the broker that came back catches up")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_single_broker_leads_to_all_partitions(kafka3: LocalKafka, topic: Any, place: int) -> None:
    """A12: the caller names one broker, even one that leads no partition here, and reaches everything."""
    name = topic(1, factor=1, on=kafka3)
    write_to = [secrets.token_bytes(8)]
    producer = Producer({"bootstrap.servers": kafka3.bootstrap})
    producer.produce(name, write_to[0], partition=0)
    assert producer.flush(60) == 0
    assert read_all(kafka3.brokers[place].address, name, 1, 1) == set(write_to)


def config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    answer = admin.describe_configs([resource])[resource].result(timeout=30)
    return {name: entry.value for name, entry in answer.items()}


def test_internal_topics_survive_the_loss_of_a_broker(kafka3: LocalKafka) -> None:
    """A18: committed positions and transactions have three copies, two of which must acknowledge a write."""
    producer = Producer({"bootstrap.servers": kafka3.bootstrap, "transactional.id": secrets.token_hex(4)})
    producer.init_transactions(60)  # creates the topic of transactions
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap})
    topics = admin.list_topics(timeout=30).topics
    assert len(topics["__consumer_offsets"].partitions) == 50
    for name in ("__consumer_offsets", "__transaction_state"):
        copies = {len(partition.replicas) for partition in topics[name].partitions.values()}
        assert copies == {3}
        config = config_of(admin, name)
        assert config["min.insync.replicas"] == "2"
        assert config["cleanup.policy"] == "compact"
    assert config_of(admin, "__consumer_offsets")["segment.bytes"] == "104857600"
    leaders = {partition.leader for partition in topics["__consumer_offsets"].partitions.values()}
    assert leaders <= {1, 2, 3}


@pytest.mark.kafka
def test_two_brokers_with_one_id_do_not_both_join() -> None:
    """A2: the second is turned away with an error that says why, and the first carries on."""
    # It gets its own cluster: a cluster remembers the extra broker and would place later topics there.
    with LocalKafka() as cluster:
        first = cluster.add_broker(101)
        with pytest.raises(ClusterError) as caught:
            cluster.add_broker(101)
        assert caught.value.condition == "NODE_ID_TAKEN"
        assert "101" in str(caught.value)
        assert first.is_alive
        for broker in cluster.brokers:
            assert ask_cluster(broker.port).broker_ids == {1, 101}
        listed = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30).brokers
        assert listed[101].port == first.port


def test_the_console_shows_who_leads_who_copies_and_who_is_in_sync(
    kafka3: LocalKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """A6, A9, A13: three partitions of factor two, led by three brokers; the leader is the first replica."""
    name = f"test-{secrets.token_hex(4)}"
    create_placed(kafka3.bootstrap, name, [[2, 3], [3, 1], [1, 2]])
    penstock = make_console(capsys, f"127.0.0.1:{kafka3.brokers[2].port}")
    sample = [["0", "2", "2,3", "2,3"], ["1", "3", "3,1", "3,1"], ["2", "1", "1,2", "1,2"]]

    def in_order() -> bool:
        head, _, *rows = penstock("topics", "describe", name).splitlines()
        assert head.startswith(f"Topic: {name}  Partitions: 3  Replication factor: 2  ")
        return [line.split() for line in rows] == sample

    wait_until(in_order, "all replicas are in sync")
    by_count = f"{name}-counted"
    penstock("topics", "create", by_count, "--partitions", "3", "--replication-factor", "2")
    (made,) = read_json(penstock("topics", "describe", by_count, "--json"))["topics"]
    assert made["replication_factor"] == 2
    assert [len(set(each["replicas"])) for each in made["partitions"]] == [2, 2, 2]
    assert [each["leader"] for each in made["partitions"]] == [
        each["replicas"][0] for each in made["partitions"]
    ]
    # Without a factor the brokers' own default applies, never a silent 1 that one lost disk would destroy.
    penstock("topics", "create", f"{name}-default", "--partitions", "1")
    (plain,) = read_json(penstock("topics", "describe", f"{name}-default", "--json"))["topics"]
    assert plain["replication_factor"] == 3


def test_a_partition_whose_only_replica_is_down_is_said_to_have_no_leader(
    kafka3: LocalKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`penstock why` names that partition, and not the one beside it, which has a leader."""
    name = f"alone-{secrets.token_hex(4)}"
    create_placed(kafka3.bootstrap, name, [[1], [2]])
    store = open_offset_store(f"{tmp_path}/offsets")
    store.save("s", StreamPosition({Own(name, 0): 0, Own(name, 1): 0}))
    asked = ["why", "s", "--offsets", f"{tmp_path}/offsets", "--json", "--bootstrap-server", kafka3.bootstrap]

    def ask() -> tuple[int, Any]:
        capsys.readouterr()
        code = main(asked)
        printed = capsys.readouterr().out
        return code, read_json(printed) if printed else {"condition": "no answer yet"}

    wait_until(lambda: ask()[1]["condition"] == "NO_DATA", "both are led")
    (holder,) = (broker for broker in kafka3.brokers if broker.node_id == 2)
    holder.stop()
    try:
        wait_until(lambda: ask()[1]["condition"] == "NO_LEADER", "the brokers know it")
        code, told = ask()
    finally:
        holder.start()
        kafka3.wait_until_ready()
    assert code == EXIT_CODES["stuck"]
    assert told["what"] == f"{name}-1 has no leader, so nobody can read it."
    assert [each["log_end"] for each in told["partitions"]] == [0, None]
    wait_until(lambda: ask()[1]["condition"] == "NO_DATA", "it is led again")
