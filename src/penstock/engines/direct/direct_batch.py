"""One batch of a direct stream: its frame, its ranges, and its commit, which is possible only while it runs.

Rules: ranges are decided on the driver before the frame exists and never change, so a retried batch reads the
same records. Counts come from the ranges and are taken once, no matter how often the frame is used. A batch
can be committed only while it runs: if it were kept in a variable and committed later, the commit would say
nothing about what was processed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.core.errors import OffsetStoreError
from penstock.core.model import OffsetRange
from penstock.core.offsets.stream_position import StreamPosition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.engines.direct.order_frames import ArrowFunction

#: Called when an asynchronous commit is over, with that batch's ranges, and the error if it failed.
CommitCallback = Callable[[tuple[OffsetRange, ...], BaseException | None], None]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What was known of a batch when the report was made.

    `planned` is where the stream continues, and `committed` what is stored (None if nothing ever was).
    `rows_written` is the sink's count. It is None without a sink, and if a commit that got no answer turned
    out to be done. `error` says why the attempt failed; it is None in the report of a batch that is done.
    """

    id: int
    time_ms: int
    ranges: tuple[OffsetRange, ...]
    planned: StreamPosition
    committed: StreamPosition | None
    attempts: int = 0
    delay_ms: float = 0.0
    planning_ms: float = 0.0
    processing_ms: float = 0.0
    storing_ms: float = 0.0
    rows_written: int | None = None
    error: str | None = None

    @property
    def offsets(self) -> int:
        """Return how many offsets all ranges have. Records may be fewer, because compacted and aborted
        records and transaction markers have offsets, too. To count records, count the frame's rows."""
        return sum(each.size for each in self.ranges)

    def __str__(self) -> str:
        """Return a line for each range that is not empty: topic, partition, from, to."""
        return "\n".join(
            f"topic: {each.topic}\tpartition: {each.partition}\toffsets: {each.start} to {each.until}"
            for each in self.ranges
            if each.size
        )


@dataclass
class BatchRun:
    """What the loop gives a batch to work with. `store` stores a position now, `store_later` does it later.

    `when_done` is a function to call when the batch is done. The next attempt keeps it only if it finds that
    this attempt's commit succeeded although it got no answer.
    """

    before: StreamPosition
    end: StreamPosition
    make_frame: Callable[..., DataFrame]
    store: Callable[[StreamPosition], None] | None
    store_later: Callable[[StreamPosition, CommitCallback | None], None] | None
    read_state: Callable[[str], DataFrame | None] = lambda _table: None
    when_done: Callable[[BatchReport], None] | None = None
    is_running: bool = False
    storing_ms: float = 0.0


class Batch:
    """One batch, as passed to the function given to `for_each_batch`."""

    def __init__(self, number: int, time_ms: int, ranges: tuple[OffsetRange, ...], run: BatchRun) -> None:
        self.id, self.time_ms, self.ranges = number, time_ms, ranges
        self._run = run

    @cached_property
    def frame(self) -> DataFrame:
        """Return the batch's rows. Each use reads them from Kafka; `.cache()` the frame if that is slow."""
        return self._run.make_frame()

    def arrow(self, function: ArrowFunction, schema: str | StructType | pa.Schema) -> DataFrame:
        """Return a frame of the rows that `function` makes, like `DirectStream.arrow` but for this batch."""
        return self._run.make_frame(function, schema)

    def when_done(self, function: Callable[[BatchReport], None]) -> None:
        """Call `function(report)` as soon as this batch is done, after the stream's listeners.

        Each attempt sets its own function. Only the last one set in the attempt that was written is called.
        """
        self._run.when_done = function

    @property
    def is_empty(self) -> bool:
        return not any(each.size for each in self.ranges)

    @property
    def start(self) -> StreamPosition:
        return self._run.before

    @property
    def end(self) -> StreamPosition:
        """Return what a commit of this batch stores: the next offset of each partition."""
        return self._run.end

    def read_state(self, table: str) -> DataFrame:
        """Return a table of the stream's sink as of this batch's start: the result of all batches before.

        Change it and return the changed rows for the same table: they are published with the batch.
        """
        rows = self._run.read_state(table)
        if rows is None:
            raise OffsetStoreError(
                "NO_STATE",
                "This stream has no sink, so there are no tables to read.",
                hint="Write to a sink: `stream.write(SqlSink(...), transform)`.",
            )
        return rows

    def commit(self) -> None:
        """Store the batch's end, and return only when it is durable."""
        run = self._demand_running()
        if run.store is None:
            raise _not_manual()
        begun = time.monotonic()
        try:
            run.store(run.end)
        finally:
            run.storing_ms += (time.monotonic() - begun) * 1000

    def commit_async(self, callback: CommitCallback | None = None) -> None:
        """Store the batch's end in the background. A crash before that repeats the batch, so this is
        at-least-once."""
        run = self._demand_running()
        if run.store_later is None:
            if run.store is None:
                raise _not_manual()
            raise OffsetStoreError(
                "COMMIT_NOT_ASYNC",
                "This offset store commits only synchronously.",
                hint="Call `commit()`; asynchronous commits are Kafka's (KafkaOffsetStore).",
            )
        run.store_later(run.end, callback)

    def _demand_running(self) -> BatchRun:
        if not self._run.is_running:
            raise OffsetStoreError(
                "COMMIT_OUTSIDE_BATCH",
                f"Batch {self.id} is not running, so it cannot be committed now.",
                hint="Commit inside the function that is given to `for_each_batch`, after its work.",
                facts={"batch": self.id},
            )
        return self._run

    def __repr__(self) -> str:
        return f"Batch({self.id}, {self.time_ms}, {sum(each.size for each in self.ranges)} offsets)"


def _not_manual() -> OffsetStoreError:
    return OffsetStoreError(
        "COMMIT_NOT_MANUAL",
        "This stream stores the offsets of its batches automatically, or not at all; there is nothing to "
        "commit by hand.",
        hint='Leave `commit()` out, or make the stream with `offsets=...` and `commit="manual"`.',
    )
