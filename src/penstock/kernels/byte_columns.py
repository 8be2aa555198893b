"""Arrow's byte columns as plain arrays that a kernel can walk, without copying their bytes.

Rules: null, empty and bytes stay distinct throughout. An array is never read-only, or numba would compile
every kernel twice, for read-only and for writable arrays.

Why not `column.to_pylist()`: a Python object for each record costs more than everything else together.

>>> import pyarrow as pa
>>> column = byte_column(pa.array([b"ab", None, b""]))
>>> column.ends.tolist(), column.present.tolist()
([0, 2, 2, 2], [1, 0, 1])
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = np.ndarray[Any, Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """A column of bytes: value `i` is `data[ends[i]:ends[i + 1]]` if `present[i]`."""

    data: Array
    ends: Array
    present: Array
    owner: object = None  # keeps the memory

    @property
    def rows(self) -> int:
        return len(self.present)

    @property
    def total_bytes(self) -> int:
        return int(self.ends[-1] - self.ends[0]) if len(self.ends) else 0

    @property
    def longest(self) -> int:
        return int(np.diff(self.ends).max()) if self.rows else 0


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """Row `r` has the headers `firsts[r]` to `firsts[r + 1]` of `keys` and `values`, in order."""

    firsts: Longs
    keys: ByteColumn
    values: ByteColumn


def open_column(values: pa.Array, width: type[np.int32 | np.int64] = np.int32) -> ByteColumn:
    """Return the arrays of a `pa.binary()` or large binary column, whose ends are of type `width`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    rows = len(values)
    if not rows:
        return ByteColumn(np.zeros(0, np.uint8), np.zeros(1, width), np.zeros(0, np.uint8))
    bits, ends, data = values.buffers()
    window = slice(values.offset, values.offset + rows)
    if bits is None or not values.null_count:
        present = np.ones(rows, np.uint8)
    else:
        mine = _view(bits)[window.start // 8 : -(-window.stop // 8)]  # of a slice, not of its whole parent
        first = window.start % 8
        present = np.unpackbits(mine, bitorder="little")[first : first + rows].copy()
    numbers = _view(ends).view(width)[window.start : window.stop + 1]
    return ByteColumn(_view(data), numbers if numbers.flags.aligned else numbers.copy(), present, values)


def byte_column(array: pa.Array) -> ByteColumn:
    """Return the arrays of binary values or texts of any kind; their ends are always 64 bits wide."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        column = open_column(array)
        return replace(column, ends=column.ends.astype(np.int64))
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        array = array.cast(pa.large_binary())  # dictionaries, views, fixed sizes; text becomes its UTF-8
    return open_column(array, np.int64)


def null_column(rows: int) -> ByteColumn:
    """Return a column of nulls, for records without key or value."""
    return ByteColumn(np.zeros(0, np.uint8), np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8))


def header_column(array: pa.Array | None, rows: int) -> HeaderColumn:
    """Return the arrays of a list of (key, value) structs; no list and an empty one are both "no headers"."""
    if array is None or array.null_count == rows:
        return HeaderColumn(np.zeros(rows + 1, np.int64), null_column(0), null_column(0))
    firsts = _list_offsets(array)
    if array.null_count and np.any(np.diff(firsts)[array.is_null().to_numpy(zero_copy_only=False)]):
        # The format lets a null entry cover child values, which must not be written; `take` drops them.
        array = array.take(pa.array(np.arange(rows)))
        firsts = _list_offsets(array)
    keys, values = array.values.flatten()
    return HeaderColumn(firsts, byte_column(keys), byte_column(values))


def _list_offsets(array: pa.Array) -> Longs:
    firsts: Longs = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return firsts


def _view(buffer: pa.Buffer | None) -> Array:
    """Return a buffer's bytes as an array that counts as writable, though no code writes to it."""
    if buffer is None or not buffer.size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.address))
