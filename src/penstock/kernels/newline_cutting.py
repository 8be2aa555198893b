"""Cuts text into lines in bulk: it finds all newlines of a block at once and handles no line individually.

Rule: only a newline ends a line. Bytes pass unchanged, valid text or not. Why not `for line in file`: a
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
import pyarrow.compute as pc

_NEWLINE = 0x0A


def cut_lines(whole: bytes, longest: int | None = None) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the lines of a text that ends with a newline, and the numbers of those cut at `longest`."""
    octets = np.frombuffer(whole, np.uint8)
    ends = np.flatnonzero(octets == _NEWLINE) + 1
    starts = np.append(0, ends)
    sizes = np.diff(starts)
    limit = len(whole) if longest is None else longest
    cut_rows = np.flatnonzero(sizes - 1 > limit)
    if cut_rows.size:  # rare: each is longer than a message may be
        keep = np.ones(octets.size, np.bool_)
        for row in cut_rows.tolist():
            keep[starts[row] + limit : ends[row] - 1] = False
        sizes[cut_rows] = limit + 1
        octets = octets[keep]
        np.cumsum(sizes, out=starts[1:])
    with_ends = [None, pa.py_buffer(starts), pa.py_buffer(octets)]
    lines = pa.Array.from_buffers(pa.large_string(), ends.size, with_ends)
    return pc.ascii_rtrim(lines, characters="\n").view(pa.large_binary()), cut_rows
