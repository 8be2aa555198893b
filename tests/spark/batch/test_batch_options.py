"""How options reach the source through Spark, and how its errors come back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Load
from tests.spark.rows import values
from tests.support.kafka.topic_filling import produce


def test_option_names_do_not_depend_on_case(spark: SparkSession, kafka: Any, topic: Any) -> None:
    """B073, B308: ours and Kafka's, in any mixture; option values keep their case."""
    name = topic(name="Case")
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    reader = spark.read.format("penstock").option("KAFKA.Bootstrap.SERVERS", kafka.bootstrap)
    reader.option("SUBSCRIBE", name).option("StartingOFFSETS", f'{{"{name}":{{"0":1}}}}')
    reader.option("FAILondataLOSS", "False").option("Kafka.Isolation.Level", "read_committed")
    frame = reader.option("includeheaders", "TRUE").load()
    assert frame.columns[-1] == "headers"
    assert values(frame) == ["b", "c"]


def test_an_unknown_option_fails_at_load_with_the_one_that_was_meant(load: Load) -> None:
    """B305: an error in create, which Spark names, before anything is planned."""
    with pytest.raises(Exception, match=r"\[OPTION_UNKNOWN\].*[Dd]id you mean `startingOffsets`") as caught:
        load("t", startingOfsets="earliest")
    assert "Failed to create Python data source instance" in str(caught.value)


@pytest.mark.usefixtures("kafka", "topic")
def test_errors_of_planning_and_reading_name_their_condition(load: Load) -> None:
    """B305: a missing topic fails in `partitions`, by name; the error has condition and advice."""
    with pytest.raises(Exception, match=r"\[UNKNOWN_TOPIC\].*not-there.*Create it") as caught:
        load("not-there", fetchOffset__numRetries=1).collect()
    assert ", in partitions\n" in str(caught.value)
    frame = load("t", kafka__bootstrap__servers="127.0.0.1:1", kafka__default__api__timeout__ms=500)
    with pytest.raises(Exception, match=r"\[\w+\].*127\.0\.0\.1:1") as caught:
        frame.collect()
    assert "PYTHON_DATA_SOURCE_ERROR" in str(caught.value)


def test_a_schema_of_the_user_is_refused(spark: SparkSession, kafka: Any) -> None:
    reader = spark.read.format("penstock").schema("a INT, b STRING")
    reader.option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", "t")
    with pytest.raises(Exception, match=r"\[SCHEMA_FIXED\]"):
        reader.load().collect()


def test_columns_are_chosen_in_the_given_order(load: Load, kafka: Any, topic: Any) -> None:
    """Fewer columns, each with the right type and content, with and without headers."""
    name = topic()
    produce(kafka.bootstrap, name, ["v1", "v2"], key=b"k", headers=[("h", b"1")])
    frame = load(name, columns="offset, VALUE, headers", includeHeaders="true")
    assert frame.columns == ["offset", "value", "headers"]
    rows = frame.orderBy("offset").collect()
    assert [(row.offset, bytes(row.value), row.headers[0].key) for row in rows] == [
        (0, b"v1", "h"),
        (1, b"v2", "h"),
    ]
    assert load(name, columns="timestampType").collect() == [(0,), (0,)]
    with pytest.raises(Exception, match=r"\[COLUMN_UNKNOWN\].*Did you mean `value`"):
        load(name, columns="valeu")


_HEAVY = ("numba", "pyarrow", "pandas", "numpy", "kafka", "crc32c", "cramjam", "llvmlite")


def test_looking_the_format_up_imports_nothing_heavy() -> None:
    """Spark imports our module whenever it looks up any Python source, including other people's."""
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_penstock;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert not set(run.stdout.split()) & set(_HEAVY)
    assert "penstock" in run.stdout.split()


def test_what_is_not_there_yet_says_so(load: Load, topic: Any) -> None:
    """Writes end in our own message, not in what Spark makes of a missing method."""
    with pytest.raises(Exception, match=r"\[NOT_YET\] Writing"):
        load(topic()).write.format("penstock").mode("append").save()
