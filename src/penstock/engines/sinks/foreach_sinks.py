"""Sinks for Structured Streaming: a function for `writeStream.foreachBatch`.

Rule: a batch is identified by its query and its number, and its offsets are those that Spark wrote into the
checkpoint before it ran the batch. After a crash Spark repeats the last batch with the same number and
offsets, and what is in the ledger under that name is not written again. A batch must follow the previous one:
a ledger that is older has lost results. A query with another id over a ledger that has rows is an error, not
a fresh start: it would read from wherever its options say, and write results twice.

    query = stream.writeStream.option("checkpointLocation", place).foreachBatch(
        for_each_batch(sink, "visits", checkpoint=place)
    ).start()
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import OffsetStoreError
from penstock.core.loggers import in_stream
from penstock.core.offsets.spark_offset_log import read_entry
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.numbered_batches import is_next, is_written, name_numbered_batch
from penstock.engines.sinks.sql_frames import FrameWriter
from penstock.stores.sql import SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["DataFrame", int], Any]


def for_each_batch(
    sink: SqlSink,
    stream_name: str,
    *,
    checkpoint: str | Path,
    transform: Transform | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function that writes `transform`'s result for each batch, or the batch itself, exactly once.

    `checkpoint` must be the query's own `checkpointLocation`. `transform(frame, batch_id)` returns a frame,
    or one for each table.
    """
    return BatchFunction(sink, stream_name, str(checkpoint), transform)


class BatchFunction:
    """What `for_each_batch` returns. It opens its writer with the first batch and after an error."""

    def __init__(self, sink: SqlSink, stream: str, checkpoint: str, transform: Transform | None) -> None:
        self._sink = sink
        self._stream = stream
        self._checkpoint = checkpoint
        self._transform = transform
        self._writer: FrameWriter | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with in_stream(self._stream):
            self._write(frame, batch_id)

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        spark = frame.sparkSession
        query = read_query_id(spark, self._checkpoint)
        end = self._read(spark, batch_id)
        before = self._read(spark, batch_id - 1) if batch_id else StreamPosition({})
        try:
            if self._is_written(spark, query, batch_id, before, end):
                return
            results = frame if self._transform is None else self._transform(frame, batch_id)
            self._open(spark).write(results, before, end, name=name_numbered_batch(query, batch_id))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release connections; the next batch opens them again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self, spark: SparkSession) -> FrameWriter:
        if self._writer is None:
            self._writer = FrameWriter(self._sink.open(self._stream), spark)
        return self._writer

    def _is_written(
        self, spark: SparkSession, query: str, batch_id: int, before: StreamPosition, end: StreamPosition
    ) -> bool:
        """Return whether the batch is in the results, as the database says now. The database may have gone
        back since the open writer looked."""
        was_open = self._writer is not None
        ledger = self._open(spark).writer.ledger
        if was_open and not is_next(ledger, query, batch_id):
            self.close()
            ledger = self._open(spark).writer.ledger
        return is_written(ledger, self._stream, query, batch_id, before, end)

    def _read(self, spark: SparkSession, batch_id: int) -> StreamPosition:
        return read_entry(read_text(spark, self._checkpoint, f"offsets/{batch_id}"))


# --- the checkpoint ---------------------------------------------------------------------------------------


def read_query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id that Spark gave the query when it made the checkpoint. The id survives restarts."""
    return str(json.loads(read_text(spark, checkpoint, "metadata"))["id"])


def read_text(spark: SparkSession, checkpoint: str, name: str) -> str:
    """Return the text of a file in the checkpoint, on this computer or on any of Spark's file systems."""
    if "://" not in checkpoint and not checkpoint.startswith("file:"):
        path = Path(checkpoint) / name
        if not path.exists():
            raise _not_found(str(path))
        return path.read_text()
    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.rstrip('/')}/{name}")
    system = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not system.exists(place):
        raise _not_found(str(place.toString()))
    stream = system.open(place)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


# --- errors -----------------------------------------------------------------------------------------------


def _not_found(path: str) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no {path}.",
        hint="`checkpoint` must be the same folder as the query's `checkpointLocation`.",
        facts={"path": path},
    )
