"""Another client's view of a topic, to compare ours with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.reference.record_decoder import Row

READ_TIMEOUT_S = 60.0


def read_partition(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = False) -> list[Row]:
    """Return all visible rows from the log's start to its end, as librdkafka reports and reads them.

    The isolation level is set explicitly, because its default differs from Java's; checksums are checked.
    """
    rows: list[Row] = []
    with consumer_of(bootstrap, committed=committed) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            assert time.monotonic() < deadline, f"librdkafka did not reach the end of {topic}-{partition}"
            for message in consumer.consume(1000, 0.02):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
                kind, time_ms = message.timestamp()
                rows.append(
                    Row(
                        message.offset(),
                        time_ms,
                        kind - 1,  # librdkafka's kinds begin at 1: creation time, then append time
                        message.key(),
                        message.value(),
                        tuple((name, value) for name, value in message.headers() or ()),
                    )
                )


@contextmanager
def consumer_of(bootstrap: str, *, committed: bool) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.message.max.bytes": 100_000_000,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()
