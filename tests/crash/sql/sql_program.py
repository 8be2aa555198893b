"""A Spark driver in a separate process that runs direct streams into SQL sinks, to be killed at a step.

    python -m tests.crash.sql.sql_program master

It takes orders, one per line, and answers each with how its stream ended: nothing left, or the condition of
its error. There are gates before and after the steps of the sink's protocol, and at these moments: a batch
was decided, a task has handed on its rows, a task has staged its rows but not reported it, and a batch is
over. A program that is not killed takes the next order, because starting Spark is the expensive part of a
round.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.core.errors import PenstockError
from penstock.core.sinks.sql_commit_protocol import Step
from penstock.direct import BatchReport, DirectStream, Subscribe
from penstock.engines.sinks import sql_frames as sql_engine
from penstock.engines.sinks.sql_frames import StageTask
from penstock.sinks import SqlSink, Table
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter, open_writer
from penstock.stores.sql.sink.sql_sink import RowTransport
from penstock.stores.sql.sink.staging_tables import Staging
from tests.crash.gates import FOLDER_VARIABLE, pass_gate
from tests.crash.programs import Order

#: Short, so that a round with a held lock is short too.
LOCK_TIMEOUT_S = 2
#: Printed before each answer, because Spark may print something too.
ANSWER = "ANSWER "
AnyOrder = TypeVar("AnyOrder", bound=Order)
SCHEMA = "partition_id int, number bigint, payload string"


@dataclass(frozen=True)
class SqlOrder(Order):
    """A stream from a topic into the table `numbers`, until nothing is left; `size` records per batch."""

    bootstrap: str
    topic: str
    url: str
    strategy: RowTransport
    size: int


class GatedHands(Performer):
    def __call__(self, step: Step) -> Any:
        pass_gate(type(step).__name__, "before")
        answer = super().__call__(step)
        pass_gate(type(step).__name__, "after")
        return answer


class GatedSink(SqlSink):
    def open(self, stream: str, *, owner: str = "") -> SqlWriter:
        return open_writer(self, stream, owner=owner, performer_type=GatedHands)


@dataclass(frozen=True)
class GatedTask:
    """A gate in the worker that fetches: the rows are passed on into the table."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[FOLDER_VARIABLE] = self.folder  # an executor of a cluster has another environment
        for batch in batches:
            yield pa.record_batch(
                {
                    "partition_id": batch["partition"],
                    "number": batch["offset"],
                    "payload": batch["value"].cast(pa.string()),
                }
            )
        pass_gate("task", "after")


@dataclass(frozen=True)
class GatedStaging:
    """A gate in the worker that stages: its rows are in the database, but the driver does not know yet."""

    task: StageTask
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[FOLDER_VARIABLE] = self.folder
        for report in self.task(batches):
            pass_gate("staged", "after")
            yield report


def gate_staging(staging: Staging, inline_bytes: int) -> GatedStaging:
    return GatedStaging(StageTask(staging, inline_bytes), os.environ[FOLDER_VARIABLE])


def tell_gate(event: str, _report: BatchReport) -> None:
    if event == "submitted":
        pass_gate("plan", "after")
    elif event == "completed":
        pass_gate("batch", "after")


def run(spark: SparkSession, order: SqlOrder) -> dict[str, object]:
    stream = DirectStream(
        spark,
        Subscribe(order.topic),
        {"bootstrap.servers": order.bootstrap, "auto.offset.reset": "earliest"},
        interval=0,
        name="s",
        batch_attempts=4,
        options={"maxOffsetsPerTrigger": order.size},
    )
    stream.arrow(GatedTask(os.environ[FOLDER_VARIABLE]), SCHEMA).add_listener(tell_gate)
    stream.write(GatedSink(order.url, Table("numbers"), strategy=order.strategy))
    try:
        outcome = stream.run(until_idle=True)
    except PenstockError as error:
        return {"ended": error.condition, "text": str(error)}
    except PySparkException as error:  # a task failed too often and failed its batch
        return {"ended": type(error).__name__, "text": str(error)[-2000:]}
    return {"ended": "idle", "batches": outcome.batches, "failed_attempts": len(stream.failed_attempts)}


def start_spark(master: str) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.locality.wait": "0",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def answer_orders(
    master: str, kind: type[AnyOrder], run: Callable[[SparkSession, AnyOrder], dict[str, object]]
) -> None:
    """Start Spark once, then run each order on the input and say how it ended."""
    spark = start_spark(master)
    for line in sys.stdin:
        ended = run(spark, kind.read(line))
        sys.stdout.write(f"{ANSWER}{json.dumps(ended)}\n")
        sys.stdout.flush()
    spark.stop()


def main(master: str) -> None:
    database_timeouts.LOCK_TIMEOUT_S = LOCK_TIMEOUT_S
    sql_engine.StageTask = gate_staging
    answer_orders(master, SqlOrder, run)


if __name__ == "__main__":
    # Imported by its name, so that tasks find these classes in a module that workers can import, not in
    # `__main__`.
    from tests.crash.sql import sql_program

    sql_program.main(sys.argv[1])
