"""A query of Spark's own connector continues with our connector, from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.conftest import MakeTopic


def send(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed in a batch"])
def test_a_stream_moves_over_with_its_checkpoint(
    spark: SparkSession, kafka: Any, topic: MakeTopic, tmp_path: Path, fails: bool
) -> None:
    """B032, F25: every row is read once across both; a batch that had failed runs again as planned."""
    name = topic(2)
    batches: dict[int, list[tuple[int, int, bytes]]] = {}

    def run(form: str, *, failing: bool = False) -> None:
        def keep(frame: Any, batch: int) -> None:
            rows = [(row.partition, row.offset, bytes(row.value)) for row in frame.collect()]
            if failing and batch == 1:
                raise RuntimeError("the sink is down")
            batches[batch] = rows

        reader = spark.readStream.format(form).option("kafka.bootstrap.servers", kafka.bootstrap)
        reader = reader.option("subscribe", name).option("startingOffsets", "earliest")
        writer = reader.option("maxOffsetsPerTrigger", "10").load().writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    send(kafka.bootstrap, name, range(20))
    if fails:
        with pytest.raises(Exception, match="the sink is down"):
            run("kafka", failing=True)
    else:
        run("kafka")
    send(kafka.bootstrap, name, range(20, 40))
    run("penstock")
    rows = sorted(row for some in batches.values() for row in some)
    assert rows == sorted((number % 2, number // 2, b"%d" % number) for number in range(40))
    assert len(batches) == 4
    last = sorted(int(path.name) for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))[-1]
    assert '"version"' in (tmp_path / "checkpoint" / "offsets" / str(last)).read_text()
