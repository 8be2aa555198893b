"""The same sinks for Structured Streaming: a function for `writeStream.foreachBatch`.

Rule: a batch is known by its query and its number, and its offsets are what Spark wrote into the checkpoint
before it ran the batch. Spark repeats the last batch after a crash, with the same number and the same
offsets: what is in the ledger under that name is not written again. A query with another id over a ledger
that has rows is an error and no fresh start: it would read from wherever its options say, and write twice.

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
from penstock.core.offset_log import read_entry
from penstock.core.stream_offsets import StreamPosition
from penstock.engines.sinks.sql import FrameWriter
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
    """What to do with each batch: write what `transform` makes of it, or the batch itself, exactly once.

    `checkpoint` must be the query's own `checkpointLocation`. `transform(frame, batch_id)` gives a frame, or
    one for each table.
    """
    return BatchFunction(sink, stream_name, str(checkpoint), transform)


class BatchFunction:
    """Made by `for_each_batch`. Its writer is opened with the first batch, and anew after an error."""

    def __init__(self, sink: SqlSink, stream: str, checkpoint: str, transform: Transform | None) -> None:
        self._sink = sink
        self._stream = stream
        self._checkpoint = checkpoint
        self._transform = transform
        self._writer: FrameWriter | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        spark = frame.sparkSession
        query = read_query_id(spark, self._checkpoint)
        end = self._read(spark, batch_id)
        before = self._read(spark, batch_id - 1) if batch_id else StreamPosition({})
        try:
            writer = self._open(spark)
            name = f"{query}/{batch_id}"
            if self._is_done(writer, query, batch_id, before, end):
                return
            results = frame if self._transform is None else self._transform(frame, batch_id)
            writer.write(results, before, end, name=name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back connections; the next batch opens them again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self, spark: SparkSession) -> FrameWriter:
        if self._writer is None:
            self._writer = FrameWriter(self._sink.open(self._stream), spark)
        return self._writer

    def _read(self, spark: SparkSession, batch_id: int) -> StreamPosition:
        return read_entry(read_text(spark, self._checkpoint, f"offsets/{batch_id}"))

    def _is_done(
        self, writer: FrameWriter, query: str, batch_id: int, before: StreamPosition, end: StreamPosition
    ) -> bool:
        position = writer.position
        if position is None:
            if batch_id:
                raise _explain_empty(self._stream, batch_id)
            return False
        known, _, number = writer.writer.last_batch.rpartition("/")
        if known != query:
            raise _explain_replaced(self._stream, known, query)
        if int(number) < batch_id:
            return False
        if int(number) == batch_id and (position.offsets, position.gone) == (end.offsets, end.gone):
            return True
        raise _explain_behind(self._stream, int(number), batch_id)


# --- the checkpoint ---------------------------------------------------------------------------------------


def read_query_id(spark: SparkSession, checkpoint: str) -> str:
    """The id that Spark gave the query when it made the checkpoint; it keeps it over restarts."""
    return str(json.loads(read_text(spark, checkpoint, "metadata"))["id"])


def read_text(spark: SparkSession, checkpoint: str, name: str) -> str:
    """A file of the checkpoint: on this computer, or wherever Spark's file systems reach."""
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


# --- what is told -----------------------------------------------------------------------------------------


def _not_found(path: str) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no {path}.",
        hint="`checkpoint` must be the same folder as the query's `checkpointLocation`.",
        facts={"path": path},
    )


def _explain_replaced(stream: str, known: str, query: str) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_REPLACED",
        f"The results of the stream {stream} are of {f'query {known}' if known else 'another engine'}; this "
        f"is query {query}, which has a checkpoint of its own.",
        hint="Start the query with the checkpoint it had. If that is lost, give the stream another name, and "
        "decide what the results that are there are worth.",
        facts={"stream": stream, "known": known, "query": query},
    )


def _explain_empty(stream: str, batch_id: int) -> OffsetStoreError:
    return OffsetStoreError(
        "LEDGER_EMPTY",
        f"The query is at batch {batch_id}, and the ledger knows nothing of the stream {stream}: the results "
        "of all batches before are not in this database.",
        hint="Use the database and the stream name that the query had, or start it with a new checkpoint.",
        facts={"stream": stream, "batch": batch_id},
    )


def _explain_behind(stream: str, known: int, batch_id: int) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_WENT_BACK",
        f"The results of the stream {stream} go up to batch {known}; the checkpoint runs batch {batch_id} "
        "with other offsets.",
        hint="The checkpoint was restored to an earlier state: put back the newest one.",
        facts={"stream": stream, "known": known, "batch": batch_id},
    )
