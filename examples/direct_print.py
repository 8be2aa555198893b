"""Prints the records of topics as they come, and keeps how far it got in a folder.

    python direct_print.py BROKERS TOPICS [--count]

BROKERS is a list of brokers and TOPICS a list of topics, both separated by commas. Records are printed first
and the offsets stored after that, so what was not printed is printed after a restart. With `--count`, words
are counted, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, desc, explode, split

from penstock.direct import Batch, DirectStream, Subscribe

USAGE = """Usage: direct_print.py BROKERS TOPICS [--count]
  BROKERS  one or more Kafka brokers, separated by commas
  TOPICS   one or more topics to read, separated by commas"""


def print_values(batch: Batch) -> None:
    for row in batch.frame.select(col("value").cast("string")).collect():
        print(row.value)


def count_words(batch: Batch) -> None:
    words = batch.frame.select(explode(split(col("value").cast("string"), " ")).alias("word"))
    for row in words.groupBy("word").count().orderBy(desc("count"), "word").collect():
        print(f"{row.word}: {row['count']}")


def main(arguments: Sequence[str], *, batches: int | None = None) -> int:
    counts = "--count" in arguments
    given = [each for each in arguments if each != "--count"]
    if len(given) != 2:
        print(USAGE, file=sys.stderr)
        return 1
    brokers, topics = given
    spark = SparkSession.builder.appName("direct-print").getOrCreate()
    stream = DirectStream(
        spark,
        Subscribe(*topics.split(",")),
        {"bootstrap.servers": brokers, "auto.offset.reset": "earliest"},
        interval="2s",
        name="direct-print",
        offsets="offsets",
    )
    stream.for_each_batch(print_values)
    if counts:
        stream.for_each_batch(count_words)
    stream.run(batches=batches)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
