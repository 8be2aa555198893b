"""Our JSON columns compared with Spark's `from_json`: equal rows, even bad ones, and equal Arrow types."""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, hex, lit
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from penstock.formats.json.json_decoder import JsonDecoder
from tests.parity import json_documents
from tests.parity.json_differences import EXAMPLES, TODAY, JsonExample

SCHEMA = (
    "i BIGINT, t TINYINT, d DOUBLE, f FLOAT, s STRING, b BOOLEAN, n DECIMAL(12,3), w DECIMAL(38,10), "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, l ARRAY<STRUCT<x:INT,y:ARRAY<STRING>>>, "
    "m MAP<STRING,DOUBLE>, o STRUCT<a:STRING,b:STRUCT<c:BIGINT>>, `odd name` INT"
)
DOCUMENTS = [
    "{}",
    '{"i":1,"t":-128,"d":0.1,"f":0.1,"s":"x","b":true}',
    '{"i":-9223372036854775808,"d":1e-7,"f":16777217,"s":"\\u00e9\\n\\ud83d\\ude00","b":false}',
    '{"d":123456789.123456789,"s":"","i":null,"unknown":{"a":[1,2,{"b":"}"}]}}',
    '{"d":"NaN","f":"-INF","n":1.2345,"w":"3.14159"}',
    '{"n":-1.2345,"w":12345678901234567890.12345}',
    '{"n":1e3,"w":1e-10}',
    '{"day":"2024-02-29","at":"2024-02-29T12:34:56.789Z","local":"2024-02-29T12:34:56.789"}',
    '{"day":"1582-10-15","at":"1883-11-18T12:00:00+01:00","local":"0001-01-01 00:00:00"}',
    '{"at":1700000000,"raw":"AAEC/w=="}',
    '{"at":"2024-01-01 00:00:00.123456-08:00"}',
    '{"at":"2024-01-01"}',
    '{"l":[{"x":1,"y":["a",null]},null,{"y":[]},{}],"m":{"k":1,"z":null},"o":{"a":"q","b":{"c":5}}}',
    '{"l":[],"m":{},"o":{"b":null}}',
    '{"l":null,"m":null,"o":null,"odd name":7}',
    '{"i":1,"i":2,"o":{"a":"first"},"o":{"b":{"c":1}}}',
    '{"s":12.5,"o":{"a":{"k":[1,2]},"b":{}}}',  # spelled as Spark writes it; we keep the producer's own text
    '{"s":true,"o":{"a":[]}}',
    ' {"i" : 5 , "s" :\t"blank" }\n',
]


def test_good_documents_read_as_from_json_reads_them(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(DOCUMENTS)], "n INT, text STRING")
    parsed = frame.select("n", from_json("text", SCHEMA, {"mode": "FAILFAST"}).alias("v"))
    decoder = JsonDecoder(SCHEMA)
    decoded = decoder.decode(pa.array([text.encode() for text in DOCUMENTS], pa.binary()))
    assert decoded.errors is None
    table = pa.table({"n": pa.array(range(len(DOCUMENTS)), pa.int32()), "v": decoded.column})
    through_spark = spark.createDataFrame(table, f"n INT, v {decoder.spark_type}")
    assert show(through_spark) == show(parsed)


def test_random_documents_read_as_from_json_reads_them(spark: SparkSession) -> None:
    """Bad fields null the same values as in Spark, and exactly the rows that Spark calls bad have a reason.

    PENSTOCK_SEED=1,2,3 reads the documents of these seeds instead.
    """
    seeds = [int(each) for each in os.environ.get("PENSTOCK_SEED", "15").split(",")]
    names = [(seed, number) for seed in seeds for number in range(4_000)]
    documents = [json_documents.make_document(seed=seed, number=number) for seed, number in names]
    schema = json_documents.SCHEMA
    [(ours, theirs)] = read_both(spark, [(schema, documents)])
    # A document that is not JSON is null for us and a struct full of nulls for Spark.
    nulls = "{" + ", ".join(["null"] * len(StructType.fromDDL(schema))) + "}"
    ours = [(nulls, bad) if shown is None and bad else (shown, bad) for shown, bad in ours]
    differing = [
        f"seed {names[n][0]} number {names[n][1]}: {documents[n]!r}\n  Spark {theirs[n]}\n  ours  {ours[n]}"
        for n in range(len(documents))
        if ours[n] != theirs[n]
    ]
    assert not differing, f"{len(differing)} rows differ, the first of them:\n" + "\n".join(differing[:5])
    # Good documents, documents with bad fields, and documents of nulls: a run without one of these kinds
    # tests nothing.
    kinds = Counter((bad, shown == nulls) for shown, bad in ours)
    assert min(kinds[False, False], kinds[True, False], kinds[True, True]) > 50


def test_each_published_difference_is_there(spark: SparkSession) -> None:
    """Both sides of every example in the table behind the page are run."""
    groups: dict[str, list[JsonExample]] = {}
    for each in EXAMPLES:
        groups.setdefault(f"v {each.kind}, z INT", []).append(each)
    begun = datetime.now(UTC).date()
    answers = read_both(
        spark, [(schema, [each.document for each in group]) for schema, group in groups.items()]
    )
    days = {begun.isoformat(), datetime.now(UTC).date().isoformat()}  # midnight may pass in between

    def name_today(shown: str | None) -> str | None:
        for day in days if shown is not None else ():
            shown = (shown or "").replace(day, TODAY)
        return shown

    found = [
        replace(each, theirs=name_today(theirs[n][0]), ours=name_today(ours[n][0]))
        for group, (ours, theirs) in zip(groups.values(), answers, strict=True)
        for n, each in enumerate(group)
    ]
    assert {each.document: each for each in found} == {each.document: each for each in EXAMPLES}


Shown = tuple[str | None, bool]


def read_both(
    spark: SparkSession, groups: list[tuple[str, list[bytes]]]
) -> list[tuple[list[Shown], list[Shown]]]:
    """Return our and Spark's results for each schema, in one job: values as text, and whether bad."""
    frames = []
    for place, (schema, documents) in enumerate(groups):
        decoder = JsonDecoder(schema)
        decoded = decoder.decode(pa.array(documents, pa.binary()))
        errors = decoded.errors or pa.nulls(len(documents), pa.string())
        numbers = pa.array(range(len(documents)), pa.int32())
        columns = {"n": numbers, "text": pa.array(documents, pa.binary()), "ours": decoded.column}
        frame = spark.createDataFrame(
            pa.table({**columns, "bad": errors.is_valid()}),
            f"n INT, text BINARY, ours {decoder.spark_type}, bad BOOLEAN",
        )
        broken = {"columnNameOfCorruptRecord": "broken"}
        theirs = from_json(col("text").cast("string"), f"{schema}, broken STRING", broken)
        frames.append(
            frame.withColumn("theirs", theirs).select(
                lit(place).alias("place"),
                "n",
                col("ours").cast("string").alias("ours"),
                "bad",
                col("theirs").dropFields("broken").cast("string").alias("theirs"),
                col("theirs.broken").isNotNull().alias("called_bad"),
            )
        )
    rows = functools.reduce(DataFrame.union, frames).coalesce(1).collect()
    answers: list[tuple[list[Shown], list[Shown]]] = [([], []) for _ in groups]
    for row in sorted(rows, key=lambda row: (row.place, row.n)):
        answers[row.place][0].append((row.ours, row.bad))
        answers[row.place][1].append((row.theirs, row.called_bad))
    return answers


def show(frame: DataFrame) -> list[tuple[str, str]]:
    """Return each document with the values read from it, as Spark shows them."""
    shown = frame.select("n", col("v").cast("string").alias("v"), hex(col("v.raw")).alias("raw")).orderBy("n")
    return [(DOCUMENTS[row.n], f"{row.v} {row.raw}") for row in shown.collect()]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("schema", [SCHEMA, "a int, b map<string,array<struct<c:timestamp>>>"])
def test_the_arrow_type_is_the_one_spark_expects(schema: str) -> None:
    decoder = JsonDecoder(schema)
    column = decoder.decode(pa.array([], pa.binary())).column
    expected = to_arrow_type(StructType.fromDDL(decoder.spark_type), timezone="UTC")
    assert column.type == expected
    assert str(column.type) == str(expected)  # includes the names of inner fields
