"""Reads with either connector and tells what came: rows by task, or an error's text.

Rule: whole rows are compared, in the order in which each Spark task delivered them, and the tasks must cut
the topics at the same offsets. So an answer is a set of tasks, each a sequence of rows; which task comes
first is open (Spark says nothing about it, and neither connector promises it).

    read_both(spark, {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"})
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
OFFICIAL, OURS = "kafka", "penstock"
#: Failed look-ups are repeated at once and a silent broker is given up soon: only the time is different.
QUICK = {
    "fetchOffset.retryIntervalMs": "1",
    "kafkaConsumer.pollTimeoutMs": "5000",
    "kafka.request.timeout.ms": "4000",
    "kafka.default.api.timeout.ms": "5000",
}


@dataclass(frozen=True)
class Answer:
    """What one connector said: the rows of each task with rows, or the text of its error."""

    columns: tuple[str, ...]
    tasks: tuple[tuple[Row, ...], ...]
    error: str = ""

    @property
    def rows(self) -> int:
        return sum(map(len, self.tasks))

    @property
    def splits(self) -> list[tuple[Any, ...]]:
        """Topic, partition, first and last offset of each task with rows."""
        return [(*task[0][2:5], task[-1][4]) for task in self.tasks]


def read(spark: SparkSession, source: str, options: dict[str, str]) -> Answer:
    try:
        frame = spark.read.format(source).options(**options).load()
        collected = _gather(frame)
    except PySparkException as error:
        return Answer((), (), str(error))
    except Py4JJavaError as error:
        return Answer((), (), _tell_causes(error.java_exception))
    tasks: dict[int, list[Row]] = defaultdict(list)
    for *row, task in collected:
        tasks[task].append(tuple(row))
    ordered = sorted((tuple(task) for task in tasks.values()), key=lambda task: task[0][2:5])
    return Answer(tuple(f"{name} {kind}" for name, kind in frame.dtypes), tuple(ordered))


def read_both(spark: SparkSession, options: dict[str, str]) -> tuple[Answer, Answer]:
    """The official answer, then ours."""
    return read(spark, OFFICIAL, options), read(spark, OURS, options)


def _gather(frame: DataFrame) -> list[Row]:
    """One job. Times come as microseconds, so that no zone of this computer has a say."""
    from pyspark.sql import functions

    columns = [functions.unix_micros(name) if name == "timestamp" else name for name in frame.columns]
    found = frame.select(*columns, functions.spark_partition_id()).collect()
    return [tuple(_plain(value) for value in row) for row in found]


def _tell_causes(error: Any) -> str:
    """Without the stack: class and message of a Java exception and of all its causes."""
    texts = []
    while error is not None:
        texts.append(str(error.toString()))
        error = error.getCause()
    return "\n".join(texts)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [(header["key"], _plain(header["value"])) for header in value]
    return value
