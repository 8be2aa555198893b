"""Text fields of parsed lines as columns: the bytes of all spans behind one another."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.formats.bulk import Array
from penstock.formats.jit import copy_bytes, kernel


@kernel
def join_spans(buf, starts, ends, text):
    for row in range(len(starts)):
        copy_bytes(text, np.int64(ends[row]), buf, np.int64(starts[row]), np.int64(ends[row + 1] - ends[row]))


def copy_texts(data: Array, starts: Array, lengths: Array) -> pa.BinaryArray:
    """One value for each span; null where its length is negative."""
    rows = len(starts)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    kind, width = (pa.binary(), np.int32) if ends[-1] < 2**31 else (pa.large_binary(), np.int64)
    text = np.empty(ends[-1], np.uint8)
    places = ends.astype(width)
    join_spans(data, starts, places, text)
    missing = lengths < 0
    bits = None
    if missing.any():
        bits = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(places), pa.py_buffer(text)])
