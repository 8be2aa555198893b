"""Random histories of topics and of a stream that reads them, on real Spark and real Kafka.

Every record has a unique value and is written down with its place, so the expected result is simple. Without
loss, each record is read exactly once. With loss (topics deleted or recreated, records deleted), nothing is
read twice, nothing fails, and everything that is in the log at the end was read. A failing history shows its
seed and its steps. tests/unit runs the same by the thousand, with a miniature of the engine.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.streaming import add_partitions, create_topic, delete_topic
from tests.support.kafka.librdkafka import read_partition
from tests.support.kafka.topic_filling import delete_before
from tests.support.waiting import wait_until

Row = tuple[str, int, int, bytes]
_NOT_BEGUN = "Python worker failed to connect back"


@dataclass
class History:
    """Some topics, one stream over all of them, and everything that was ever written."""

    session: SparkSession
    bootstrap: str
    folder: Path
    prefix: str
    seed: int
    lossy: bool
    written: list[Row] = field(default_factory=list)
    batches: dict[int, list[Row]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)
    slowness: float = 0.0
    _made: int = 0
    _query: StreamingQuery | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._cap = self.random.randint(5, 60)
        self.create()

    # --- what happens to the topics ---------------------------------------------------------------------

    def create(self) -> None:
        self._make(f"{self.prefix}-{self._made}")
        self._made += 1

    def _make(self, name: str) -> None:
        self.partitions[name] = self.random.randint(1, 3)
        create_topic(self.bootstrap, name, self.partitions[name])

    def add_data(self) -> None:
        refused: list[str] = []
        # A new producer each time, because one believes for a while in what a topic was before.
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1, "log_level": 0})

        def note(error: object, message: Any) -> None:
            if error is not None:
                refused.append(str(error))
            else:
                self.written.append(
                    (message.topic(), message.partition(), message.offset(), bytes(message.value()))
                )

        for number in range(self.random.randint(1, 40)):
            topic = self.random.choice(sorted(self.partitions))
            producer.produce(
                topic,
                value=f"{self.seed}/{len(self.steps)}/{number}".encode(),
                partition=self.random.randrange(self.partitions[topic]),
                on_delivery=note,
            )
        assert producer.flush(60) == 0
        assert refused == []

    def add_partitions(self) -> None:
        topic = self._pick()
        if self.partitions[topic] < 5:
            self.partitions[topic] += 1
            add_partitions(self.bootstrap, topic, self.partitions[topic])

    def delete(self) -> None:
        if len(self.partitions) > 1:
            topic = self._pick()
            delete_topic(self.bootstrap, topic)
            del self.partitions[topic]

    def recreate(self) -> None:
        topic = self._pick()
        delete_topic(self.bootstrap, topic)
        self._make(topic)

    def delete_records(self) -> None:
        topic = self._pick()
        partition = self.random.randrange(self.partitions[topic])
        first, end = self._find_ends(topic, partition)
        if end > first:
            delete_before(self.bootstrap, topic, self.random.randint(first + 1, end), partition)

    def _pick(self) -> str:
        return self.random.choice(sorted(self.partitions))

    def _find_ends(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", "log_level": 0})
        found: list[tuple[int, int]] = []

        def look() -> bool:
            try:
                found.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30))
            except KafkaException as error:
                # A topic created a moment ago may have no leader yet.
                if error.args[0].name() not in ("NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART"):
                    raise
            return bool(found)

        try:
            wait_until(look, f"{topic}-{partition} has a leader")
            return found[0]
        finally:
            consumer.close()

    # --- what happens to the stream ---------------------------------------------------------------------

    def start(self, **trigger: Any) -> None:
        """Start the query, again if Spark gave up on a Python process that was slow to start.

        Spark gives the process ten seconds, which is too little on a busy machine. The story notes each such
        restart.
        """
        while self._begin(**trigger):
            self.steps.append("(Spark's process was too slow)")

    def _begin(self, **trigger: Any) -> bool:
        """Start the query; return True when Spark gave up on its own process before the source was made."""

        def keep(batch: DataFrame, number: int) -> None:
            rows = batch.select("topic", "partition", "offset", "value").collect()
            while self.random.random() < self.slowness:
                time.sleep(0.05)  # the work of a batch, which takes longer than the log stays unchanged
            self.batches[number] = [(row.topic, row.partition, row.offset, bytes(row.value)) for row in rows]

        frame = (
            self.session.readStream.format("penstock")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribePattern", f"{self.prefix}-.*")
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", str(not self.lossy).lower())
            .option("maxOffsetsPerTrigger", self._cap)
            .option("fetchOffset.retryIntervalMs", "50")
            .load()
        )
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.folder))
        query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        self._query = query
        wait_until(
            lambda: not query.isActive or "nitializing" not in query.status["message"], "it begins", 60
        )
        return query.exception() is not None and _NOT_BEGUN in str(query.exception())

    def run_on(self) -> None:
        """Let the query read everything there is."""
        if self._query is None:
            self.start()
        assert self._query is not None
        self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop the query in the middle of whatever it does."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def change_cap(self) -> None:
        self._cap = self.random.randint(3, 200)
        self.restart()

    def run_available_now(self) -> None:
        self.stop()
        self.start(availableNow=True)
        assert self._query is not None
        assert self._query.awaitTermination(120), "AvailableNow does not end"
        self._query = None

    # --- running ----------------------------------------------------------------------------------------

    def run(self, length: int) -> None:
        try:
            for step in self.random.choices(*self._weigh(), k=length):
                self.steps.append(step.__name__)
                step()
                if self._query is not None and self._query.exception() is not None:
                    raise AssertionError(f"{self.story}\n{self._query.exception()}")
            self.run_on()
        finally:
            self.stop()

    def _weigh(self) -> tuple[list[Callable[[], None]], list[int]]:
        weights: dict[Callable[[], None], int] = {
            self.add_data: 8,
            self.add_partitions: 2,
            self.create: 2,
            self.run_on: 4,
            self.restart: 3,
            self.change_cap: 1,
            self.run_available_now: 1,
        }
        if self.lossy:
            weights |= {self.delete: 2, self.recreate: 2, self.delete_records: 2}
        return list(weights), list(weights.values())

    @property
    def story(self) -> str:
        return f"seed {self.seed}, {'with' if self.lossy else 'without'} loss: {' '.join(self.steps)}"

    def check(self) -> None:
        read = Counter(row for batch in self.batches.values() for row in batch)
        assert [row for row, times in read.items() if times > 1] == [], self.story
        assert set(read) <= set(self.written), self.story
        if not self.lossy:
            assert set(self.written) - set(read) == set(), self.story
        missing = [row for row in self.list_log() if row not in read]
        assert missing == [], self.story

    def list_log(self) -> list[Row]:
        """Return what is in the log now, as another client sees it."""
        return [
            (topic, partition, row.offset, row.value or b"")
            for topic, count in self.partitions.items()
            for partition in range(count)
            for row in read_partition(self.bootstrap, topic, partition)
        ]

    def delete_all(self) -> None:
        """Delete all topics of a finished history, because they only slow the broker down."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.delete_topics(list(self.partitions)).values():
            done.result(timeout=60)


class Turmoil(History):
    """Topics are created, deleted and recreated and lose records while the query runs slow batches."""

    def run_for(self, seconds: float) -> int:
        """Run for at least this long; return how many changes were made, or raise the query's error."""
        self.start()
        assert self._query is not None
        changes: list[Callable[[], None]] = [self.create, self.delete, self.recreate, self.delete_records]
        until, made = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < until:
                step = self.random.choice([self.add_data, self.add_data, *changes])
                self.steps.append(step.__name__)
                step()
                made += step in changes
                assert self._query.exception() is None, f"{self.story}\n{self._query.exception()}"
            self.add_data()
            self._query.processAllAvailable()
        finally:
            self.stop()
        return made
