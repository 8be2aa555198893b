"""Packs several small tables of the monitoring into one piece of bytes, with a version.

A partial is what one batch of lines of one partition adds; the state is what earlier batches left. Both are
named tables in one compressed Arrow stream, with a head of plain facts. Rule: bytes of another version are
refused, never guessed at. Why not pickle: whoever can write to the state table could then run code here.

>>> packed = pack_tables({"n": pa.table({"a": [1, 2]})}, {"partition": "0"})
>>> head, tables = unpack_tables(packed)
>>> head["partition"], tables["n"].to_pydict()
('0', {'a': [1, 2]})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import DecodeError

VERSION = 1
_HEAD = b"penstock.monitoring"
# The pieces are small: handing them to threads takes longer than the work.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
_OUTER = [("name", pa.string()), ("payload", pa.binary())]

Columns: TypeAlias = dict[str, NDArray[Any]]


def pack_tables(tables: Mapping[str, pa.Table | pa.RecordBatch], head: Mapping[str, object]) -> bytes:
    """Return tables as one piece of bytes; the same tables give the same bytes."""
    facts = json.dumps({"version": VERSION, **head}, sort_keys=True)
    schema = pa.schema(_OUTER, metadata={_HEAD: facts.encode()})
    columns = [
        pa.array(list(tables), pa.string()),
        pa.array([_write(each) for each in tables.values()], pa.binary()),
    ]
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, schema, options=_OPTIONS) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return bytes(target.getvalue())


def unpack_tables(packed: bytes | pa.Buffer) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return the head and the tables in a piece of bytes."""
    try:
        outer = pa.ipc.open_stream(packed, options=_READING).read_all()
        head = json.loads((outer.schema.metadata or {})[_HEAD])
        tables = {
            name: pa.ipc.open_stream(payload.as_buffer(), options=_READING).read_all()
            for name, payload in zip(outer["name"].to_pylist(), outer["payload"], strict=True)
        }
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DecodeError(
            "MONITORING_UNREADABLE",
            "A piece of monitoring state is not what this application writes.",
            hint="If it was changed by hand, restore it, or use a new stream name.",
        ) from error
    if head.get("version") != VERSION:
        raise DecodeError(
            "MONITORING_VERSION",
            f"A piece of monitoring state has version {head.get('version')!r}; this is version {VERSION}.",
            hint="Use the version of Penstock that wrote it, or a new stream name.",
        )
    return head, tables


def to_columns(table: pa.Table, *leave: str) -> Columns:
    """Return the columns of numbers as arrays, without those named."""
    return {
        name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names if name not in leave
    }


def join(parts: list[Columns]) -> Columns:
    """Return the rows of all of these; they have the same columns, and there is at least one."""
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def pick(columns: Columns, which: NDArray[Any]) -> Columns:
    """Return some of the rows, by a mask or by number."""
    return {name: each[which] for name, each in columns.items()}


def group_rows(*keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the order that brings equal keys together, and where each group begins in it."""
    order = np.lexsort(keys[::-1])
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= key[order[1:]] != key[order[:-1]]
    return order, np.flatnonzero(new)


def add_up(values: NDArray[Any], starts: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of each group; the values are in the groups' order."""
    if not len(starts):
        return values[:0]
    return np.asarray(np.add.reduceat(values, starts, axis=0))


def _write(table: pa.Table | pa.RecordBatch) -> bytes:
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, table.schema, options=_PLAIN) as stream:
        stream.write(table.combine_chunks() if isinstance(table, pa.Table) else table)
    return bytes(target.getvalue())
