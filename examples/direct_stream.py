"""A direct stream that prints what each batch holds: (key,(value,topic,partition,offset)).

    python direct_stream.py --bootstrap-server localhost:9092 --topic test

The first batch takes all that waits; `--rate 1` takes one record a second from each partition instead. Stop
it with Ctrl-C: the batch that is running is finished.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import Row, SparkSession

from penstock.direct import Batch, DirectStream, Subscribe

SHOWN = 10


def show(row: Row) -> str:
    key, value = (
        None if each is None else bytes(each).decode(errors="replace") for each in (row.key, row.value)
    )
    return f"({key},({value},{row.topic},{row.partition},{row.offset}))"


def print_batch(batch: Batch) -> None:
    rows = batch.frame.take(SHOWN + 1)
    rule = "-" * 43
    print(rule, f"Time: {batch.time_ms} ms", rule, sep="\n")
    for row in rows[:SHOWN]:
        print(show(row))
    if len(rows) > SHOWN:
        print("...")
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Prints the batches of a direct stream.")
    parser.add_argument("--bootstrap-server", required=True, help="a broker, host:port")
    parser.add_argument("--topic", action="append", required=True, help="may be given several times")
    parser.add_argument("--group", default="t6", help="the stream's group id")
    parser.add_argument("--interval", default="1000ms", help="the time between batches")
    parser.add_argument("--rate", type=float, help="at most this many records a second per partition")
    parser.add_argument("--batches", type=int, help="end after this many batches")
    given = parser.parse_args(arguments)
    spark = SparkSession.builder.appName("direct-stream").getOrCreate()
    stream = DirectStream(
        spark,
        Subscribe(*given.topic),
        {
            "bootstrap.servers": given.bootstrap_server,
            "group.id": given.group,
            "auto.offset.reset": "earliest",
        },
        interval=given.interval,
        empty_batches=True,
        options={} if given.rate is None else {"maxRatePerPartition": given.rate},
    )
    outcome = stream.for_each_batch(print_batch).run(batches=given.batches)
    print(f"Stopped: {outcome.reason}.")


if __name__ == "__main__":
    main()
