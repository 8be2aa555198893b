"""A direct stream's own loop in a process without Spark, to be killed at a step.

    python -m tests.crash.direct.direct_program order.json

It is the loop that `DirectStream` runs; only the frames are missing: rows are read here with the reader that
tasks use, and appended to a file, each line flushed to the disk. So a batch that was done twice is there
twice.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.model import WorkOrder
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_options import DeliveryMode, parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.core.streaming.next_batch import plan_batch
from penstock.engines.direct.batch_loop import BatchLoop, Job, LoopSettings
from penstock.engines.direct.direct_batch import Batch, BatchReport
from penstock.engines.direct.direct_start import find_start
from penstock.engines.direct.offset_keeper import Keeper
from penstock.engines.direct.run_reports import Event
from penstock.engines.direct.stop_requests import StopSwitch
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.stores.offsets.file_store import FileOffsetStore
from tests.crash.gates import pass_gate
from tests.crash.programs import Order


@dataclass(frozen=True)
class DirectOrder(Order):
    """What to run, until nothing is left."""

    bootstrap: str
    topic: str
    folder: str
    delivery: DeliveryMode

    @property
    def rows(self) -> Path:
        return Path(self.folder) / "rows.txt"


class GatedStore(FileOffsetStore):
    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        pass_gate("store", "before")
        super().save(stream, position, may_go_back=may_go_back)
        pass_gate("store", "after")


def main(order: DirectOrder) -> None:
    options = parse_direct_options(
        Subscribe(order.topic),
        {"bootstrap.servers": order.bootstrap, "auto.offset.reset": "earliest"},
        {"maxOffsetsPerTrigger": 20},
        {},
        interval_ms=1000,
        unique="crash",
    )
    source = KafkaLog(options.stream.client)
    watch = StreamWatch(options.stream, source)
    keeper = Keeper(GatedStore(Path(order.folder) / "offsets"), "s")
    stored = keeper.load()
    start = find_start(watch, options, stored, {})
    if stored is None:
        keeper.keep(start)

    def work(batch: Batch) -> None:
        tasks = plan_batch(batch.start, batch.end, options.stream.limits)
        reader = source.open_reader(repeated=False, report=lambda loss: None)
        columns = ("partition", "offset", "value")
        for task in tasks:
            for rows in reader.read(WorkOrder(task, options.stream.executor_client, columns)):
                pass_gate("read", "before")
                _append(order.rows, rows.to_pylist())
        pass_gate("output", "after")

    def tell(event: Event, _report: BatchReport) -> None:
        if event == "submitted":
            pass_gate("plan", "after")

    job = Job(lambda before, end: None, work, tell)  # type: ignore[arg-type, return-value]
    with closing(StopSwitch()) as switch:
        settings = LoopSettings(0, 1, False, order.delivery, False)
        BatchLoop(settings, start, watch, None, keeper, switch, job).run(None, until_idle=True)


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(f"{row['partition']} {row['offset']} {row['value'].decode()}\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(DirectOrder.read_argument())
