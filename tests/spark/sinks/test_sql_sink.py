"""Frames into SQL sinks: by the driver, by one task, or by all of them; and what retries cannot double."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.core.audit.table_audit import check_table
from penstock.core.errors import OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks import open_sink
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.audit.audit_facts import gather_facts
from tests.sql.databases import OwnDatabase, make_database, make_file_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = ["postgres", "mariadb"]
SCHEMA = "id BIGINT, word STRING, at_ TIMESTAMP"
WORDS = ("id", "concat('w', id) AS word", "timestamp_micros(1700000000000000 + id) AS at_")
ORIGIN = ("'t' AS penstock_topic", "0 AS penstock_partition", "id AS penstock_offset")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.sql) for name in SERVERS])
def server(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    with make_database(request.getfixturevalue(request.param)) as database:
        yield database


def at(offset: int) -> StreamPosition:
    return StreamPosition({TopicPartition("t", 0): offset})


def stagings(database: OwnDatabase) -> list[Any]:
    return database.run(
        "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'penstock_stage_%'"
        + ("" if "postgres" in database.url else " AND table_schema = DATABASE()")
    )


@pytest.mark.parametrize("strategy", ["auto", "driver", "single", "parallel"])
def test_each_way_brings_every_row_once(spark: SparkSession, server: OwnDatabase, strategy: Any) -> None:
    """However rows travel, their count and the digest of their origin arrive with them."""
    sink = SqlSink(server.url, Table("words", provenance=True), strategy=strategy)
    create_tables(sink, {"words": SCHEMA})
    small = spark.range(100, numPartitions=3).selectExpr(*WORDS, *ORIGIN)
    big = spark.range(100, 40_000, numPartitions=3).selectExpr(*WORDS, *ORIGIN)
    with closing(open_sink(sink, "s", spark)) as writer:
        assert writer.write(small, at(0), at(100)).rows == 100
        assert writer.write(big, at(100), at(40_000)).rows == 39_900
        assert writer.write(big, at(100), at(40_000)).was_repeated
    assert server.run("SELECT COUNT(*), COUNT(DISTINCT id), MIN(id), MAX(id) FROM words") == [
        (40_000, 40_000, 0, 39_999)
    ]
    ((stamp,),) = server.run("SELECT at_ FROM words WHERE id = 123")
    assert stamp.replace(tzinfo=None) == datetime(2023, 11, 14, 22, 13, 20, 123)
    assert stagings(server) == []
    _, _, (facts,) = gather_facts(sink.place, "s", ())
    assert facts.digests is not None
    assert (facts.booked, check_table(facts).findings) == (40_000, ())


def test_rows_are_collected_when_the_batch_before_says_that_they_are_few(
    spark: SparkSession, server: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is made by the previous batch's bytes per offset; tasks stage what may be too much."""
    staged: list[list[str]] = []
    sink = SqlSink(server.url, Table("words"))
    create_tables(sink, {"words": SCHEMA})
    with closing(open_sink(sink, "s", spark)) as writer:
        write_staged = writer.writer.write_staged

        def look(reports: Any, *given: Any, **named: Any) -> Any:
            staged.append([type(each).__name__ for each in reports])
            return write_staged(reports, *given, **named)

        monkeypatch.setattr(writer.writer, "write_staged", look)
        monkeypatch.setattr("penstock.engines.sinks.sql_frames.INLINE_BYTES", 0)
        monkeypatch.setattr("penstock.engines.sinks.sql_frames.COLLECTED_BYTES", 100_000)
        ends = [0, 100, 200, 20_000, 20_100, 20_200]
        for begin, end in pairwise(ends):
            frame = spark.range(begin, end, numPartitions=2).selectExpr(*WORDS)
            assert writer.write(frame, at(begin), at(end)).rows == end - begin
    tasks = ["StageReport", "StageReport"]
    assert staged == [tasks, [], tasks, tasks, []]
    assert server.run("SELECT COUNT(*), COUNT(DISTINCT id) FROM words") == [(20_200, 20_200)]


def test_a_driver_that_may_hold_little_leaves_the_rows_to_tasks(tmp_path: Path) -> None:
    """Spark's own limit for what a driver collects is respected, whatever the previous batch suggested."""
    program = """
import sys
from contextlib import closing
from pyspark.sql import SparkSession
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks.sql_frames import Measured, FrameWriter, collect
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.maxResultSize", "100k").getOrCreate())
writer = object.__new__(FrameWriter)
writer._strategy, writer._last = "auto", Measured(1000, 1000)
few = writer._collect({"t": spark.range(1000)}, 1000)
many = writer._collect({"t": spark.range(100_000)}, 100_000)
print("collected", few["t"].num_rows, many)
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert "collected 1000 None" in done.stdout, done.stderr[-3000:]


def test_an_upsert_sees_the_rows_of_all_tasks(spark: SparkSession, server: OwnDatabase) -> None:
    sink = SqlSink(server.url, Table("words", mode="upsert", key="id", provenance=True), strategy="parallel")
    create_tables(sink, {"words": SCHEMA})
    frame = spark.range(1000, numPartitions=4).selectExpr(
        "id % 10 AS id",
        "concat('w', id) AS word",
        *ORIGIN,
    )
    with closing(open_sink(sink, "s", spark)) as writer:
        writer.write(frame, at(0), at(1000))
    found = sorted(server.run("SELECT id, word FROM words"))
    assert found == [(number, f"w{990 + number}") for number in range(10)]


def test_sqlite_takes_rows_through_the_driver_only(spark: SparkSession, tmp_path: Path) -> None:
    database = make_file_database(tmp_path)
    create_tables(SqlSink(database.url, Table("words")), {"words": SCHEMA})
    frame = spark.range(10).selectExpr("id", "'w' AS word")
    for strategy in ("single", "parallel"):
        sink = SqlSink(database.url, Table("words"), strategy=strategy)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"SQLITE_ONE_WRITER.*a server"):
            open_sink(sink, "s", spark)
    with closing(open_sink(SqlSink(database.url, Table("words")), "s", spark)) as writer:
        assert writer.write({"words": frame}, at(0), at(10)).rows == 10
        assert writer.write(pa.table({"id": [10], "word": ["x"]}), at(10), at(11)).rows == 1
    assert database.run("SELECT COUNT(*) FROM words") == [(11,)]
