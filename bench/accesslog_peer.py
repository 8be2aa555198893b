"""The same load monitoring as people write it today, with Spark's own connector and `regexp_extract`.

Per second, it counts requests, bytes and status classes. Per minute, it counts distinct clients, and how
often each URL, client, agent and referrer occurred. It makes no decisions, keeps no state and stores nothing
durably: its results are collected, which is less than we do for the same lines.

    seconds, minutes = monitor(spark, bootstrap, "access-log", TUNED)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMBINED = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) (\d+|-) "([^"]*)" "([^"]*)"'
_FIELDS = {1: "client", 2: "stamp", 4: "url", 5: "status", 6: "size", 7: "referrer", 8: "agent"}
TOPS = ("url", "client", "agent", "referrer")


def parse_lines(lines: DataFrame) -> DataFrame:
    from pyspark.sql.functions import coalesce, col, expr, lit, regexp_extract, try_to_timestamp

    text = col("value").cast("string")
    parts = lines.select(*(regexp_extract(text, COMBINED, at).alias(name) for at, name in _FIELDS.items()))
    return parts.select(
        try_to_timestamp("stamp", lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("time"),
        expr("try_cast(status as int)").alias("status"),
        coalesce(expr("try_cast(size as bigint)"), lit(0)).alias("size"),
        *TOPS,
    )


def monitor(spark: SparkSession, bootstrap: str, topic: str, options: Mapping[str, str]) -> int:
    """Read the topic once, make all tables from it, and return how many lines were counted."""
    from pyspark.sql.functions import approx_count_distinct, col, count, date_trunc, when
    from pyspark.sql.functions import sum as total

    reader = spark.read.format("kafka").options(**options).option("kafka.bootstrap.servers", bootstrap)
    parsed = parse_lines(reader.option("subscribe", topic).load()).cache()
    try:
        classes = [
            count(when(col("status").between(low, low + 99), 1)).alias(f"s{low}")
            for low in range(100, 600, 100)
        ]
        seconds = parsed.groupBy("time").agg(count("*").alias("n"), total("size"), *classes).collect()
        minute = date_trunc("minute", "time").alias("minute")
        parsed.groupBy(minute).agg(approx_count_distinct("client", 0.02)).collect()
        for name in TOPS:
            counts = parsed.groupBy(minute, name).agg(count("*").alias("n"))
            counts.orderBy(col("n").desc()).limit(100).collect()
        return int(sum(row["n"] for row in seconds))
    finally:
        parsed.unpersist()
