"""A Spark driver in a separate process, to be killed: one query from Kafka into files, with a checkpoint.

    python -m tests.crash.streams.driver order.json

A query that fails is started again with the same checkpoint, as an operator or a supervisor would do. Events
are written to the notes, one per line. The program ends when the file `stop` appears, or is killed.

Sinks: `files` is Spark's own, which writes a batch's files and then names them in its own log. `batches`
overwrites whatever an earlier run of the same batch left. It has gates, so that a kill can hit the moment
when the rows are there but Spark has not yet noted the batch as done.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.crash.gates import GatedSource, pass_gate
from tests.crash.programs import Order

COLUMNS = ("topic", "partition", "offset", "value")


@dataclass(frozen=True)
class QueryOrder(Order):
    """What a driver runs. `folder` holds the checkpoint, the rows and the notes."""

    folder: str
    options: dict[str, str]
    sink: str = "files"
    source: str = "gated"
    master: str = "local[2,4]"
    jars: tuple[str, ...] = ()
    trigger: dict[str, object] = field(default_factory=lambda: {"processingTime": "0 seconds"})
    restarts: bool = True

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint"

    @property
    def rows(self) -> Path:
        return Path(self.folder) / "rows"

    @property
    def notes(self) -> Path:
        return Path(self.folder) / "notes.jsonl"

    @property
    def stop_file(self) -> Path:
        return Path(self.folder) / "stop"


def make_session(order: QueryOrder) -> SparkSession:
    builder = SparkSession.builder.master(order.master).appName("penstock-crash")
    for key, setting in {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars": ",".join(order.jars)} if order.jars else {}),
    }.items():
        builder = builder.config(key, setting)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(GatedSource)
    return session


def start_query(session: SparkSession, order: QueryOrder) -> StreamingQuery:
    frame = session.readStream.format(order.source).options(**order.options).load().select(*COLUMNS)
    if order.sink == "files":
        writer = frame.writeStream.format("parquet").option("path", str(order.rows))
    else:
        writer = frame.writeStream.foreachBatch(lambda batch, number: _write_batch(order, batch, number))
    writer = writer.option("checkpointLocation", str(order.checkpoint))
    return writer.trigger(**order.trigger).start()  # type: ignore[arg-type]


def _write_batch(order: QueryOrder, batch: DataFrame, number: int) -> None:
    pass_gate("sink", "before")
    batch.write.mode("overwrite").parquet(str(order.rows / f"batch-{number}"))
    pass_gate("sink", "after")


def note(order: QueryOrder, what: str, **facts: object) -> None:
    with order.notes.open("a") as notes:
        notes.write(json.dumps({"what": what, "at": time.time(), **facts}) + "\n")


def main() -> None:
    order = QueryOrder.read_argument()
    session = make_session(order)
    note(order, "session")
    while not order.stop_file.exists():
        query = start_query(session, order)
        note(order, "query", run=str(query.runId))
        try:
            while not query.awaitTermination(0.2):  # type: ignore[arg-type]  # a fraction is taken, too
                if order.stop_file.exists():
                    query.stop()
            note(order, "ended")
            if not order.restarts or "availableNow" in order.trigger:
                break
        except PySparkException as error:
            note(order, "failed", error=str(error)[:20_000])
            if not order.restarts:
                break
    session.stop()
    note(order, "stopped")


if __name__ == "__main__":
    main()
