"""Makes and runs the tasks of batch reads, streams and direct streams: each reads one work order in a worker.

Rule: a partition handed to Spark is a complete work order, and reading it uses nothing else. Orders for all
three are made here, so that none of them forgets to pass on an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.loggers import get_logger
from penstock.core.model import OFFERED, At, Log, RangeOrder, TopicPartition, WorkOrder
from penstock.core.options.shared_options import ReadOptions
from penstock.core.options.storage_addresses import Place
from penstock.core.options.stream_options import StreamOptions
from penstock.core.planning.range_bounds import count_offsets
from penstock.core.typed_columns import TypedColumns
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.kernels.worker_garbage_collection import spare_the_collector

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger(__name__)


class WorkPartition(InputPartition):
    """One task's work order as Spark carries it, with its loss ledger, if any, and the columns to decode."""

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


def name_schema(columns: tuple[str, ...], typed: TypedColumns | None) -> str:
    """Return the columns of the rows in Spark's DDL."""
    kinds = OFFERED if typed is None else {name: typed.spark_type(name) for name in columns}
    return ", ".join(f"{name} {kinds[name]}" for name in columns)


def make_tasks(
    options: StreamOptions, groups: Iterable[tuple[RangeOrder, ...]], typed: TypedColumns | None
) -> list[WorkPartition]:
    """Return the tasks of a stream's batch: a work order for each group of ranges."""
    return [
        WorkPartition(make_order(options, ranges, typed), options.loss_ledger, typed) for ranges in groups
    ]


def make_order(
    options: ReadOptions,
    ranges: tuple[RangeOrder, ...],
    typed: TypedColumns | None,
) -> WorkOrder:
    return WorkOrder(
        ranges=ranges,
        client=options.executor_client,
        columns=options.columns if typed is None else typed.fetched,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_ms=options.poll_timeout_ms,
        use_pool=options.connection_pool,
    )


def read_partition(source: Log, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's ranges, read in this worker."""
    if not isinstance(partition, WorkPartition):
        return  # there is nothing to read, but Spark wants one partition even then
    context = TaskContext.get()
    repeated = context is not None and context.attemptNumber() > 0

    def report(loss: DataLossError) -> None:
        if partition.loss_ledger is not None:
            from penstock.engines.reading.loss_book import keep_task_loss

            keep_task_loss(partition.loss_ledger, partition.order, loss)

    batches = source.open_reader(repeated=repeated, report=report).read(partition.order)
    if partition.typed is None:
        yield from batches
    else:
        from penstock.engines.reading.typed_rows import TypedRows

        find_most = partial(find_most_rows, source, partition.order.ranges)
        with closing(TypedRows(partition.typed, partition.order.client, find_most)) as rows:
            yield from rows.convert(batches)
    spare_the_collector("reading")


def find_most_rows(source: Log, ranges: tuple[RangeOrder, ...], so_far: int) -> int | None:
    """Return the most rows these ranges can have, of which `so_far` are read; None if unknown.

    Bounds that are still words, such as `latest`, were looked up when the reading began. Looked up again now,
    the end is no lower than it was then, so what is still to be read lies between the bounds found now.
    """
    words = [each for each in ranges if not (isinstance(each.start, At) and isinstance(each.until, At))]
    if not words:
        return count_offsets(ranges, {}, {})
    if not isinstance(source, KafkaLog):
        return None  # only Kafka's view is known to work in a task
    asked = {TopicPartition(each.topic, each.partition) for each in words}
    try:
        with closing(source.open_view()) as view:
            return so_far + count_offsets(ranges, view.earliest(asked), view.latest(asked))
    except BrokerError:
        return None  # the answer would only save reading; if the error persists, reading meets it
