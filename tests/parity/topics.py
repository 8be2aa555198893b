"""The topics that both connectors read: fixed content, made once per session.

Rule: whatever an option set can say about a topic (partitions, offsets, times) is known here before any
broker runs, so that option sets can be generated, counted and repeated without one. Names in option sets
carry a tilde, `~skew`, which stands for the session's prefix; no topic name can contain one. Times are
fixed too, one second apart from `T0`, except where the broker stamps them itself.

    shapes = {shape.name: shape for shape in SHAPES}; shapes["skew"].ends == (120, 12, 3, 0)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import wait_until

T0 = 1_700_000_000_000
STEP_MS = 1000
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Shape:
    """One topic: the first offset and the end of each partition, when everything is written."""

    name: str
    ends: tuple[int, ...]
    starts: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    #: Broker-stamped topics have later times than all those around `T0`.
    stamped: bool = False

    @property
    def partitions(self) -> range:
        return range(len(self.ends))

    def start(self, partition: int) -> int:
        return self.starts[partition] if self.starts else 0


SHAPES = (
    Shape("plain", (40,)),
    Shape("skew", (120, 12, 3, 0)),
    Shape("nulls", (18, 18)),
    Shape("Upper.CASE_1", (9, 4)),
    Shape("orders-eu", (15, 15)),
    Shape("orders-US", (25,)),
    Shape("stamped", (20, 6), settings={"message.timestamp.type": "LogAppendTime"}, stamped=True),
    Shape("jumbled", (16,)),
    Shape("trimmed", (30, 30), starts=(10, 0)),
    Shape(
        "compacted",
        (41,),
        settings={
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": "86400000",
        },
    ),
    Shape("transacted", (28, 6)),
    Shape("open", (13, 5)),
    Shape("empty", (0,)),
)
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [("one", b"1")],
    [("a", b"1"), ("b", b""), ("a", b"2")],
    [("none", None)],
    [("", b"empty key"), ("ünï", "ö".encode())],
    [("b", b"\x00\xff"), ("a", None), ("b", b"\x00\xff")],
)
#: Seconds after `T0` of each record: not ascending, and one record without a time.
JUMBLED_S = (5, 3, 9, 9, 1, 0, 12, None, 7, 30, 20, 25, 30, 2, 31, 4)


def time_of(index: int) -> int:
    return T0 + index * STEP_MS


class TopicWriter:
    """Writes the content of every shape to a broker, under one prefix."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = self._producer()
        self.open_transaction: Producer | None = None

    def write_all(self) -> None:
        self._create()
        for shape in SHAPES:
            special: Callable[[Shape], None] | None = getattr(self, f"_fill_{shape.name}", None)
            (special or self._fill_plainly)(shape)
        self._flush(self.producer)
        self._trim()
        self._make_internal_topic()
        for shape in SHAPES:
            self._wait_for_ends(shape)
        self._wait_for_compaction()

    def close(self) -> None:
        if self.open_transaction is None:
            return
        try:
            self.open_transaction.abort_transaction(DEADLINE_S)
        except KafkaException as error:
            # After a quarter of an hour the broker has aborted the transaction itself. The rows and numbers
            # that the tests use stay the same, but there is one more marker at the end.
            if error.args[0].code() != KafkaError._FENCED:
                raise

    # --- content ----------------------------------------------------------------------------------

    def _fill_plainly(self, shape: Shape) -> None:
        for partition in shape.partitions:
            for index in range(shape.ends[partition]):
                self._send(shape, partition, index)

    def _fill_nulls(self, shape: Shape) -> None:
        contents = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v" * 3)]
        for partition in shape.partitions:
            for index in range(shape.ends[partition]):
                key, value = contents[index % len(contents)]
                self._send(
                    shape, partition, index, key=key, value=value, headers=HEADERS[index % len(HEADERS)]
                )

    def _fill_jumbled(self, shape: Shape) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised while this library is imported
            from kafka import KafkaProducer

        # librdkafka replaces a missing time with the current one; this client sends it as it is.
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=0)
        for index, second in enumerate(JUMBLED_S):
            moment = -1 if second is None else time_of(second)
            sent = producer.send(
                self.prefix + shape.name, value=b"%d" % index, partition=0, timestamp_ms=moment
            )
            sent.get(timeout=DEADLINE_S)
        producer.close()

    def _fill_compacted(self, shape: Shape) -> None:
        for index in range(shape.ends[0]):
            self._send(shape, 0, index, key=b"k%d" % (index % 7))
            self._flush(self.producer)

    def _fill_transacted(self, shape: Shape) -> None:
        """Fill partition 0: 4 plain, 5 committed, 6 aborted, 3 committed, 6 aborted; a marker after each."""
        producer = self._producer(shape.name)
        for index in range(4):
            self._send(shape, 0, index)
        self._flush(self.producer)
        for count, commit in ((5, True), (6, False), (3, True), (6, False)):
            producer.begin_transaction()
            for index in range(count):
                self._send(shape, 0, index, producer)
            if count in (5, 3):
                self._send(shape, 1, count, producer, headers=[("in", b"transaction")])
            producer.flush(DEADLINE_S)
            if commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        for index in range(2):
            self._send(shape, 1, index)

    def _fill_open(self, shape: Shape) -> None:
        """End both partitions with records of a transaction that stays open while tests run."""
        producer = self._producer(shape.name)
        for partition, settled in ((0, 8), (1, 2)):
            for index in range(settled):
                self._send(shape, partition, index)
        self._flush(self.producer)
        producer.begin_transaction()
        for partition, settled in ((0, 8), (1, 2)):
            for index in range(settled, shape.ends[partition]):
                self._send(shape, partition, index, producer)
        producer.flush(DEADLINE_S)
        self.open_transaction = producer

    def _send(
        self,
        shape: Shape,
        partition: int,
        index: int,
        producer: Producer | None = None,
        *,
        key: bytes | None = b"",
        value: bytes | None = b"-",
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        (producer or self.producer).produce(
            self.prefix + shape.name,
            key=b"k%d" % (index % 5) if key == b"" and shape.name != "nulls" else key,
            value=b"%s %d %d" % (shape.name.encode(), partition, index) if value == b"-" else value,
            partition=partition,
            timestamp=time_of(index),
            headers=headers,
        )

    # --- the broker -------------------------------------------------------------------------------

    def _producer(self, transaction: str | None = None) -> Producer:
        # With more requests in flight, a batch that is retried may land behind the next one.
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "linger.ms": 0}
        settings["max.in.flight"] = 1
        if transaction is not None:
            settings["transactional.id"] = f"{self.prefix}{transaction}"
            settings["transaction.timeout.ms"] = 900_000
        producer = Producer(settings)
        if transaction is not None:
            producer.init_transactions(DEADLINE_S)
        return producer

    def _flush(self, producer: Producer) -> None:
        assert producer.flush(DEADLINE_S) == 0

    def _create(self) -> None:
        wanted = [
            # The records are dated years ago: without this the broker would delete them as too old.
            NewTopic(
                self.prefix + each.name, len(each.ends), 1, config={"retention.ms": "-1", **each.settings}
            )
            for each in SHAPES
        ]
        for future in self.admin.create_topics(wanted).values():
            future.result(timeout=DEADLINE_S)

    def _trim(self) -> None:
        for shape in SHAPES:
            cuts = [
                TopicPartition(self.prefix + shape.name, partition, start)
                for partition, start in enumerate(shape.starts)
                if start
            ]
            for future in (self.admin.delete_records(cuts) if cuts else {}).values():
                future.result(timeout=DEADLINE_S)

    def _make_internal_topic(self) -> None:
        """Commit a group offset, which makes Kafka create the topic it keeps offsets in."""
        place = TopicPartition(self.prefix + "plain", 0, 7)
        group = ConsumerGroupTopicPartitions(self.prefix + "group", [place])

        def commit() -> bool:
            try:
                for future in self.admin.alter_consumer_group_offsets([group]).values():
                    future.result(timeout=DEADLINE_S)
            except KafkaException as error:
                if "COORDINATOR" in str(error).upper():
                    return False  # it is still being created
                raise
            return True

        wait_until(commit, "the coordinator takes the commit", DEADLINE_S)

    def _wait_for_ends(self, shape: Shape) -> None:
        with self._consumer() as consumer:
            for partition in shape.partitions:
                place = TopicPartition(self.prefix + shape.name, partition)
                found = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
                expected = (shape.start(partition), shape.ends[partition])
                assert found == expected, f"{shape.name} {partition} holds {found}, not {expected}"

    def _wait_for_compaction(self) -> None:
        """Wait until six of the seven keys survive once each before the last record, in the open segment."""
        wait_until(lambda: self._count_compacted() <= 8, "the log is compacted", DEADLINE_S, every_s=0.1)

    def _count_compacted(self) -> int:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self.prefix + "compacted", 0, 0)])
            count, ended = 0, False
            while not ended:
                message = consumer.poll(DEADLINE_S)
                ended = message is None or message.error() is not None
                count += not ended
            return count

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.prefix}watch",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "error",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()
