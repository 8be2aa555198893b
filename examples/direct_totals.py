"""Counts words and joins actions per item, in a database, exactly once: rows and offsets in one commit.

    python direct_totals.py DATABASE --bootstrap-server localhost:9092 --topic test

DATABASE is a file (SQLite), postgresql://user:password@host/database or mysql://... . Kill the program at any
moment and start it again: every record is counted once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, collect_list, concat_ws, count, explode, expr, lit, split, struct

from penstock.direct import Batch, DirectStream, Subscribe
from penstock.sinks import SqlSink, Table, create_tables

WORDS = Table("words", mode="merge", key=("word",), add=("total",))
ACTIONS = Table("actions")
SCHEMAS = {"words": "word string, total bigint", "actions": "at_ms bigint, item string, actions string"}


def total_up(batch: Batch) -> dict[str, DataFrame]:
    """Return one frame for each table. Small results travel to the driver with the tasks' reports."""
    records = batch.frame.select(
        col("key").cast("string").alias("item"), col("value").cast("string").alias("value"), "offset"
    )
    words = records.select(explode(split("value", " ")).alias("word")).groupBy("word")
    # Sorted by offset, which gives the right order because an item lives in one partition.
    ordered = expr("transform(array_sort(found), each -> each.value)")
    actions = (
        records.where("item is not null")
        .groupBy("item")
        .agg(collect_list(struct("offset", "value")).alias("found"))
        .select(lit(batch.time_ms).alias("at_ms"), "item", concat_ws(",", ordered).alias("actions"))
    )
    return {"words": words.agg(count("word").alias("total")), "actions": actions}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Keeps totals of a topic in a database, exactly once.")
    parser.add_argument("database", help="a file, postgresql://... or mysql://...")
    parser.add_argument("--bootstrap-server", required=True, help="a broker, host:port")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is left")
    given = parser.parse_args(arguments)
    sink = SqlSink(given.database, WORDS, ACTIONS)
    spark = SparkSession.builder.appName("direct-totals").getOrCreate()
    create_tables(sink, SCHEMAS)  # existing tables stay
    stream = DirectStream(
        spark,
        Subscribe(given.topic),
        {"bootstrap.servers": given.bootstrap_server, "auto.offset.reset": "earliest"},
        name="totals",
    )
    outcome = stream.write(sink, total_up).run(until_idle=given.until_idle)
    print(f"Stopped: {outcome.reason}; {outcome.offsets} offsets in {outcome.batches} batches.")


if __name__ == "__main__":
    main()
