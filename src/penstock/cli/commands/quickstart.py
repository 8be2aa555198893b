"""Run the usual word count in one command: a Kafka node, a topic, three lines, and their counts.

penstock quickstart                       a node for as long as the command runs, all removed afterwards
penstock quickstart --folder ./quick      keeps the node's data and the checkpoint: totals continue next time
penstock quickstart --bootstrap host:9092 uses a Kafka that already runs

At a terminal it continues after the three lines: each line you type is sent to the topic; Ctrl-D ends it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.shared.spark_session import open_spark
from penstock.cli.shared.terminal import SafeProgressBar, say
from penstock.cluster.processes.signals import unwinding_on_signals
from penstock.core.errors import ClusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.core.client.client_settings import ClientSettings

PORT = 9092


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=None, help="keep data and checkpoint here")
    parser.add_argument("--bootstrap", default=None, help="use this Kafka instead of starting one")
    parser.add_argument("--port", type=int, default=PORT, help=f"the node's port (default {PORT})")


def run(arguments: argparse.Namespace) -> int:
    from penstock.cli.shared.compilation_progress import compile_decoding

    with unwinding_on_signals(), ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-quickstart-")))
        bootstrap = arguments.bootstrap or stack.enter_context(_start_node(arguments, folder))
        settings = _connect(bootstrap)
        # Spark's workers load this from disk. If they compiled, the first batch would be silent for a minute.
        compile_decoding()
        spark = stack.enter_context(_start_spark(folder))
        _count(spark, settings, bootstrap, folder / "checkpoint")
    return 0


@contextmanager
def _start_node(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    from penstock.cluster import LocalKafka
    from penstock.cluster.kafka.detached_cluster import QUICKSTART, name_port_holder

    say(f"Starting one Kafka node on port {arguments.port} ...")
    data_dir = None if arguments.folder is None else folder / "kafka"
    try:
        with LocalKafka(
            ports=[arguments.port],
            data_dir=data_dir,
            broker_settings=QUICKSTART,
            progress=SafeProgressBar("Fetching Kafka"),
        ) as kafka:
            say(f"Kafka is ready at {kafka.bootstrap}.")
            yield kafka.bootstrap
    except ClusterError as error:
        if error.condition != "PORT_TAKEN":
            raise
        told = name_port_holder(error, [arguments.port])
        raise ClusterError(
            "PORT_TAKEN",
            told.what,
            hint=f"If it is a Kafka, use --bootstrap 127.0.0.1:{arguments.port}; else name another --port.",
            facts=told.facts,
        ) from error


def _connect(bootstrap: str) -> ClientSettings:
    from penstock.apps.wordcount import TOPIC
    from penstock.core.client.java_settings import parse_client
    from penstock.core.options.shared_options import refuse_files
    from penstock.kafka.metadata.topic_admin import create_topic, topic_exists

    settings = parse_client({"bootstrap.servers": bootstrap}, read_file=refuse_files).settings
    if topic_exists(settings, TOPIC):
        say(f"The topic {TOPIC} already exists.")
    else:
        create_topic(settings, TOPIC)
        say(f"Created topic {TOPIC}.")
    return settings


def _start_spark(folder: Path) -> AbstractContextManager[SparkSession]:
    say("Starting Spark (local[1]) ...")
    settings = {
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return open_spark("local[1]", "penstock-quickstart", settings)


def _count(spark: SparkSession, settings: ClientSettings, bootstrap: str, checkpoint: Path) -> None:
    from penstock.apps.wordcount import LINES, TOPIC, count_words, show_counts

    lines = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    query = show_counts(count_words(lines.option("subscribe", TOPIC).load()), str(checkpoint))
    try:
        query.processAllAvailable()  # batch 0 is empty: a new stream starts at the end of its topic
        say(f"Sending {len(LINES)} lines: {', '.join(map(repr, LINES))}.")
        _send(settings, LINES)
        query.processAllAvailable()
        if sys.stdin.isatty():
            say("Type lines to count their words; Ctrl-D ends.")
            for line in sys.stdin:
                _send(settings, [line.rstrip("\n")])
                query.processAllAvailable()
    finally:
        query.stop()


def _send(settings: ClientSettings, lines: Iterable[str]) -> None:
    import pyarrow as pa

    from penstock.apps.wordcount import TOPIC
    from penstock.kafka.writing.plain_producer import Writer

    with Writer(settings) as writer:
        writer.write(TOPIC, pa.table({"value": pa.array([line.encode() for line in lines], pa.binary())}))
