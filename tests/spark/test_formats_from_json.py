"""Our JSON columns beside Spark's `from_json`: equal rows for good documents, equal types for Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, hex
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from penstock.formats.json import JsonDecoder

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


def show(frame: DataFrame) -> list[tuple[str, str]]:
    """Each document with what was read from it, as Spark shows it."""
    shown = frame.select("n", col("v").cast("string").alias("v"), hex(col("v.raw")).alias("raw")).orderBy("n")
    return [(DOCUMENTS[row.n], f"{row.v} {row.raw}") for row in shown.collect()]


@pytest.mark.parametrize("schema", [SCHEMA, "a int, b map<string,array<struct<c:timestamp>>>"])
def test_the_arrow_type_is_the_one_spark_expects(schema: str, spark: SparkSession) -> None:
    decoder = JsonDecoder(schema)
    column = decoder.decode(pa.array([], pa.binary())).column
    expected = to_arrow_type(StructType.fromDDL(decoder.spark_type), timezone="UTC")
    assert column.type == expected
    assert str(column.type) == str(expected)  # names of inner fields too
