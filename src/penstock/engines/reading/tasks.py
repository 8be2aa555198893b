"""What a task of the source is, for batch reads and streams alike: a work order, read in a worker.

Rule: a partition handed to Spark is a complete work order, and reading it uses nothing else.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock.core.errors import DataLossError
from penstock.core.model import Log, WorkOrder
from penstock.core.places import Place
from penstock.core.typed import TypedColumns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class WorkPartition(InputPartition):
    """One task's work order, as Spark carries it; where its losses are kept, and what it decodes, if so."""

    def __init__(
        self, order: WorkOrder, loss_ledger: Place | None = None, typed: TypedColumns | None = None
    ) -> None:
        super().__init__(order)
        self.order = order
        self.loss_ledger = loss_ledger
        self.typed = typed

    def __repr__(self) -> str:
        ranges = ", ".join(f"{each.topic}-{each.partition}" for each in self.order.ranges)
        return f"WorkPartition({ranges})"


def read_partition(source: Log, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one task's ranges in this worker."""
    if not isinstance(partition, WorkPartition):
        return  # nothing to read at all: Spark wants one partition even then
    context = TaskContext.get()
    repeated = context is not None and context.attemptNumber() > 0

    def report(loss: DataLossError) -> None:
        if partition.loss_ledger is not None:
            from penstock.engines.reading.losses import keep_task_loss

            keep_task_loss(partition.loss_ledger, partition.order, loss)

    batches = source.open_reader(repeated=repeated, report=report).read(partition.order)
    if partition.typed is None:
        yield from batches
    else:
        from penstock.engines.reading.typed import TypedRows

        with closing(TypedRows(partition.typed, partition.order.client)) as rows:
            yield from rows.convert(batches)
    spare_the_collector()


@cache
def spare_the_collector() -> None:
    """Once in a worker's life: keep what is loaded by now out of the worker's garbage collections.

    PySpark collects after every task, before the worker takes the next one. With numba loaded that walks
    140,000 objects which never go away: 60 ms a task; frozen, nothing. Not asked of the collector whether it
    was done before: to count what is frozen it walks all of it, 10 ms.
    """
    gc.freeze()
