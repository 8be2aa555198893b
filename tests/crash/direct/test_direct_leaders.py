"""A direct stream whose brokers fail in the middle of a batch."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.direct import Batch, DirectStream, MemoryOffsetStore, Subscribe
from tests.crash.leaders import Disturbance
from tests.support.kafka.topic_filling import produce


def test_a_batch_is_finished_though_its_leader_is_killed(
    spark: SparkSession, kafka3: Any, topic: Any
) -> None:
    """D50, D49, G11: ranges decided under one leader are read from the next; nothing is lost or doubled."""
    name = topic(3, on=kafka3, factor=3, min_insync_replicas=2)
    for partition in range(3):
        values = [f"{partition}-{number}" for number in range(50)]
        produce(kafka3.bootstrap, name, values, partition=partition, acks="all")
    disturbance = Disturbance(kafka3, name, seed=1)
    killed: list[Any] = []
    seen: list[str] = []

    def work(batch: Batch) -> None:
        first = batch.frame.count()  # connections to all leaders are open now
        if not killed:
            killed.append(disturbance.kill_a_leader())
        rows = batch.frame.selectExpr("cast(value as string) as value").collect()
        assert len(rows) == first
        seen.extend(row.value for row in rows)

    stream = DirectStream(
        spark,
        Subscribe(name),
        {"bootstrap.servers": kafka3.bootstrap, "auto.offset.reset": "earliest"},
        interval=0,
        name="s",
        offsets=MemoryOffsetStore(),
        options={"maxOffsetsPerTrigger": 90},
    )
    try:
        stream.for_each_batch(work).run(until_idle=True)
    finally:
        for broker in killed:
            disturbance.bring_back(broker)
    assert len(killed) == 1
    assert sorted(seen) == sorted(f"{partition}-{number}" for partition in range(3) for number in range(50))
    assert all(report.attempts == 1 for report in stream.reports)
