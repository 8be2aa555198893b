"""Sinks as an engine uses them: frames go in, durable results with their offsets come out.

`open_sink(sink, stream, spark)` returns the writer for a stream; `foreach_sinks` does the same for a query of
Structured Streaming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.sinks.sink_contract import Sink, SinkWriter, demand_contract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_sink(sink: Sink, stream: str, spark: SparkSession) -> SinkWriter:
    """Become the stream's only writer, and return a writer that takes frames. (An SQL sink's own writer takes
    Arrow tables.)"""
    from penstock.stores.sql import SqlSink

    if isinstance(sink, SqlSink):
        from penstock.engines.sinks.sql_frames import FrameWriter

        return FrameWriter(sink.open(stream), spark)
    writer = sink.open(stream)
    try:
        demand_contract(writer, SinkWriter)
        writer.check_shared(spark)
    except BaseException:
        if hasattr(writer, "close"):  # a refused object may be anything
            writer.close()
        raise
    return writer


def keep_provenance(frame: DataFrame) -> DataFrame:
    """Return the frame with each row's origin in the columns that tables with `provenance=True` have.

    The frame must still have Kafka's columns `topic`, `partition` and `offset`; they are renamed.
    """
    from penstock.stores.sql.sink.sql_sink import PROVENANCE

    names = dict(zip(("topic", "partition", "offset"), PROVENANCE, strict=True))
    return frame.withColumnsRenamed(names)
