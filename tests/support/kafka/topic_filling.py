"""Fills topics for tests with another implementation of Kafka's protocol than the one under test."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.waiting import wait_until

Headers = Sequence[tuple[str, bytes | None]]

#: A broker's answers about a group while its coordinator is still starting.
COORDINATOR_STARTS = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | str | None],
    *,
    partition: int = 0,
    key: bytes | None = None,
    timestamp_ms: int = 0,
    headers: Headers | None = None,
    **settings: object,
) -> None:
    """Write the values in order to one partition and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "max.in.flight": 1, **settings})
    send(producer, topic, values, partition=partition, key=key, timestamp_ms=timestamp_ms, headers=headers)
    assert producer.flush(60) == 0


def send(producer: Producer, topic: str, values: Iterable[bytes | str | None], **how: Any) -> None:
    """Hand the values to a producer; a refused value fails the test when the producer is flushed."""
    how = {
        "partition": how.get("partition", 0),
        "key": how.get("key"),
        "timestamp": how.get("timestamp_ms", 0),
        "headers": list(how["headers"]) if how.get("headers") is not None else None,
        "on_delivery": _check_delivery,
    }
    if not how["timestamp"]:
        del how["timestamp"]
    for value in values:
        while True:
            try:
                producer.produce(topic, value=value, **how)
                break
            except BufferError:
                producer.poll(0.1)


def _check_delivery(error: object, _message: object) -> None:
    assert error is None, f"not delivered: {error}"


def read_back(bootstrap: str, topic: str, count: int, timeout_s: float = 30.0) -> list[Any]:
    """Return the first `count` records of a topic, as another client sees them, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "read-back", "enable.auto.commit": False}
    )
    found: list[Any] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([At(topic, number, 0) for number in partitions])
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records within {timeout_s} s"
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                found.append(record)
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition(), record.offset()))


def open_transaction(bootstrap: str, transactional_id: str | None = None) -> Producer:
    """Return a producer inside a transaction; the caller sends, flushes, and commits or aborts."""
    name = transactional_id or f"t-{secrets.token_hex(6)}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


def await_markers(bootstrap: str, topic: str, partition: int = 0) -> None:
    """Wait until all transactions are over in the log: commit and abort return before their marker exists."""
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "isolation.level": level}
        ends.append(Consumer(settings))

    def is_settled() -> bool:
        stable, high = (each.get_watermark_offsets(At(topic, partition), timeout=30)[1] for each in ends)
        return stable == high

    try:
        wait_until(is_settled, f"no transaction is open in {topic}-{partition}")
    finally:
        for each in ends:
            each.close()


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Delete the records below an offset, as retention would do later."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    done = admin.delete_records([At(topic, partition, offset)])
    for each in done.values():
        assert each.result(timeout=30).low_watermark == offset


def create_placed(bootstrap: str, topic: str, brokers: Sequence[Sequence[int]]) -> None:
    """Create a topic on the given brokers, preferred leader first, and wait until all brokers show it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=len(brokers), replica_assignment=[list(each) for each in brokers])
    admin.create_topics([new])[topic].result(timeout=30)

    def is_led(server: str) -> bool:
        found = AdminClient({"bootstrap.servers": server}).list_topics(topic, timeout=30).topics[topic]
        return len(found.partitions) == len(brokers) and all(
            each.leader >= 0 for each in found.partitions.values()
        )

    wait_until(lambda: all(map(is_led, bootstrap.split(","))), f"{topic} has leaders")


def alter_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Set one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(timeout=30)


def commit_offsets(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets for partitions 0, 1, ... of one topic."""
    commit_positions(bootstrap, group, [At(topic, *each) for each in enumerate(offsets)])


def commit_positions(bootstrap: str, group: str, wanted: list[At]) -> None:
    """Commit positions; retry while the group's coordinator is still starting."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})

    def commit() -> bool:
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_STARTS:
                raise
            return False
        return True

    wait_until(commit, "the coordinator takes the commit")
    consumer.close()
