"""Many batches of one stream, over restarts and cut into tasks: every row once, in its own batch."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame

from tests.spark.streaming import Flow, collect_rows, expect
from tests.support.kafka.topic_filling import produce


def test_two_rows_a_batch_are_exact_over_many_batches(flow: Flow, kafka: Any, topic: Any) -> None:
    """B297: start, end, tasks, rows; each batch begins where the one before ended."""
    name = topic()
    produce(kafka.bootstrap, name, [str(n) for n in range(11)])
    flow.run(name, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    rows = expect(name, 0, [str(n) for n in range(11)])
    assert [batch.number for batch in flow.batches] == list(range(6))
    assert [batch.rows for batch in flow.batches] == [rows[at : at + 2] for at in range(0, 11, 2)]
    ends = [json.loads(flow.stored(number))["offsets"][name]["0"] for number in range(6)]
    assert ends == [2, 4, 6, 8, 10, 11]


def test_five_restarts_with_lost_commits_repeat_the_same_rows(flow: Flow, kafka: Any, topic: Any) -> None:
    """B304: every second time the last commit is missing, and more rows have come before the repeat."""
    name, commits = topic(2), flow.checkpoint / "commits"
    repeated = []
    for life in range(6):
        for partition in range(2):
            produce(kafka.bootstrap, name, [f"{life}a", f"{life}b"], partition=partition)
        if life and life % 2 == 0:
            last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
            repeated.append(last)
            for path in (commits / str(last), commits / f".{last}.crc"):
                path.unlink(missing_ok=True)
        flow.run(name, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    runs: dict[int, list[Any]] = {}
    for batch in flow.batches:
        runs.setdefault(batch.number, []).append(batch.rows)
    assert {number for number, rows in runs.items() if len(rows) > 1} == set(repeated)
    assert len(repeated) == 2
    assert all(rows == [rows[0]] * len(rows) for rows in runs.values())
    values = [f"{life}{letter}" for life in range(6) for letter in "ab"]
    once = sorted(row for rows in runs.values() for row in rows[0])
    assert once == expect(name, 0, values) + expect(name, 1, values)


def test_a_split_stream_has_enough_tasks_and_each_row_once(flow: Flow, kafka: Any, topic: Any) -> None:
    """B106: in every batch, including the second one, and with partitions of unequal size."""
    name, tasks = topic(2), []

    def collect(frame: DataFrame) -> list[Any]:
        tasks.append(frame.rdd.getNumPartitions())
        return collect_rows(frame)

    def write(first: int, count: int) -> None:
        produce(kafka.bootstrap, name, [str(n) for n in range(first, first + count)])
        produce(
            kafka.bootstrap, name, [f"x{n}" for n in range(first // 10, (first + count) // 10)], partition=1
        )

    write(0, 100)
    rows = flow.run(name, startingOffsets="earliest", minPartitions=6, collect=collect)
    write(100, 50)  # while the query is stopped: all of it is one batch
    rows += flow.run(name, minPartitions=6, collect=collect)
    assert len(tasks) == 2
    assert min(tasks) >= 6
    assert sorted(rows) == expect(name, 0, [str(n) for n in range(150)]) + expect(
        name, 1, [f"x{n}" for n in range(15)]
    )
