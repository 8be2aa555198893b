"""Structured Streaming into an SQL sink: a batch that Spark repeats is there once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from penstock.engines.sinks.foreach_sinks import for_each_batch
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.spark.conftest import Load
from tests.sql.databases import OwnDatabase, make_file_database
from tests.support.kafka.topic_filling import produce

Run = Callable[..., None]


@pytest.fixture
def database(tmp_path: Path) -> OwnDatabase:
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("lines"), Table("counts", mode="merge", key="word", add="times"))
    create_tables(sink, {"lines": "position BIGINT, line STRING", "counts": "word STRING, times BIGINT"})
    return database


def split(frame: DataFrame, _batch_id: int) -> dict[str, DataFrame]:
    lines = frame.selectExpr("offset AS position", "CAST(value AS STRING) AS line")
    return {"lines": lines, "counts": lines.groupBy("line").count().toDF("word", "times")}


@pytest.fixture
def run(stream: Load, database: OwnDatabase, tmp_path: Path) -> Run:
    """Return a function that reads what is there into the sink and ends.

    `after` is called when a batch is written but not yet noted.
    """

    def run(
        topic: str,
        after: Callable[[int], None] | None = None,
        folder: str = "checkpoint",
        url: str = "",
        uri: str = "",
    ) -> None:
        place = str(tmp_path / folder)
        sink = SqlSink(
            url or database.url, Table("lines"), Table("counts", mode="merge", key="word", add="times")
        )
        write = for_each_batch(sink, "s", checkpoint=f"{uri}{place}", transform=split)

        def work(frame: DataFrame, batch_id: int) -> None:
            write(frame, batch_id)
            if after is not None:
                after(batch_id)

        frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
        query = frame.writeStream.option("checkpointLocation", place).foreachBatch(work)
        query.trigger(availableNow=True).start().awaitTermination(60)
        write.close()  # type: ignore[attr-defined]

    return run


def read(database: OwnDatabase) -> tuple[list[Any], dict[str, int]]:
    return sorted(database.run("SELECT position, line FROM lines")), dict(
        database.run("SELECT word, times FROM counts")
    )


def test_a_batch_that_spark_repeats_is_written_once(
    run: Run, database: OwnDatabase, kafka: Any, topic: Any
) -> None:
    """C15, C27, G9: it failed when its rows and offsets were durable but Spark did not know it yet."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "a"])

    def fail(batch_id: int) -> None:
        raise RuntimeError(f"batch {batch_id} is made to fail")

    for _ in range(2):  # the first batch is repeated, with its original start
        with pytest.raises(StreamingQueryException, match="batch 0 is made to fail"):
            run(name, fail)
    assert read(database) == ([(0, "a"), (1, "b")], {"a": 1, "b": 1})
    run(name, uri="file:")
    produce(kafka.bootstrap, name, ["b"])
    with pytest.raises(StreamingQueryException, match="batch 2 is made to fail"):
        run(name, fail)
    run(name)
    assert read(database) == ([(0, "a"), (1, "b"), (2, "a"), (3, "b")], {"a": 2, "b": 2})


def test_another_checkpoint_is_refused_and_so_is_an_old_one(
    run: Run, database: OwnDatabase, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """C27: a query that does not begin where the results end is not run, whatever its checkpoint says."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b"])
    run(name)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_REPLACED"):
        run(name, folder="new")
    produce(kafka.bootstrap, name, ["c"])
    run(name)
    produce(kafka.bootstrap, name, ["d"])
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_WENT_BACK"):
        run(name, folder="copy")
    (tmp_path / "other").mkdir()
    other = make_file_database(tmp_path / "other")
    sink = SqlSink(other.url, Table("lines"), Table("counts", mode="merge", key="word", add="times"))
    create_tables(sink, {"lines": "position BIGINT, line STRING", "counts": "word STRING, times BIGINT"})
    with pytest.raises(StreamingQueryException, match="LEDGER_EMPTY"):
        run(name, url=other.url)
    run(name)
    assert [line for _, line in read(database)[0]] == ["a", "b", "c", "d"]
