"""The access-log pipeline in a separate process, to be killed at a step.

    python -m tests.crash.accesslog.accesslog_program local[2,4]

It starts Spark once, then runs a pipeline for each line of its input until nothing is left, and answers with
how that ended. It is the real pipeline; its database steps and its two stages have gates.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.apps.accesslog.stream import pipeline as pipelines
from penstock.apps.accesslog.stream.lane_stage import LaneStage
from penstock.apps.accesslog.stream.line_stage import LogStage
from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
from penstock.apps.accesslog.stream.pipeline_tables import TABLES
from penstock.core.errors import PenstockError
from penstock.direct import BatchReport
from tests.crash.gates import FOLDER_VARIABLE, pass_gate
from tests.crash.programs import Order
from tests.crash.sql.sql_program import GatedSink, answer_orders
from tests.support.accesslog.accesslog_traffic import make_settings


@dataclass(frozen=True)
class LogOrder(Order):
    """A pipeline from a topic into a database, run until nothing is left, with `size` lines per batch."""

    bootstrap: str
    topic: str
    url: str
    folder: str
    size: int


class GatedLogStage(LogStage):
    """A gate in the worker that fetches: all parcels are made, but Spark does not know yet."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.folder = os.environ[FOLDER_VARIABLE]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[FOLDER_VARIABLE] = self.folder
        yield from super().__call__(batches)
        pass_gate("stage", "after")


@dataclass(frozen=True)
class GatedLaneStage(LaneStage):
    """Gates in the worker that folds: before a lane is touched, and when all are done."""

    folder: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[FOLDER_VARIABLE] = self.folder
        pass_gate("lanes", "before")
        yield from super().__call__(batches)
        pass_gate("lanes", "after")


def gate_lanes(*given: Any) -> GatedLaneStage:
    return GatedLaneStage(*given, folder=os.environ[FOLDER_VARIABLE])


def tell_gate(event: str, _report: BatchReport) -> None:
    if event == "submitted":
        pass_gate("plan", "after")


def run(spark: SparkSession, order: LogOrder) -> dict[str, object]:
    settings = make_settings(
        order.bootstrap, order.topic, order.url, Path(order.folder), most_lines=order.size, interval="20ms"
    )
    heard: list[BatchNews] = []

    def hear(news: BatchNews) -> None:
        heard.append(news)
        pass_gate("batch", "after")

    pipeline = Pipeline(spark, settings, sink=GatedSink(order.url, *TABLES, strategy="driver"))
    pipeline.add_listener(hear)
    pipeline.stream.add_listener(tell_gate)
    try:
        outcome = pipeline.run(until_idle=True)
    except PenstockError as error:
        return {"ended": error.condition, "text": str(error)}
    return {"ended": "idle", "batches": outcome.batches, "lines": sum(each.lines for each in heard)}


def main(master: str) -> None:
    pipelines.LogStage = GatedLogStage  # type: ignore[misc]
    pipelines.LaneStage = gate_lanes  # type: ignore[assignment, misc]
    answer_orders(master, LogOrder, run)


if __name__ == "__main__":
    # Imported by its name, so that tasks find these classes in a module that workers can import, not in
    # `__main__`.
    from tests.crash.accesslog import accesslog_program

    accesslog_program.main(sys.argv[1])
