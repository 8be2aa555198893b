"""The word count of the first page: one command on Kafka, and the same on a queue of your own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.own_queue import Queue, QueueLog, QueueSource
from penstock.apps.wordcount import LINES, count_words
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.direct import DirectStream, OffsetRange, Subscribe, read_ranges

ONCE = {("hello", 2), ("owen", 1), ("lemon", 1), ("byebye", 1)}
TWICE = {(word, 2 * count) for word, count in ONCE}


def read_console(text: str) -> dict[int, set[tuple[str, int]]]:
    """Return the rows of each batch that the console sink printed, in any order."""
    found: dict[int, set[tuple[str, int]]] = {}
    for number, table in re.findall(r"-{20,}\nBatch: (\d+)\n-{20,}\n(.*?)\n\n", text, re.DOTALL):
        assert "|value" in table
        assert "|count|" in table
        rows = re.findall(r"^\|(\S+) *\|(\d+) *\|$", table, re.MULTILINE)
        found[int(number)] = {(word, int(count)) for word, count in rows}
    return found


@pytest.mark.slow
@pytest.mark.kafka
def test_one_command_counts_the_three_lines_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A5, F1, F52, H1, H2, H3, H4: batch 0 is empty, batch 1 has the counts, a second run adds to them."""
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "penstock.cli", "quickstart", "--folder", str(tmp_path / "quick")]

    def run() -> str:
        outcome = subprocess.run(
            [*command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        return outcome.stdout

    first = run()
    assert "quickstart-events" in first
    assert read_console(first) == {0: set(), 1: ONCE}
    assert read_console(run()) == {2: TWICE}


def test_the_same_count_runs_on_a_queue_of_ones_own(spark: SparkSession, tmp_path: Path) -> None:
    """F9, H17: only the format's name and options differ; totals survive a restart, and nothing is lost."""
    queue = Queue(tmp_path / "queue.db")
    queue.create("lines", 2)
    spark.dataSource.register(QueueSource)
    lines = spark.readStream.format("own-queue").option("path", queue.path).option("subscribe", "lines")
    lines = lines.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2")

    def run() -> set[Any]:
        counts = count_words(lines.load())
        writer = counts.writeStream.outputMode("complete").format("memory").queryName("own_queue_words")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return {tuple(row) for row in spark.table("own_queue_words").collect()}

    for number, line in enumerate(LINES):
        queue.append("lines", line.encode(), partition=number % 2)
    assert run() == ONCE
    for number, line in enumerate(LINES):
        queue.append("lines", line.encode(), partition=number % 2)
    assert run() == TWICE
    batch = spark.read.format("own-queue").option("path", queue.path).option("subscribe", "lines").load()
    assert sorted(bytes(row.value).decode() for row in batch.collect()) == sorted([*LINES, *LINES])


def test_a_queue_of_ones_own_needs_no_broker_in_a_direct_stream(spark: SparkSession, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue.db")
    queue.create("lines")
    for line in LINES:
        queue.append("lines", line.encode())
    source, found = QueueLog(queue.path), list[str]()

    def collect(frame: Any) -> list[str]:
        return [bytes(row.value).decode() for row in frame.collect()]

    stream = DirectStream(spark, Subscribe("lines"), {"auto.offset.reset": "earliest"}, source=source)
    stream.for_each_batch(lambda batch: found.extend(collect(batch.frame))).run(until_idle=True)
    assert found == list(LINES)
    ranges = [OffsetRange("lines", 0, 1, 3)]
    assert collect(read_ranges(spark, ranges, {}, source=source)) == list(LINES[1:3])
