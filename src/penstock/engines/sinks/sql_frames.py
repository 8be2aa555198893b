"""Writes a frame's rows to an SQL sink: through the driver, by one task, or by all of them.

Strategies: `driver` collects the frame; `single` brings it into one task; `parallel` lets each task load a
staging table; `auto` collects what is small enough. The size is unknown before the frame is computed. So the
first batch goes through tasks (a task with few rows returns them with its report), and each later batch is
judged by how many bytes the previous one had for how many offsets. Why collect anything that could be staged:
one COPY into the table is faster than a parallel load and the database's own copy (decision 11).

Rule: what is published is what the winning tasks reported, stage by stage. A task that ran twice, after a
failure or for speed, has filled two stages, and Spark delivers the report of one. Counts are in these reports
and never in accumulators, which would also count the losing run. Transactions per task would make half a
batch visible, and files passed to a loader would be a second system to watch: see the guide.

    writer = FrameWriter(sink.open("visits"), spark)
    writer.write(frame, before, end)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.errors import OptionError
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import FilePlace
from penstock.core.sinks.sink_contract import BatchOutcome, SinkWriter
from penstock.core.streaming.next_batch import count_records
from penstock.stores.sql.audit.provenance_digests import parse_digests, write_digests
from penstock.stores.sql.sink.sink_writer import SqlWriter
from penstock.stores.sql.sink.sql_sink import RowTransport
from penstock.stores.sql.sink.staging_tables import StageReport, Staging
from penstock.stores.sql.sink.task_staging import fill_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The most that a task may return with its report, so that two hundred tasks send the driver 50 MB at most.
INLINE_BYTES = 256 * 1024
#: What a driver with Spark's default heap of 1 GiB can collect. It can collect twice as much, in case a batch
#: is denser than the previous one.
COLLECTED_BYTES = 128 * 1024 * 1024
_REPORT = "number BIGINT, rows BIGINT, bytes BIGINT, data BINARY, digests STRING"
_REPORT_TYPES = (pa.int64(), pa.int64(), pa.int64(), pa.binary(), pa.string())
_REPORT_SCHEMA = pa.schema(zip(("number", "rows", "bytes", "data", "digests"), _REPORT_TYPES, strict=True))
#: The number of the driver's own stage; those of tasks are 0 or greater.
_DRIVER = -1


class FrameWriter(SinkWriter):
    """A `SinkWriter` for frames: the writer of one stream, and the session that runs its tasks."""

    def __init__(self, writer: SqlWriter, spark: SparkSession) -> None:
        self.writer = writer
        self._spark = spark
        self._strategy = choose_strategy(writer)
        self._last: Measured | None = None

    @property
    def position(self) -> StreamPosition | None:
        return self.writer.position

    def write(
        self, results: Any, before: StreamPosition, end: StreamPosition, *, name: str = "", token: str = ""
    ) -> BatchOutcome:
        """Make one batch durable and return its outcome. `results` is a frame or Arrow table, or one for each
        table of the sink."""
        if self.writer.is_done(before, end, name):
            return BatchOutcome(0, was_repeated=True)
        tables: dict[str, DataFrame | pa.Table] = self.writer.name_tables(results)
        for table, rows in tables.items():
            self.writer.targets[table].check_schema(find_schema(rows))
        records = count_records(before, end)
        held = self._collect(tables, records)
        if held is None:
            written, size = self._write_by_tasks(tables, before, end, name, token)
        else:
            written = self.writer.write(held, before, end, name=name, token=token)
            size = sum(rows.nbytes for rows in held.values())
        self._last = Measured(records, size) if records else self._last
        return written

    def is_written(self, before: StreamPosition, end: StreamPosition) -> bool:
        """Return whether an earlier attempt has already written this batch. Ask before working on it."""
        return self.writer.is_written(before, end)

    def check_writable(self) -> None:
        """Raise an error if the database does not accept writes now."""
        self.writer.check_writable()

    def read_state(self, table: str) -> pa.Table:
        """Return a table of the sink as of `position`."""
        return self.writer.read_state(table)

    def close(self) -> None:
        self.writer.close()

    def _collect(
        self, tables: Mapping[str, DataFrame | pa.Table], records: int | None
    ) -> dict[str, pa.Table] | None:
        """Return the rows of all tables if the driver should collect them, else None."""
        if self._strategy == "driver" or all(isinstance(rows, pa.Table) for rows in tables.values()):
            return {table: collect(rows) for table, rows in tables.items()}
        if self._strategy != "auto" or self._last is None or not self._last.promises(records):
            return None
        try:
            return {table: collect(rows) for table, rows in tables.items()}
        except Py4JJavaError as error:
            if "spark.driver.maxResultSize" not in str(error):
                raise
            return None  # the user's limit for the driver is lower than `COLLECTED_BYTES`

    def _write_by_tasks(
        self,
        tables: Mapping[str, DataFrame | pa.Table],
        before: StreamPosition,
        end: StreamPosition,
        name: str,
        token: str,
    ) -> tuple[BatchOutcome, int]:
        """Write the batch by tasks; return the outcome and the batch's size in bytes."""
        stagings = self.writer.plan_staging({table: find_schema(rows) for table, rows in tables.items()})
        reports: list[StageReport] = []
        held: dict[str, pa.Table] = {}
        try:
            for table, rows in tables.items():
                some, inline = self._stage(rows, stagings[table])
                reports += some
                if some and inline.num_rows:
                    # All rows of a table must be in one place: an upsert looks at the whole batch.
                    reports.append(fill_stage(stagings[table], _DRIVER, inline.to_batches()))
                elif inline.num_rows:
                    held[table] = inline
            written = self.writer.write_staged(reports, before, end, held=held, name=name, token=token)
        except BaseException:
            self.writer.drop_staging(stagings.values())  # also those filled by tasks whose job then failed
            raise
        self.writer.drop_staging(each.staging for each in reports)
        size = sum(each.size for each in reports) + sum(rows.nbytes for rows in held.values())
        return written, size

    def _stage(self, rows: DataFrame | pa.Table, staging: Staging) -> tuple[list[StageReport], pa.Table]:
        """Run the tasks; return the reports of what they staged, and the rows they returned."""
        if isinstance(rows, pa.Table):
            return [], rows
        frame = rows.repartition(1) if self._strategy == "single" else rows
        inline_bytes = INLINE_BYTES if self._strategy == "auto" else 0
        told = frame.mapInArrow(StageTask(staging, inline_bytes), _REPORT).toArrow()
        reports = [
            StageReport(staging, number, count, tuple(parse_digests(digests).items()), size)
            for number, count, size, data, digests in zip(
                *(told[column].to_pylist() for column in told.column_names), strict=True
            )
            if data is None and count
        ]
        handed = [pa.ipc.open_stream(data.as_buffer()).read_all() for data in told["data"] if data.is_valid]
        empty = staging.schema.empty_table()
        return reports, pa.concat_tables([empty, *(each.cast(staging.schema) for each in handed)])


@dataclass(frozen=True, slots=True)
class Measured:
    """The size of the last batch: how many offsets it had, and how many bytes of results."""

    records: int
    size: int

    def promises(self, records: int | None) -> bool:
        """Return whether a batch with this many offsets should be small enough to collect."""
        if records is None:
            return False
        return self.size * max(1.0, records / self.records) <= COLLECTED_BYTES


@dataclass(frozen=True, slots=True)
class StageTask:
    """The function that a task runs over its rows. It carries everything it needs."""

    staging: Staging
    inline_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = iter(batches)
        first: list[pa.RecordBatch] = []
        size = 0
        for batch in source:
            first.append(batch)
            size += batch.nbytes
            if size > self.inline_bytes:
                break
        rows = sum(batch.num_rows for batch in first)
        if not rows:
            return
        if size <= self.inline_bytes:
            yield make_report(StageReport(self.staging, _DRIVER, rows), pack(first))
            return
        context = TaskContext.get()
        assert context is not None
        report = fill_stage(self.staging, context.taskAttemptId(), chain(first, source))
        yield make_report(report, None)


def make_report(report: StageReport, data: bytes | None) -> pa.RecordBatch:
    values = (report.number, report.rows, report.size, data, write_digests(dict(report.digests)))
    columns = [pa.array([value], each.type) for value, each in zip(values, _REPORT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_REPORT_SCHEMA)


def pack(batches: list[pa.RecordBatch]) -> bytes:
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(target.getvalue())


def choose_strategy(writer: SqlWriter) -> RowTransport:
    """Return the strategy to use. SQLite has one writer at a time, and its file is on one computer."""
    asked = writer.sink.strategy
    if not isinstance(writer.sink.place, FilePlace):
        return asked
    if asked in ("auto", "driver"):
        return "driver"
    raise OptionError(
        "SQLITE_ONE_WRITER",
        f"An SQLite file takes one writer at a time and is on one computer; the strategy is {asked!r}.",
        hint='Leave `strategy` out, so that rows go through the driver, or use a server ("postgresql://...").',
        facts={"strategy": asked},
    )


def find_schema(rows: DataFrame | pa.Table) -> pa.Schema:
    return rows.schema if isinstance(rows, pa.Table) else to_arrow_schema(rows.schema, timezone="UTC")


def collect(rows: DataFrame | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else rows.toArrow()
