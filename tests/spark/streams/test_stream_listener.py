"""The query listener on a real Spark: it tells the reader how long batches took, and commits the last one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from penstock.listener import QueryListener
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until


@pytest.fixture
def listen(spark: SparkSession) -> Iterator[Any]:
    added: list[QueryListener] = []

    def listen(options: dict[str, str] | None = None) -> QueryListener:
        added.append(QueryListener(options))
        spark.streams.addListener(added[-1])
        return added[-1]

    yield listen
    for each in added:
        spark.streams.removeListener(each)


def send(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def find_committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset)
    finally:
        consumer.close()


def test_the_last_batch_of_a_stopped_query_is_committed_too(
    spark: SparkSession, kafka: Any, topic: MakeTopic, tmp_path: Path, listen: Any
) -> None:
    """F34: `Once` ends after one batch, and Spark never tells the source that the batch is done."""
    name = topic()
    group = f"{name}-group"
    send(kafka.bootstrap, name, 25)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        "commitOffsetsToGroup": group,
    }
    listen(options)
    frame = spark.readStream.format("penstock").options(**options).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    started = query.trigger(once=True).start()
    try:
        started.awaitTermination(120)
    finally:
        started.stop()
    wait_until(lambda: find_committed(kafka.bootstrap, group, name) == 25, "the last batch is committed")


def test_a_batch_that_waits_for_its_tick_is_measured_without_the_wait(
    spark: SparkSession, kafka: Any, topic: MakeTopic, tmp_path: Path, listen: Any
) -> None:
    """I1, D26: the time is exactly Spark's for the trigger; the reader's own clock would include the wait."""
    name = topic()
    send(kafka.bootstrap, name, 5000)
    listen()
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", name).option("startingOffsets", "earliest")
    reader = reader.options(**{"backpressure.enabled": "true", "backpressure.initialRate": "10"})
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="10 seconds").start()

    def batches() -> list[Any]:
        return [each for each in query.recentProgress if each.numInputRows]

    try:
        wait_until(lambda: len(batches()) >= 3, "three batches have run", timeout_s=200)
        _, second, third = batches()[:3]
        measured = json.loads(third.sources[0].latestOffset)["pace"]["lastBatchMs"]
        assert measured == second.durationMs["triggerExecution"]
    finally:
        query.stop()
