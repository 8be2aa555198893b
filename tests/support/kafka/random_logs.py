"""Random logs on a real broker, read by us and by librdkafka.

A log is a topic of one partition, filled in random steps: librdkafka's producers with and without
transactions (committed, aborted, left open), our own writer, any codec, headers, nulls. Afterwards the broker
may compact it, or `delete_records` may trim it. This module does not know which rows are right: two
independent clients must agree on them, at both isolation levels, however the fetches are cut.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import At, Earliest, Latest, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.records.codecs import CODEC_NAMES
from penstock.kafka.writing.plain_producer import Writer
from tests.reference.record_decoder import Row
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.decoding_checks import COLUMNS, rows_of
from tests.support.kafka.librdkafka import read_partition

FEATURES = ("committed", "aborted", "open", "ours", "headers", "nulls", "compacted", "append time", "trimmed")
DELIVERY_TIMEOUT_S = 60.0
COMPACTION_TIMEOUT_S = 150
_AFTER_ALL_MS = 1_700_000_000_000
_HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class RandomLog:
    """One log's plan; `produced` counts the records that were sent to it."""

    number: int
    codec: int
    features: frozenset[str]
    topic: str = ""
    produced: int = 0
    rng: random.Random = field(default_factory=random.Random, repr=False)


def plan_logs(seed: int, count: int) -> list[RandomLog]:
    """Return plans: codecs take turns; each feature is in half of the logs (open, trimmed: in fewer)."""
    logs = []
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        rare = {"open": 0.4, "trimmed": 0.35}
        features = {name for name in FEATURES if rng.random() < rare.get(name, 0.5)}
        if "open" in features:
            features.discard("compacted")  # the cleaner would never get past the open transaction
        logs.append(RandomLog(number, number % 5, frozenset(features), rng=rng))
    return logs


class LogMaker:
    """Fills topics. All logs of a codec share the transactional producers, to save registrations."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producers: dict[tuple[int, str], Producer] = {}
        self.settings = settings_of(bootstrap)

    def make(self, log: RandomLog) -> None:
        """Create the topic and write to it; `settle` waits for what the broker does later."""
        rng = log.rng
        config = {
            "retention.ms": "-1",
            "message.timestamp.type": "LogAppendTime" if "append time" in log.features else "CreateTime",
        }
        if "compacted" in log.features:
            config |= {
                # Deleting records by request is allowed only if the policy includes "delete".
                "cleanup.policy": "compact,delete" if "trimmed" in log.features else "compact",
                "segment.ms": "50",
                "min.cleanable.dirty.ratio": "0.001",
                "max.compaction.lag.ms": "100",
                "delete.retention.ms": "0",
            }
        log.topic = f"{self.name}-{log.number}"
        self.admin.create_topics([NewTopic(log.topic, 1, 1, config=config)])[log.topic].result(timeout=30)
        steps: list[Callable[[RandomLog], None]] = [self._plain]
        if "ours" in log.features:
            steps.append(self._ours)
        for _ in range(rng.randrange(4, 9)):
            if log.features & {"committed", "aborted"} and rng.random() < 0.6:
                self._transactions(log)
            else:
                rng.choice(steps)(log)
        if "ours" in log.features:
            self._ours(log)
        for outcome in ("committed", "aborted"):
            if outcome in log.features:
                self._transaction(log, "a", outcome)
        if "open" in log.features:
            self._leave_open(log)

    def _records(self, log: RandomLog, most: int = 12) -> list[dict[str, Any]]:
        rng = log.rng

        def octets() -> bytes | None:
            shape = rng.randrange(5)
            if "nulls" in log.features and shape < 2:
                return (None, b"")[shape]
            return rng.randbytes(rng.choice((1, 10, 200, 3000)))

        records = []
        for _ in range(rng.randrange(1, most)):
            log.produced += 1
            record: dict[str, Any] = {"key": octets(), "value": octets()}
            if "compacted" in log.features:
                record["key"] = b"key-%d" % rng.randrange(6)
            record["timestamp"] = rng.randrange(1_500_000_000_000, _AFTER_ALL_MS - 1_000)
            if "headers" in log.features and rng.random() < 0.7:
                names = [rng.choice(("a", "b", "ü", "")) for _ in range(rng.randrange(4))]
                record["headers"] = [(name, rng.choice((None, b"", b"mark"))) for name in names]
            records.append(record)
        return records

    def _send(self, producer: Producer, log: RandomLog, most: int = 12) -> None:
        for record in self._records(log, most):
            producer.produce(log.topic, partition=0, **record)
            if log.rng.random() < 0.2:
                flush(producer)  # ends a batch
        flush(producer)

    def _plain(self, log: RandomLog) -> None:
        self._send(self._producer(log.codec, ""), log, most=30)

    def _begin_segment(self, log: RandomLog) -> None:
        """Write one record later than all others: the broker cleans only what is before its last segment.

        A new segment begins by the records' times, or by the broker's clock in a log of append times. Without
        this, a first batch that happens to be the youngest, or a log that is written in no time, would stay
        one segment.
        """
        producer = self._producer(log.codec, "")
        producer.produce(
            log.topic,
            partition=0,
            key=b"key-0",
            value=b"last",
            timestamp=_AFTER_ALL_MS + 1_000 * log.produced,
        )
        log.produced += 1
        flush(producer)

    def _ours(self, log: RandomLog) -> None:
        records = self._records(log, most=30)
        table = pa.record_batch(
            {
                "key": pa.array([r["key"] for r in records], pa.binary()),
                "value": pa.array([r["value"] for r in records], pa.binary()),
                "timestamp": pa.array([r["timestamp"] for r in records], pa.int64()),
                "headers": pa.array(
                    [[{"key": k, "value": v} for k, v in r.get("headers", ())] for r in records], _HEADER_TYPE
                ),
            }
        )
        size = log.rng.choice((300, 5_000, 1_000_000))
        Writer(self.settings, codec=log.codec, max_batch_bytes=size).write(log.topic, table)

    def _transactions(self, log: RandomLog) -> None:
        """Write the transactions of two producers, interleaved with each other and with plain records."""
        outcomes = sorted(log.features & {"committed", "aborted"})
        names = log.rng.choice((["a"], ["a", "b"]))
        for name in names:
            self._producer(log.codec, name).begin_transaction()
        for _ in range(log.rng.randrange(1, 4)):
            self._send(self._producer(log.codec, log.rng.choice(names)), log, most=6)
            if log.rng.random() < 0.4:
                self._plain(log)
        for name in log.rng.sample(names, len(names)):
            end_transaction(self._producer(log.codec, name), log.rng.choice(outcomes))

    def _transaction(self, log: RandomLog, name: str, outcome: str) -> None:
        producer = self._producer(log.codec, name)
        producer.begin_transaction()
        self._send(producer, log)
        end_transaction(producer, outcome)

    def _leave_open(self, log: RandomLog) -> None:
        """Leave a transaction open while the log is read; rows behind it are not yet stable."""
        producer = self._new_producer(log.codec, f"open-{log.number}")
        producer.begin_transaction()
        self._send(producer, log)
        self._producers[log.codec, f"open-{log.number}"] = producer
        self._plain(log)

    def _producer(self, codec: int, name: str) -> Producer:
        known = self._producers.get((codec, name))
        if known is None:
            known = self._producers[codec, name] = self._new_producer(codec, name)
        return known

    def _new_producer(self, codec: int, name: str) -> Producer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap, "compression.type": CODEC_NAMES[codec], "linger.ms": 5,
            "enable.idempotence": True,
        }  # fmt: skip
        if name:
            config["transactional.id"] = f"{self.name}-{codec}-{name}"
            config["transaction.timeout.ms"] = 900_000  # an open one must stay open while the log is read
        producer = Producer(config)
        if name:
            producer.init_transactions(DELIVERY_TIMEOUT_S)
        return producer

    def settle(self, log: RandomLog) -> None:
        """Wait until the cleaner has run, then trim."""
        if "compacted" in log.features:
            deadline = time.monotonic() + COMPACTION_TIMEOUT_S
            while len(read_partition(self.bootstrap, log.topic)) >= log.produced:
                assert time.monotonic() < deadline, f"{log.topic} was not compacted"
                self._begin_segment(log)
                time.sleep(0.3)
        if "trimmed" in log.features:
            rows = read_partition(self.bootstrap, log.topic, committed=True)
            if rows:
                where = TopicPartition(log.topic, 0, log.rng.choice(rows).offset)
                for future in self.admin.delete_records([where]).values():
                    future.result()

    def close(self, topics: Sequence[str] = ()) -> None:
        for (_, name), producer in self._producers.items():
            if name.startswith("open-"):
                producer.abort_transaction(DELIVERY_TIMEOUT_S)
        self._producers.clear()
        if topics:
            for future in self.admin.delete_topics(list(topics)).values():
                future.result()


def flush(producer: Producer) -> None:
    assert producer.flush(DELIVERY_TIMEOUT_S) == 0


def end_transaction(producer: Producer, outcome: str) -> None:
    if outcome == "committed":
        producer.commit_transaction(DELIVERY_TIMEOUT_S)
    else:
        producer.abort_transaction(DELIVERY_TIMEOUT_S)


def read_with_penstock(settings: ClientSettings, wanted: RangeOrder) -> list[Row]:
    order = WorkOrder((wanted,), settings, COLUMNS, poll_timeout_ms=30_000)
    return [row for batch in KafkaReader().read(order) for row in rows_of(batch)]


def compare(bootstrap: str, log: RandomLog) -> None:
    """Compare both clients at both isolation levels, with several fetch sizes and one random range."""
    for level in ("read_uncommitted", "read_committed"):
        expected = read_partition(bootstrap, log.topic, committed=level == "read_committed")
        for fetch_bytes in (8 << 20, log.rng.choice((100, 1_000, 20_000))):
            settings = settings_of(bootstrap, isolation_level=level, max_partition_fetch_bytes=fetch_bytes)
            got = read_with_penstock(settings, RangeOrder(log.topic, 0, Earliest(), Latest()))
            assert got == expected, f"{log} at {level} in fetches of {fetch_bytes} bytes"
        if expected:
            first, last = expected[0].offset, expected[-1].offset
            start = log.rng.randrange(first, last + 1)
            until = log.rng.randrange(start, last + 1)
            got = read_with_penstock(settings, RangeOrder(log.topic, 0, At(start), At(until)))
            assert got == [row for row in expected if start <= row.offset < until], f"{log} {start}..{until}"


def run(bootstrap: str, name: str, seed: int, count: int) -> dict[tuple[str, str], int]:
    """Make, settle and compare `count` logs; return the number of logs for each codec and feature."""
    maker, logs = LogMaker(bootstrap, name), plan_logs(seed, count)
    try:
        for log in logs:
            maker.make(log)
        for log in logs:
            maker.settle(log)
            compare(bootstrap, log)
    finally:
        maker.close([log.topic for log in logs if log.topic])
    return Counter((CODEC_NAMES[log.codec], feature) for log in logs for feature in log.features)
