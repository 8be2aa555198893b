"""Runs queries and a stream, so that the JVM archives the classes of a Spark driver."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.cluster.processes.python_launcher import make_launcher

os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = make_launcher(), sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def write(frame: DataFrame, _number: int) -> None:
    frame.mapInArrow(pass_on, frame.schema).write.mode("append").parquet(f"{folder}/rows")


with tempfile.TemporaryDirectory() as folder:
    builder = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    spark = (
        builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    spark.range(1000).selectExpr("id % 7 AS k", "cast(id AS string) AS v").groupBy("k").count().collect()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    spark.read.parquet(f"{folder}/rows").count()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # the JVM writes the archive when it ends
