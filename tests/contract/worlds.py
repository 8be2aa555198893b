"""Worlds with one interface, under one contract: a log in memory, a real broker, the guide's own queue."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At

from examples.own_queue import Queue, QueueReader, QueueView
from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import LogView, Reader, TopicPartition
from penstock.kafka.metadata import topic_admin
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.testing.memory_log import MemoryLog
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import commit_positions, delete_before
from tests.support.waiting import wait_until

_numbers = itertools.count()


@dataclass(frozen=True)
class Written:
    """One record to write, to partition 0 by default."""

    value: bytes | None = None
    key: bytes | None = None
    timestamp_ms: int = 1_000
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


class World(Protocol):
    settings: ClientSettings

    def create_topic(self, partitions: int = 1) -> str: ...
    def recreate_topic(self, name: str) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def write(self, topic: str, records: Sequence[Written]) -> None: ...
    def write_transaction(self, topic: str, records: Sequence[Written], *, commit: bool) -> None: ...
    def open_transaction(self, topic: str, records: Sequence[Written]) -> OpenTransaction: ...
    def truncate_before(self, topic: str, partition: int, offset: int) -> None: ...
    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...
    def view(self, isolation_level: str = "read_uncommitted") -> LogView: ...
    def reader(self) -> Reader: ...
    def internal_topics(self) -> Collection[str]: ...


class OpenTransaction(Protocol):
    def commit(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.settings = ClientSettings((("127.0.0.1", 1),))

    def create_topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(_numbers)}"
        self.log.create_topic(name, partitions)
        return name

    def recreate_topic(self, name: str) -> None:
        self.log.delete_topic(name)
        self.log.create_topic(name)

    def delete_topic(self, name: str) -> None:
        self.log.delete_topic(name)

    def write(self, topic: str, records: Sequence[Written], transaction: str | None = None) -> None:
        for one in records:
            self.log.append(
                topic,
                one.partition,
                one.key,
                one.value,
                one.timestamp_ms,
                one.headers,
                transaction=transaction,
            )

    def write_transaction(self, topic: str, records: Sequence[Written], *, commit: bool) -> None:
        self.write(topic, records, transaction="t")
        if commit:
            self.log.commit("t")
        else:
            self.log.abort("t")

    def open_transaction(self, topic: str, records: Sequence[Written]) -> OpenTransaction:
        self.write(topic, records, transaction="open")
        log = self.log

        class Open:
            def commit(self) -> None:
                log.commit("open")

        return Open()

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        self.log.truncate_before(topic, partition, offset)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.log.commit_offsets(group, offsets)

    def view(self, isolation_level: str = "read_uncommitted") -> LogView:
        return self.log.view(isolation_level)

    def reader(self) -> Reader:
        return self.log.reader()

    def internal_topics(self) -> Collection[str]:
        self.log.create_topic("__internal", internal=True)
        return ["__internal"]


class KafkaWorld:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.settings = settings_of(bootstrap)

    def create_topic(self, partitions: int = 1) -> str:
        name = f"contract-{next(_numbers)}-{secrets.token_hex(4)}"
        # Old timestamps are part of the tests, and time-based retention would delete their records during a
        # test.
        topic_admin.create_topic(self.settings, name, partitions=partitions, configs={"retention.ms": "-1"})
        return name

    def recreate_topic(self, name: str) -> None:
        topic_admin.delete_topic(self.settings, name)
        topic_admin.create_topic(self.settings, name, configs={"retention.ms": "-1"})

    def delete_topic(self, name: str) -> None:
        topic_admin.delete_topic(self.settings, name)

    def write(self, topic: str, records: Sequence[Written]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        self._produce(producer, topic, records)

    def write_transaction(self, topic: str, records: Sequence[Written], *, commit: bool) -> None:
        producer = self._transactional()
        self._produce(producer, topic, records)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        # The answer comes before the marker is in the log, and the next record could come before the marker
        # too.
        partitions = [TopicPartition(topic, each) for each in {one.partition for one in records}]
        plain, stable = self.view(), self.view("read_committed")
        wait_until(lambda: plain.latest(partitions) == stable.latest(partitions), "the marker is written")

    def open_transaction(self, topic: str, records: Sequence[Written]) -> OpenTransaction:
        producer = self._transactional()
        self._produce(producer, topic, records)

        class Open:
            def commit(self) -> None:
                producer.commit_transaction(30)

        return Open()

    def _transactional(self) -> Producer:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": f"contract-{secrets.token_hex(4)}"}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        return producer

    def _produce(self, producer: Producer, topic: str, records: Sequence[Written]) -> None:
        for one in records:
            producer.produce(
                topic,
                value=one.value,
                key=one.key,
                partition=one.partition,
                timestamp=one.timestamp_ms,
                headers=list(one.headers),
            )
        assert producer.flush(30) == 0

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        delete_before(self.bootstrap, topic, offset, partition)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        wanted = [At(each.topic, each.partition, offset) for each, offset in offsets.items()]
        commit_positions(self.bootstrap, group, wanted)

    def view(self, isolation_level: str = "read_uncommitted") -> LogView:
        from dataclasses import replace

        return KafkaLogView(replace(self.settings, isolation_level=isolation_level))

    def reader(self) -> Reader:
        return KafkaReader()

    def internal_topics(self) -> Collection[str]:
        # The broker creates this topic when the first group asks for its coordinator.
        self.commit_offsets(f"group-{secrets.token_hex(4)}", {TopicPartition(self.create_topic(), 0): 0})
        return ["__consumer_offsets"]


class QueueWorld:
    """The queue from the guide "Your own queue"."""

    def __init__(self, path: Path) -> None:
        self.queue = Queue(path)
        self.settings = ClientSettings((("127.0.0.1", 1),))

    def create_topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(_numbers)}"
        self.queue.create(name, partitions)
        return name

    def recreate_topic(self, name: str) -> None:
        self.queue.delete(name)
        self.queue.create(name)

    def delete_topic(self, name: str) -> None:
        self.queue.delete(name)

    def write(self, topic: str, records: Sequence[Written]) -> None:
        for one in records:
            self.queue.append(topic, one.value, one.key, one.partition, one.timestamp_ms)

    def write_transaction(self, topic: str, records: Sequence[Written], *, commit: bool) -> None:
        raise AssertionError("this queue has no transactions")

    def open_transaction(self, topic: str, records: Sequence[Written]) -> OpenTransaction:
        raise AssertionError("this queue has no transactions")

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        self.queue.forget_before(topic, partition, offset)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        for each, offset in offsets.items():
            self.queue.commit(group, each.topic, each.partition, offset)

    def view(self, isolation_level: str = "read_uncommitted") -> LogView:
        return QueueView(self.queue)

    def reader(self) -> Reader:
        return QueueReader(self.queue)

    def internal_topics(self) -> Collection[str]:
        raise AssertionError("this queue has no topics of its own")
