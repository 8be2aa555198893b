"""Cuts text into lines in bulk: it finds all newlines of a block at once and handles no line singly.

Rule: only a newline ends a line; bytes pass unchanged, valid text or not. Why not `for line in file`: a
Python object for each line costs more than writing it to Kafka.

>>> cut_lines(b"one\\n\\nthree\\n")[0].to_pylist()
[b'one', b'', b'three']
>>> cut_lines(b"one\\nthree\\n", longest=3)[1]
array([1])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NEWLINE = 0x0A


def cut_lines(whole: bytes, longest: int | None = None) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the lines of a text that ends with a newline, and the numbers of those cut at `longest`."""
    octets = np.frombuffer(whole, np.uint8)
    keep = octets != _NEWLINE
    ends = np.flatnonzero(~keep)
    begins = np.zeros(ends.size, np.int64)
    begins[1:] = ends[:-1] + 1
    sizes = ends - begins
    limit = len(whole) if longest is None else longest
    cut_rows = np.flatnonzero(sizes > limit)
    for row in cut_rows.tolist():  # rare: each is longer than a whole message may be
        keep[begins[row] + limit : ends[row]] = False
        sizes[row] = limit
    starts = np.zeros(ends.size + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    lines = pa.Array.from_buffers(
        pa.large_binary(), ends.size, [None, pa.py_buffer(starts), pa.py_buffer(octets[keep])]
    )
    return lines, cut_rows
