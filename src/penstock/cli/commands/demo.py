"""Run everything in one command: a real Kafka here, a million log lines, and Spark counting them.

It starts a broker on free ports, writes lines that look like an access log, and reads them with
`spark.read.format("penstock")` and, if its jars can be fetched, with Spark's own connector for comparison. It
ends on its own and leaves no process behind.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from penstock.cli.shared.spark_session import open_spark
from penstock.cli.shared.terminal import SafeProgressBar, complain, say
from penstock.cluster.processes.signals import unwinding_on_signals
from penstock.core.errors import ClusterError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TOPIC, PARTITIONS, CHUNK = "access-log", 4, 50_000
_PATHS = ("/", "/index.html", "/cart", "/login", "/search?q=pipe", "/img/logo.png", "/api/items", "/help")
_STATUSES = (200, 200, 200, 200, 304, 404, 500)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=1_000_000, help="how many lines (default a million)")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each connector (default 3)")
    parser.add_argument("--alone", action="store_true", help="do not compare with Spark's own connector")


def run(arguments: argparse.Namespace) -> int:
    from penstock.cli.shared.compilation_progress import compile_decoding
    from penstock.cluster import LocalKafka

    jars = [] if arguments.alone else _find_connector()
    say("Starting Kafka on this computer ...")
    with (
        unwinding_on_signals(),
        LocalKafka(progress=SafeProgressBar("Fetching Kafka"), heap_mb=1024) as kafka,
    ):
        say(f"Kafka is ready at {kafka.bootstrap}.")
        _produce(kafka.bootstrap, arguments.records)
        # Spark's workers load this from disk. If they compiled, the first run would be silent for a minute.
        compile_decoding()
        with _start_spark(jars) as spark:
            return _compare(spark, kafka.bootstrap, arguments, with_peer=bool(jars))


def _find_connector() -> list[str]:
    from penstock.cluster.downloads.jvm_connector import fetch_connector

    try:
        with SafeProgressBar("Fetching Spark's own connector") as bar:
            return [str(jar) for jar in fetch_connector(bar)]
    except ClusterError as error:
        complain(f"{error} Going on without the comparison.")
        return []


def _produce(bootstrap: str, records: int) -> None:
    from penstock.core.client.client_settings import ClientSettings
    from penstock.kafka.metadata.topic_admin import create_topic
    from penstock.kafka.writing.plain_producer import Writer

    host, port = bootstrap.split(":")
    settings = ClientSettings(((host, int(port)),), client_id="penstock-demo")
    create_topic(settings, TOPIC, partitions=PARTITIONS)
    bar = SafeProgressBar(f"Writing {records:,} lines")
    lines = make_lines(min(records, CHUNK))
    began = time.perf_counter()
    with Writer(settings) as writer:
        written = 0
        while written < records:
            written += writer.write(TOPIC, lines.slice(0, min(CHUNK, records - written))).records
            bar(written, records, "complete" if written >= records else "lines")
    took = time.perf_counter() - began
    say(f"Wrote {written:,} lines to topic {TOPIC} ({PARTITIONS} partitions): {written / took:,.0f} lines/s.")


def make_lines(count: int) -> pa.Table:
    """Return lines that look like an access log, keyed by client; they are the same every time."""
    import pyarrow as pa

    clients = [f"10.0.{i % 40}.{i * 7 % 250}" for i in range(count)]
    lines = [
        f"{client} - - [10/Oct/2025:13:{i // 60 % 60:02}:{i % 60:02} +0000] "
        f'"GET {_PATHS[i * 31 % 8]} HTTP/1.1" {_STATUSES[i * 17 % 7]} {i * 13 % 9000} "-" "Mozilla/5.0"'
        for i, client in enumerate(clients)
    ]
    return pa.table({"key": pa.array(clients).cast(pa.binary()), "value": pa.array(lines).cast(pa.binary())})


def _start_spark(jars: list[str]) -> AbstractContextManager[SparkSession]:
    say("Starting Spark (local[2]) ...")
    settings = {"spark.log.level": "ERROR"}
    if jars:
        settings["spark.jars"] = ",".join(jars)
    return open_spark("local[2]", "penstock-demo", settings)


def _compare(spark: SparkSession, bootstrap: str, arguments: argparse.Namespace, *, with_peer: bool) -> int:
    def count(form: str) -> Callable[[], int]:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}
        return lambda: spark.read.format(form).options(**options).load().count()

    sides = {"penstock": count("penstock")}
    if with_peer:
        sides["Spark's own connector"] = count("kafka")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    say(
        "Counting with spark.read.format(...).load().count(): one run to warm up, "
        f"{arguments.runs} measured; the median counts."
    )
    for turn in range(arguments.runs + 1):
        for name, run_side in sides.items():
            began = time.perf_counter()
            counted = run_side()
            if counted != arguments.records:
                complain(f"[ROWS_DIFFER] {name} counted {counted:,} rows of {arguments.records:,}.")
                return 1
            took = time.perf_counter() - began
            say(f"  {'warm-up' if turn == 0 else f'run {turn}':<8} {name:<22} {took:.2f} s")
            if turn:
                seconds[name].append(took)
    for name, samples in seconds.items():
        median = statistics.median(samples)
        raw = " ".join(f"{each:.2f}" for each in samples)
        say(
            f"  {name:<22} {arguments.records:,} rows  {arguments.records / median:>12,.0f} rows/s  ({raw} s)"
        )
    if with_peer:
        ours, theirs = (statistics.median(samples) for samples in seconds.values())
        say(f"  {theirs / ours:.1f} times as fast as Spark's own connector in its default setting.")
    return 0
