"""Turns text fields of parsed lines into columns, and joins targets with queries from another field.

Rule: a target ends with its query, or nothing would see what is hidden there. If a log has the two in fields
of their own, both are written once more behind the bytes of all lines, joined by a `?`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.core.errors import DecodeError
from penstock.kernels.byte_columns import Array
from penstock.kernels.compilation import copy_bytes, kernel


@kernel
def join_spans(buf, starts, ends, text):
    for row in range(len(starts)):
        copy_bytes(text, np.int64(ends[row]), buf, np.int64(starts[row]), np.int64(ends[row + 1] - ends[row]))


def copy_texts(data: Array, starts: Array, lengths: Array) -> pa.BinaryArray:
    """Return one value for each span; null if its length is negative."""
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


@kernel
def append_targets(buf, at, starts, lengths, queries):
    for i in range(len(queries)):
        row, query, size = queries[i, 0], np.int64(queries[i, 1]), np.int64(queries[i, 2])
        begin, length = at, np.int64(lengths[row])
        copy_bytes(buf, at, buf, np.int64(starts[row]), length)
        at += length
        if buf[query] != 0x3F:
            buf[at] = 0x3F
            at += 1
        copy_bytes(buf, at, buf, query, size)
        at += size
        starts[row], lengths[row] = begin, at - begin
    return at


def join_queries(data: Array, starts: Array, lengths: Array, queries: Array) -> Array:
    """Return bytes with each target joined to its query; `starts` and `lengths` are set to these."""
    more = int(lengths[queries[:, 0]].sum(dtype=np.int64) + queries[:, 2].sum(dtype=np.int64)) + len(queries)
    if data.size + more >= 2**31:
        raise DecodeError(
            "BATCH_TOO_LARGE",
            f"{data.size} bytes of lines and {more} of targets with their queries do not fit one buffer.",
            hint="Parse fewer lines at once.",
        )
    joined = np.empty(data.size + more, np.uint8)
    joined[: data.size] = data
    append_targets(joined, data.size, starts, lengths, queries)
    return joined
