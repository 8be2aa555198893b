"""Support for tests of sinks: one small table, positions, and writers that stop at a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.sql_commit_protocol import Step
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter, open_writer
from penstock.testing.proxy import FaultProxy
from tests.sql.databases import OwnDatabase

NUMBERS = pa.schema([("partition_id", pa.int32()), ("number", pa.int64())])


def at(*offsets: int, **more: Any) -> StreamPosition:
    return StreamPosition({TopicPartition("t", number): each for number, each in enumerate(offsets)}, **more)


def make_numbers(before: StreamPosition, end: StreamPosition) -> pa.Table:
    """Return a row for each offset between the two positions."""
    rows = [
        (each.partition, number)
        for each, until in sorted(end.offsets.items())
        for number in range(before.offsets.get(each, 0), until)
    ]
    columns = [pa.array([row[place] for row in rows], NUMBERS[place].type) for place in (0, 1)]
    return pa.table(columns, schema=NUMBERS)


def with_provenance(rows: pa.Table) -> pa.Table:
    """Return the same rows, each with the record it came from."""
    return pa.table(
        {
            "partition_id": rows["partition_id"],
            "number": rows["number"],
            "penstock_topic": pa.array(["t"] * rows.num_rows),
            "penstock_partition": rows["partition_id"],
            "penstock_offset": rows["number"],
        }
    )


def make_sink(url: str, **settings: Any) -> SqlSink:
    sink = SqlSink(url, Table("numbers", **settings))
    create_tables(sink, {"numbers": NUMBERS})
    return sink


def read_numbers(database: OwnDatabase) -> list[tuple[int, int]]:
    return sorted(database.run("SELECT partition_id, number FROM numbers"))


def lead_through(proxy: FaultProxy, url: str) -> str:
    """Return the address of the same database through the proxy."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    proxy.lead_to((address.hostname, address.port))
    return url.replace(f"{address.hostname}:{address.port}", proxy.bootstrap)


def open_watched(sink: SqlSink, before: Callable[[Step], None]) -> SqlWriter:
    """Return a writer that calls `before` ahead of each step, beginning with the first of `take_over`."""

    class Watched(Performer):
        look: ClassVar[Callable[[Step], None]] = staticmethod(before)

        def __call__(self, step: Step) -> Any:
            self.look(step)
            return super().__call__(step)

    return open_writer(sink, "s", performer_type=Watched)
