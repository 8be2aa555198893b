"""Frames into SQL sinks: by the driver, by one task, by all of them; and what retries cannot double."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.core.errors import OptionError
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.core.table_audit import check_table
from penstock.engines.sinks import open_sink
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.evidence import gather
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
    """However rows travel, their count and the digest of where they came from arrive with them."""
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
    _, (facts,) = gather(sink.place, "s", ())
    assert facts.digests is not None
    assert (facts.booked, check_table(facts).findings) == (40_000, ())


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
