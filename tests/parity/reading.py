"""Reads with either connector and returns what came: rows by task, or an error's text.

Rule: whole rows are compared, in the order in which each Spark task delivered them, and the tasks must cut
the topics at the same offsets. So an answer is a set of tasks, each a sequence of rows. Which task comes
first is open, because neither Spark nor a connector promises it.

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
#: Failed look-ups are repeated at once, and a silent broker is given up soon. Only the timing differs.
QUICK = {
    "fetchOffset.retryIntervalMs": "1",
    "kafkaConsumer.pollTimeoutMs": "5000",
    "kafka.request.timeout.ms": "4000",
    "kafka.default.api.timeout.ms": "5000",
}


@dataclass(frozen=True)
class Answer:
    """The result of one connector: the rows of each task with rows, or the text of its error."""

    columns: tuple[str, ...]
    tasks: tuple[tuple[Row, ...], ...]
    error: str = ""

    @property
    def rows(self) -> int:
        return sum(map(len, self.tasks))

    @property
    def splits(self) -> list[tuple[Any, ...]]:
        """Return topic, partition, first and last offset of each task with rows."""
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
    """Return the answer of Spark's connector, then ours."""
    return read(spark, OFFICIAL, options), read(spark, OURS, options)


def _gather(frame: DataFrame) -> list[Row]:
    """Collect the rows in one job. Times are microseconds, so this computer's time zone does not matter."""
    from pyspark.sql import functions

    columns = [functions.unix_micros(name) if name == "timestamp" else name for name in frame.columns]
    found = frame.select(*columns, functions.spark_partition_id()).collect()
    return [tuple(_plain(value) for value in row) for row in found]


def _tell_causes(error: Any) -> str:
    """Return class and message of a Java exception and all its causes, without the stack."""
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
