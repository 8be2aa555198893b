"""The public names for sinks that also keep the offsets: rows and offsets in one transaction.
A sink of your own inherits from `Sink`, and its writer from `SinkWriter`.

from penstock.sinks import SqlSink, Table, create_tables
"""

from __future__ import annotations

from penstock.core.sinks.sink_contract import BatchOutcome, Sink, SinkWriter
from penstock.engines.sinks import keep_provenance
from penstock.engines.sinks.file_sink import FileSink
from penstock.engines.sinks.foreach_sinks import for_each_batch
from penstock.stores.sql.sink.sql_sink import SqlSink, Table
from penstock.stores.sql.sink.table_creation import create_tables

__all__ = [
    "BatchOutcome",
    "FileSink",
    "Sink",
    "SinkWriter",
    "SqlSink",
    "Table",
    "create_tables",
    "for_each_batch",
    "keep_provenance",
]
