"""What every kernel needs around it: the bytes of an Arrow column, memory to fill, reasons for bad rows.

Rule: memory is kept per thread of use and per type, never inside a decoder: decoders are values that travel
in work orders. A reason is made once per kind of fault, not once per row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.column_decoder import MAX_REASON

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """A binary column as plain arrays: value `i` is `data[ends[i]:ends[i + 1]]` if `present[i]`."""

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


def open_column(values: pa.Array) -> Input:
    """The arrays behind a `pa.binary()` column, without copying its bytes."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    rows = len(values)
    if not rows:
        return Input(np.zeros(0, np.uint8), np.zeros(1, np.int32), np.zeros(0, np.uint8))
    bits, ends, data = values.buffers()
    window = slice(values.offset, values.offset + rows)
    if bits is None or not values.null_count:
        present = np.ones(rows, np.uint8)
    else:
        present = np.unpackbits(_view(bits), bitorder="little")[window].copy()
    numbers = _view(ends).view(np.int32)[window.start : window.stop + 1]
    return Input(_view(data), numbers if numbers.flags.aligned else numbers.copy(), present, values)


def _view(buffer: pa.Buffer | None) -> Array:
    """A buffer's bytes as an array. Never read-only: numba would compile every kernel twice."""
    if buffer is None or not buffer.size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.address))


def explain(faults: Array, nodes: Array, describe: Callable[[int, int], str]) -> pa.StringArray | None:
    """Reasons beside rows: None when no row is bad. `describe(fault, node)` is asked once per pair."""
    if not faults.any():
        return None
    # One number per pair: sorting pairs themselves took three times as long as decoding bad rows does.
    width = int(nodes.max()) + 1
    pairs, which = np.unique(faults * width + nodes, return_inverse=True)
    split = [divmod(int(each), width) for each in pairs]
    reasons = [describe(fault, node)[:MAX_REASON] if fault else None for fault, node in split]
    return pa.array(reasons, pa.string()).take(pa.array(which.reshape(-1)))
