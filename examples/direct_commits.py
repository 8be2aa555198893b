"""Three ways to commit a direct stream's offsets to Kafka, and what each of them really does.

    python direct_commits.py VARIANT --bootstrap-server localhost:9092 --topic test

1  inside the batch, asynchronously, after the work: right. A crash before the commit repeats the batch.
2  outside, once, with what the last batch left in a variable: this was never right, and here it is an error.
3  as 1, with a callback: it gets the ranges of its own commit, and the error if there was one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession

from penstock.core.errors import OffsetStoreError
from penstock.direct import Batch, DirectStream, OffsetRange, Subscribe


def work(batch: Batch) -> None:
    print(f"{batch.frame.count()} records")


def commit_inside(batch: Batch) -> None:
    work(batch)
    batch.commit_async()


def commit_with_callback(batch: Batch) -> None:
    def tell(ranges: tuple[OffsetRange, ...], error: Exception | None) -> None:
        if error is not None:
            print(f"not committed, will be retried with the next batch: {error}")
            return
        for each in ranges:
            print(f"{each.topic} {each.partition} {each.start} {each.until}")
        print("-" * 10)
        for each in ranges:
            print(f"{each.topic}-{each.partition}...{each.until}")

    work(batch)
    batch.commit_async(tell)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Commits offsets in one of three ways.")
    parser.add_argument("variant", choices=("1", "2", "3"))
    parser.add_argument("--bootstrap-server", required=True, help="a broker, host:port")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="t6")
    given = parser.parse_args(arguments)
    spark = SparkSession.builder.appName("direct-commits").getOrCreate()
    stream = DirectStream(
        spark,
        Subscribe(given.topic),
        {
            "bootstrap.servers": given.bootstrap_server,
            "group.id": given.group,
            "auto.offset.reset": "earliest",
        },
        interval="100ms",
        offsets="kafka",
        commit="manual",
    )
    kept: list[Batch] = []
    variants = {"1": commit_inside, "2": kept.append, "3": commit_with_callback}
    stream.for_each_batch(variants[given.variant]).run(until_idle=True)
    for batch in kept[-1:]:
        try:
            batch.commit()
        except OffsetStoreError as error:
            print(error)


if __name__ == "__main__":
    main()
