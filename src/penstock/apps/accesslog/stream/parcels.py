"""Parcels: what travels between the stages of a batch, a few big rows instead of one for each line.

A parcel says what is in it (`kind`), which lane it is for and which piece of its kind it is, and holds
columns as an Arrow stream. Rule: whatever a stage has made of a million lines leaves it in a few dozen rows.
Why not a row for each line: bringing it from Python to the JVM and through a shuffle costs as much as parsing
it did, and a parcel of a megabyte costs as much as one row.

>>> parcel = make_parcel("late", 3, pack(pa.table({"n": [1, 2]})))
>>> [unpack(each).to_pydict() for each in parcel["payload"]]
[{'n': [1, 2]}]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

PARCELS = pa.schema(
    [("kind", pa.string()), ("lane", pa.int32()), ("part", pa.int32()), ("payload", pa.binary())]
)
#: The same for Spark.
PARCELS_DDL = "kind STRING, lane INT, part INT, payload BINARY"


@dataclass(frozen=True, slots=True)
class Parcel:
    """One row of `PARCELS` as a Python object: there are few of them."""

    kind: str
    lane: int
    part: int
    payload: pa.Buffer | None


def pack(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return columns as one piece of bytes. Not compressed: Spark compresses what it shuffles."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, rows.schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return target.getvalue()


def unpack(payload: pa.Buffer | pa.BinaryScalar | bytes) -> pa.Table:
    """Return the columns in a payload. They point into it: nothing is copied."""
    source = payload.as_buffer() if isinstance(payload, pa.BinaryScalar) else payload
    return pa.ipc.open_stream(source).read_all()


def make_parcel(kind: str, lane: int, payload: pa.Buffer | bytes | None, part: int = 0) -> pa.RecordBatch:
    """Return one row for Spark; the payload is not copied."""
    content = pa.nulls(1, pa.binary())
    if payload is not None:
        data = pa.py_buffer(payload)
        ends = pa.array([0, data.size], pa.int32()).buffers()[1]
        content = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    columns = [pa.array([kind]), pa.array([lane], pa.int32()), pa.array([part], pa.int32()), content]
    return pa.RecordBatch.from_arrays(columns, schema=PARCELS)


def read_parcels(rows: pa.Table | pa.RecordBatch) -> Iterator[Parcel]:
    """Yield the rows that Spark has brought; their payloads point into them."""
    kinds, lanes, parts = (rows.column(name).to_pylist() for name in ("kind", "lane", "part"))
    for kind, lane, part, payload in zip(kinds, lanes, parts, rows.column("payload"), strict=True):
        yield Parcel(kind, lane, part, payload.as_buffer() if payload.is_valid else None)
