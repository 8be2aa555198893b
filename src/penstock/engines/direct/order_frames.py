"""Frames over work orders: the rows of a batch, fetched by the tasks that use them.

A frame is `spark.range(tasks).mapInArrow(...)`: the function carries the work orders of all tasks, and the
row that it is given says which one to run. It bypasses the data source, whose scan turns each row into
Spark's own form before any function sees it. Functions given to `stages` run here, in the fetching worker, on
the Arrow batches as they leave the kernels, and only what they return crosses to the JVM.

A frame that is used twice reads the same offsets from Kafka twice; call `frame.cache()` if that is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.errors import DataLossError
from penstock.core.loggers import in_stream
from penstock.core.model import At, Log, RangeOrder
from penstock.core.options.option_table import invalid
from penstock.core.outages import Patience, waiting_for_servers
from penstock.engines.reading.read_tasks import WorkPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The type of a stage: takes batches and yields batches, once per task.
ArrowFunction: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]"


@dataclass(frozen=True)
class ReadOrders:
    """The function that each task of a frame runs. With `strict`, a missing offset is an error, not a gap.
    `stream` and `patience` go into what a task logs."""

    source: Log
    tasks: tuple[WorkPartition, ...]
    stages: tuple[ArrowFunction, ...] = ()
    strict: bool = False
    stream: str = ""
    patience: Patience | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_stream(self.stream), waiting_for_servers(self.patience):
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    rows = self._read(self.tasks[index])
                    for stage in self.stages:
                        rows = iter(stage(rows))
                    yield from rows

    def _read(self, task: WorkPartition) -> Iterator[pa.RecordBatch]:
        if not self.strict:
            yield from read_partition(self.source, task)
            return
        for each in task.order.ranges:
            alone = WorkPartition(replace(task.order, ranges=(each,)), task.loss_ledger, task.typed)
            yield from demand_every_offset(each, read_partition(self.source, alone))


def demand_every_offset(wanted: RangeOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range; raise at the first missing offset."""
    import numpy as np

    assert isinstance(wanted.start, At)
    assert isinstance(wanted.until, At)
    expected = wanted.start.offset
    for batch in batches:
        offsets = batch.column("offset").to_numpy()
        missing = np.flatnonzero(offsets != np.arange(expected, expected + offsets.size))
        if missing.size:
            raise _gap(wanted, expected + int(missing[0]), int(offsets[missing[0]]))
        expected += offsets.size
        yield batch
    if expected != wanted.until.offset:
        raise _gap(wanted, expected, None)


def make_frame(
    spark: SparkSession,
    source: Log,
    tasks: Sequence[WorkPartition],
    schema: str | StructType,
    *,
    stages: Sequence[ArrowFunction] = (),
    strict: bool = False,
    stream: str = "",
    patience: Patience | None = None,
) -> DataFrame:
    """Return a frame with one task for each work order. Without orders it has no rows."""
    if not tasks:
        return spark.createDataFrame([], schema)
    rows = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    orders = ReadOrders(source, tuple(tasks), tuple(stages), strict, stream, patience)
    return rows.mapInArrow(orders, schema)


def read_schema(schema: str | StructType | pa.Schema) -> StructType:
    """Return a frame's columns, given as a Spark schema, as DDL or as an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema)
        if not isinstance(parsed, StructType):
            raise invalid("schema", schema, "columns and their types, such as `name string, count bigint`")
        return parsed
    return from_arrow_schema(schema)


def _gap(wanted: RangeOrder, missing: int, found: int | None) -> DataLossError:
    what = "the range ends before it" if found is None else f"the next record is at {found}"
    return DataLossError(
        "OFFSET_MISSING",
        f"{wanted.topic}-{wanted.partition} has no record at offset {missing}; {what}.",
        hint="A compacted topic has such gaps, and one written in transactions: set "
        "spark.streaming.kafka.allowNonConsecutiveOffsets to true, or leave it out.",
        facts={"topic": wanted.topic, "partition": wanted.partition, "offset": missing, "found": found},
    )
