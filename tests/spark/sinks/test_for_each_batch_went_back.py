"""Structured Streaming into a database that goes back to an earlier state under the query."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import window

from penstock.engines.sinks.foreach_sinks import for_each_batch
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.spark.conftest import Load
from tests.spark.streaming import add_partitions
from tests.sql.databases import make_file_database
from tests.support.kafka.topic_filling import produce

HOUR_S = 3600


def copy(source: Path, target: Path) -> None:
    """Copy the whole database at one moment, which is what a replica has when it is promoted."""
    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


def forget_after(checkpoint: Path, batch: int) -> None:
    """Set the checkpoint back to the end of a batch, as the guide says."""
    for folder in ("offsets", "commits"):
        for path in (checkpoint / folder).iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) > batch:
                path.unlink()


def test_a_fail_over_that_loses_batches_without_offsets_ends_the_query(
    stream: Load, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """C13, C27: batch 1 closes windows without new data and is lost; batch 2 only has a new partition.

    No offset shows that the windows are gone. Neither the running query nor the next start continues despite
    that. The same holds where two batches with offsets are lost: both errors name them. When the checkpoint
    is set back too, every window is there once.
    """
    name, checkpoint = topic(), tmp_path / "checkpoint"
    database, replica = make_file_database(tmp_path), tmp_path / "replica.db"
    sink = SqlSink(database.url, Table("windows"))
    create_tables(sink, {"windows": "hour BIGINT, records BIGINT"})

    begin = int(time.time()) // HOUR_S - 10  # recent, or Kafka's retention would delete the records

    def send(hour: int, partition: int = 0) -> None:
        produce(
            kafka.bootstrap,
            name,
            [f"{hour}"],
            partition=partition,
            timestamp_ms=((begin + hour) * HOUR_S + 1800) * 1000,
        )

    def count(frame: DataFrame) -> DataFrame:
        hours = frame.withWatermark("timestamp", "1 second").groupBy(window("timestamp", "1 hour")).count()
        return hours.selectExpr(
            f"unix_timestamp(window.start) div {HOUR_S} - {begin} AS hour", "count AS records"
        )

    def lose_windows(batch_id: int) -> None:
        if batch_id == 0:
            copy(tmp_path / "own.db", replica)
        elif batch_id == 1:
            copy(replica, tmp_path / "own.db")
            add_partitions(kafka.bootstrap, name, 2)
            send(2, partition=1)

    def lose_two_batches(batch_id: int) -> None:
        if batch_id == 2:
            copy(replica, tmp_path / "own.db")
            send(3)

    def demand_refusals(after: Callable[[int], None], running: str, started: str) -> None:
        with pytest.raises(StreamingQueryException, match=f"LEDGER_WENT_BACK.*{running}"):
            run(after, processingTime="0 seconds")
        with pytest.raises(StreamingQueryException, match=f"LEDGER_WENT_BACK.*{started}.*ends with batch 0"):
            run(availableNow=True)
        assert database.run("SELECT hour, records FROM windows") == []
        forget_after(checkpoint, 0)

    def run(after: Callable[[int], None] | None = None, **trigger: Any) -> None:
        frame = stream(name, startingOffsets="earliest")
        write = for_each_batch(sink, "s", checkpoint=str(checkpoint))

        def work(results: DataFrame, batch_id: int) -> None:
            write(results, batch_id)
            if after is not None:
                after(batch_id)

        query = count(frame).writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
        started = query.foreachBatch(work).trigger(**trigger).start()
        try:
            assert started.awaitTermination(120)
        finally:
            started.stop()
            write.close()  # type: ignore[attr-defined]

    send(0)
    send(1)
    demand_refusals(lose_windows, r"1 batch .*moved no offsets.*delivery\.md", "batch 1")
    demand_refusals(lose_two_batches, f"2 batches.*{name}-1 up to 1", "the batches 1 to 2")
    send(4)
    run(availableNow=True)
    assert sorted(database.run("SELECT hour, records FROM windows")) == [(hour, 1) for hour in range(4)]
