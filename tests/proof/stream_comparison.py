"""What a stream does when its log is replaced under the same offsets, compared with Spark's JVM connector.

python -m tests.proof.stream_comparison --write

Nothing is judged here: what each of the two said and read is written down, side by side, on the same topics
and through the same changes. What Penstock must do is asserted in
tests/crash/streams/test_stream_other_log.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from penstock.cluster import LocalKafka
from penstock.cluster.downloads.jvm_connector import CONNECTOR, fetch_connector
from penstock.cluster.processes.python_launcher import make_launcher
from tests.conftest import IMPATIENT
from tests.crash.streams.held import HeldStream, TornLog, recreate_with_more_rows
from tests.proof.recording import record
from tests.support.kafka.librdkafka import read_partition
from tests.support.kafka.topic_filling import produce

SOURCES = {"penstock": "penstock", "JVM connector": "kafka"}
Change = Callable[[Any, str, list[HeldStream]], None]


def recreate(cluster: Any, topic: str, _streams: list[HeldStream]) -> None:
    recreate_with_more_rows(cluster.bootstrap, topic, old=10, new=30)


def tear(cluster: Any, topic: str, streams: list[HeldStream]) -> None:
    for each in streams:
        each.pass_batch()

    def has_read() -> None:
        for each in streams:
            each.await_rows(14)

    new = [f"new-{number}" for number in range(10)]
    TornLog(cluster, topic).lose([f"lost-{number}" for number in range(4)], new, has_read)


CHANGES: dict[str, tuple[int, Change]] = {
    "topic deleted and made anew with a higher end": (1, recreate),
    "log cut off by an unclean election, then written past the old end": (2, tear),
}


def compare(session: SparkSession, cluster: Any, name: str, folder: Path) -> list[dict[str, object]]:
    """Make one change under four running streams: two sources, loss checking on and off."""
    factor, change = CHANGES[name]
    topic = f"other-log-{factor}"
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, factor, config=config)])[topic].result(timeout=60)
    produce(cluster.bootstrap, topic, [f"kept-{number}" for number in range(10)], acks="all")
    streams: dict[tuple[str, bool], HeldStream] = {}
    try:
        for source, form in SOURCES.items():
            for fail in (True, False):
                checkpoint = folder / f"{topic}-{form}-{fail}"
                stream = HeldStream(session, form, cluster.bootstrap, topic, checkpoint, fail=fail)
                streams[source, fail] = stream
        for stream in streams.values():
            stream.await_rows(10)
        change(cluster, topic, list(streams.values()))
        there = [(row.value or b"").decode() for row in read_partition(cluster.bootstrap, topic)]
        found = []
        for (source, fail), stream in streams.items():
            before = len(stream.values)
            error = stream.let_go()
            condition = error.partition("[TOPIC_RECREATED]")[1] or error.partition("[LOG_TRUNCATED]")[1]
            missed = [value for value in there if value not in stream.values]
            found.append(
                {
                    "change": name,
                    "source": source,
                    "failOnDataLoss": fail,
                    "error": condition or error[:300],
                    "rows_read_before": before,
                    "rows_read_after": stream.values[before:],
                    "rows_in_the_log_never_read": missed,
                    "silent": not error and bool(missed),
                }
            )
        return found
    finally:
        for stream in streams.values():
            stream.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="nothing here is random")
    parser.add_argument("--write", action="store_true", help="to docs/proof/stream-comparison.json")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = make_launcher(), sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, fetch_connector())))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    with LocalKafka(3, broker_settings=IMPATIENT) as kafka, tempfile.TemporaryDirectory() as folder:
        found = [row for name in CHANGES for row in compare(session, kafka, name, Path(folder))]
    session.stop()
    record(
        "stream-comparison",
        "a running stream whose log becomes another one under the same offsets, beside Spark's JVM connector",
        repeat="python -m tests.proof.stream_comparison --write",
        facts={"jvm_connector": list(CONNECTOR), "found": found},
        write=options.write,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
