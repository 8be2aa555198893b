"""Arrow's byte columns as the plain arrays a kernel can walk.

Rule: three states stay apart all the way: null, empty, and bytes. A kernel sees a row's bytes as
`data[starts[row]:starts[row + 1]]` and asks `valid[row]`; an empty `valid` means that no row is null.

Why not `column.to_pylist()`: a Python object for each record costs more than everything else together.

>>> import pyarrow as pa
>>> column = byte_column(pa.array([b"ab", None, b""]))
>>> column.starts.tolist(), column.valid.tolist()
([0, 2, 2, 2], [1, 0, 1])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]

_NO_BYTES: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """`rows + 1` starts into `data`; `valid` holds one byte a row, or nothing when no row is null."""

    starts: Longs
    valid: Bytes
    data: Bytes


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """Row `r` has the headers `firsts[r]` to `firsts[r + 1]` of `keys` and `values`, in order."""

    firsts: Longs
    keys: ByteColumn
    values: ByteColumn


def null_column(rows: int) -> ByteColumn:
    """A column of nulls, for a record without key or value."""
    return ByteColumn(np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8), _NO_BYTES)


def byte_column(array: pa.Array) -> ByteColumn:
    """A binary or string array of any kind, sliced or not, without copying its bytes."""
    kind = array.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        width: type[np.int32] | type[np.int64] = np.int64
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        width = np.int32
    else:  # dictionaries, views, fixed sizes; text becomes its UTF-8
        return byte_column(array.cast(pa.large_binary()))
    rows = len(array)
    _, offsets, data = array.buffers()
    if rows == 0 or offsets is None:
        return ByteColumn(np.zeros(rows + 1, np.int64), _NO_BYTES, _NO_BYTES)
    starts = np.frombuffer(offsets, width, rows + 1, array.offset * np.dtype(width).itemsize)
    return ByteColumn(
        starts.astype(np.int64, copy=False),
        _validity(array),
        _NO_BYTES if data is None else np.frombuffer(data, np.uint8),
    )


def header_column(array: pa.Array | None, rows: int) -> HeaderColumn:
    """A list of (key, value) structs; no list and an empty list are both "no headers" to Kafka."""
    if array is None or array.null_count == rows:
        return HeaderColumn(np.zeros(rows + 1, np.int64), null_column(0), null_column(0))
    firsts = _list_offsets(array)
    if array.null_count and np.any(np.diff(firsts)[_validity(array) == 0]):
        # The format lets a null entry cover child values, which must not be written; `take` drops them.
        array = array.take(pa.array(np.arange(rows)))
        firsts = _list_offsets(array)
    keys, values = array.values.flatten()
    return HeaderColumn(firsts, byte_column(keys), byte_column(values))


def _list_offsets(array: pa.Array) -> Longs:
    firsts: Longs = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return firsts


def _validity(array: pa.Array) -> Bytes:
    if array.null_count == 0:
        return _NO_BYTES
    flags: Bytes = array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return flags
