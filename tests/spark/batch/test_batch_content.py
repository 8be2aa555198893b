"""What a row holds: types, nulls, headers, times, transactions; on a real Spark and a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.cluster.processes.python_launcher import make_launcher
from tests.spark.conftest import Load
from tests.spark.rows import offsets, values
from tests.support.kafka.topic_filling import open_transaction, produce, send
from tests.support.waiting import wait_until

HEADERS = ArrayType(
    StructType([StructField("key", StringType(), True), StructField("value", BinaryType(), True)]), True
)
KAFKA_ROW = [
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
]

#: Four hours around the end of summer time in New York: 01:30 comes twice there.
AUTUMN_MS = [1_699_155_000_000 + hour * 3_600_000 for hour in range(4)]
#: The same around the start of summer time, where 02:30 never comes.
SPRING_MS = [1_710_052_200_000 + hour * 3_600_000 for hour in range(4)]


def test_a_row_has_the_columns_and_types_of_a_kafka_row(load: Load, kafka: Any, topic: Any) -> None:
    """B047, F2, F3, B298: names, order, types, nullability and every value of one record."""
    name = topic(message_timestamp_type="CreateTime")
    produce(kafka.bootstrap, name, ["hello world"], key=b"key", timestamp_ms=1_631_623_473_000)
    frame = load(name)
    assert [(field.name, field.dataType) for field in frame.schema] == KAFKA_ROW
    assert all(field.nullable for field in frame.schema)
    row = frame.selectExpr("*", "unix_millis(timestamp) AS ms").first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value)) == (b"key", b"hello world")
    assert (row.topic, row.partition, row.offset, row.timestampType) == (name, 0, 0, 0)
    assert row.ms == 1_631_623_473_000


def test_headers_keep_their_order_and_their_repeated_keys(load: Load, kafka: Any, topic: Any) -> None:
    """B050, T25: none is null, several keep their order, a repeated key stays; null and empty differ."""
    name = topic()
    produce(kafka.bootstrap, name, ["none"])
    produce(
        kafka.bootstrap,
        name,
        ["many"],
        headers=[("b", b"1"), ("a", b"2"), ("b", b"3"), ("n", None), ("e", b"")],
    )
    frame = load(name, includeHeaders="true")
    assert frame.schema["headers"].dataType == HEADERS
    found = {row.value.decode(): row.headers for row in frame.collect()}
    assert found["none"] is None
    assert [(each.key, each.value) for each in found["many"]] == [
        ("b", b"1"),
        ("a", b"2"),
        ("b", b"3"),
        ("n", None),
        ("e", b""),
    ]


def test_null_and_empty_keys_and_values_stay_apart(load: Load, kafka: Any, topic: Any) -> None:
    """B046, T24: every combination, outside and inside a transaction."""
    name = topic()
    combinations = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    for key, value in combinations:
        produce(kafka.bootstrap, name, [value], key=key)
    producer = open_transaction(kafka.bootstrap)
    for key, value in combinations:
        send(producer, name, [value], key=key)
    producer.commit_transaction(30)
    frame = load(name, kafka__isolation__level="read_committed")
    assert [(row.key, row.value) for row in frame.orderBy("offset").collect()] == 2 * combinations


def test_committed_reads_wait_for_the_commit_and_never_show_aborted_rows(
    load: Load, kafka: Any, topic: Any
) -> None:
    """B044: nothing before the commit, everything after it, aborted rows never; later commits are found."""
    name = topic()
    frame = load(name, kafka__isolation__level="read_committed")
    producer = open_transaction(kafka.bootstrap)
    send(producer, name, ["1", "2"])
    assert producer.flush(30) == 0
    assert values(frame) == []
    producer.commit_transaction(30)
    wait_until(lambda: values(frame) == ["1", "2"], "the committed rows")
    producer.begin_transaction()
    send(producer, name, ["3", "4"])
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    assert values(frame) == ["1", "2"]
    producer.begin_transaction()
    send(producer, name, ["5"])
    producer.commit_transaction(30)
    wait_until(lambda: len(values(frame)) > 2, "the later commit")
    assert values(frame) == ["1", "2", "5"]


def test_uncommitted_reads_show_every_row_and_no_marker(load: Load, kafka: Any, topic: Any) -> None:
    """B045: open and aborted rows too; the markers' offsets are simply missing."""
    name = topic()
    producer = open_transaction(kafka.bootstrap)
    send(producer, name, ["aborted"])
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    producer.begin_transaction()
    send(producer, name, ["open"])
    assert producer.flush(30) == 0
    frame = load(name)
    assert offsets(frame) == [(0, 0), (0, 2)]
    assert values(frame) == ["aborted", "open"]
    producer.commit_transaction(30)
    assert values(frame) == ["aborted", "open"]


def test_a_time_too_large_for_the_column_is_an_error_with_its_place(
    load: Load, kafka: Any, topic: Any
) -> None:
    """B049: the error names topic, partition, offset and value; without the column the row is readable."""
    name = topic(message_timestamp_after_max_ms=2**63 - 1)
    huge_ms = 2**62
    produce(kafka.bootstrap, name, ["fine"], timestamp_ms=1_700_000_000_000)
    produce(kafka.bootstrap, name, ["absurd"], timestamp_ms=huge_ms)
    with pytest.raises(Exception, match=r"\[TIMESTAMP_OVERFLOW\]") as caught:
        load(name).collect()
    for fact in (f"{name}-0", "offset 1", str(huge_ms)):
        assert fact in str(caught.value), fact
    frame = load(name, columns="value")
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"absurd", b"fine"]
    frame = load(name, columns="value, timestampMs")
    assert [row.timestampMs for row in frame.collect()] == [1_700_000_000_000, huge_ms]


def test_upper_case_topics_are_not_lowered(load: Load, kafka: Any, topic: Any) -> None:
    """T29: this holds in every option that names a topic."""
    name = topic(name="UPPER.Topic")
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    json_start, json_end = f'{{"{name}":{{"0":1}}}}', f'{{"{name}":{{"0":3}}}}'
    assert values(load(name, startingOffsets=json_start, endingOffsets=json_end)) == ["b", "c"]
    assert values(load(None, assign=f'{{"{name}":[0]}}')) == ["a", "b", "c"]
    assert values(load(None, subscribePattern=f"UPPER.*{name[-8:]}")) == ["a", "b", "c"]


def test_times_survive_any_session_zone(spark: SparkSession, load: Load, kafka: Any, topic: Any) -> None:
    """T26: the same instants in three session zones, across both clock changes."""
    name = topic()
    for ms in (*AUTUMN_MS, *SPRING_MS):
        produce(kafka.bootstrap, name, ["x"], timestamp_ms=ms)
    frame = load(name).orderBy("offset").selectExpr("unix_millis(timestamp) AS ms")
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    try:
        for zone in ("America/New_York", "Asia/Kolkata", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert [row.ms for row in frame.collect()] == [*AUTUMN_MS, *SPRING_MS], zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


_READ_IN_ZONE = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
frame = (spark.read.format("penstock").option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", sys.argv[2]).load().orderBy("offset"))
# Nothing of ours is imported or registered here: the installed package is enough.
print("IMPORTED", [name for name in sys.modules if "penstock" in name])
print("ZONE", spark.conf.get("spark.sql.session.timeZone"))
print("ROWS", [(row.ms, row.text) for row in
    frame.selectExpr("unix_millis(timestamp) AS ms", "CAST(timestamp AS STRING) AS text").collect()])
spark.stop()
"""


def test_a_program_elsewhere_that_only_names_the_format_reads_the_same_times(kafka: Any, topic: Any) -> None:
    """T26: driver and workers in New York at the repeated hour; the format is found without register()."""
    name = topic()
    for ms in AUTUMN_MS:
        produce(kafka.bootstrap, name, ["x"], timestamp_ms=ms)
    run = subprocess.run(
        [sys.executable, "-c", _READ_IN_ZONE, kafka.bootstrap, name],
        env={**os.environ, "TZ": "America/New_York", "PYSPARK_PYTHON": make_launcher()},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    # Spark uses the machine's time zone, so the texts show the repeated hour; the instants do not move.
    texts = ["2023-11-04 23:30:00", "2023-11-05 00:30:00", "2023-11-05 01:30:00", "2023-11-05 01:30:00"]
    assert "ZONE America/New_York" in run.stdout
    assert "IMPORTED []" in run.stdout
    assert f"ROWS {list(zip(AUTUMN_MS, texts, strict=True))}" in run.stdout, run.stdout
