"""The encoding kernel: writes rows of flat columns as the record section of one batch (format v2).

Rule: a record is measured before it is written, so the buffer never overflows and a record that does not
fit never pushes a batch past its limit. Why not encode first and cut later: lengths are varints in front
of what they measure, so the size has to be known anyway.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.kernels.compilation import copy_bytes, inlined, kernel

HEADER_BYTES = 61


@inlined
def varint_bytes(value):
    """Return how many bytes a number takes as a zigzag varint."""
    raw = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = 1
    while raw >= np.uint64(128):
        raw >>= np.uint64(7)
        size += 1
    return size


@inlined
def put_varint(out, at, value):
    """Write a zigzag varint and return the position after it."""
    raw = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while raw >= np.uint64(128):
        out[at] = np.uint8(raw & np.uint64(127) | np.uint64(128))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@kernel
def write_records(
    out, max_batch_bytes, rows, first, times,
    key_ends, key_present, keys, value_ends, value_present, values,
    header_firsts, header_key_ends, header_keys, header_value_ends, header_value_present, header_values,
):  # fmt: skip
    """Write records from `rows[first]` on, leaving room for a header.

    Return (the next row to write, the end of the bytes, the highest time). When not even the first fits
    into `out`, the next row is `first` itself and the end is the room it needs. The arrays are not bundled: a
    batch of one record takes 3 us, and in `fill` such a bundle costs 1 us more.
    """
    at = np.int64(HEADER_BYTES)
    base_time = times[rows[first]]
    highest = base_time
    for n in range(first, rows.size):
        row = rows[n]
        key_size = key_ends[row + 1] - key_ends[row]
        if not key_present[row]:
            key_size = np.int64(-1)
        value_size = value_ends[row + 1] - value_ends[row]
        if not value_present[row]:
            value_size = np.int64(-1)
        head, tail = header_firsts[row], header_firsts[row + 1]
        delta_time, delta = times[row] - base_time, np.int64(n - first)
        size = 1 + varint_bytes(delta_time) + varint_bytes(delta)
        size += varint_bytes(key_size) + max(key_size, 0) + varint_bytes(value_size) + max(value_size, 0)
        size += varint_bytes(tail - head)
        for h in range(head, tail):
            length = header_key_ends[h + 1] - header_key_ends[h]
            size += varint_bytes(length) + length
            length = header_value_ends[h + 1] - header_value_ends[h]
            if not header_value_present[h]:
                length = np.int64(-1)
            size += varint_bytes(length) + max(length, 0)
        end = at + varint_bytes(np.int64(size)) + size
        if n > first and end > max_batch_bytes:
            return n, at, highest
        if end > out.size:
            return n, end if n == first else at, highest
        at = put_varint(out, at, np.int64(size))
        out[at] = 0
        at = put_varint(out, at + 1, delta_time)
        at = put_varint(out, at, delta)
        at = put_varint(out, at, key_size)
        if key_size > 0:
            copy_bytes(out, at, keys, key_ends[row], key_size)
            at += key_size
        at = put_varint(out, at, value_size)
        if value_size > 0:
            copy_bytes(out, at, values, value_ends[row], value_size)
            at += value_size
        at = put_varint(out, at, tail - head)
        for h in range(head, tail):
            length = header_key_ends[h + 1] - header_key_ends[h]
            at = put_varint(out, at, length)
            if length > 0:
                copy_bytes(out, at, header_keys, header_key_ends[h], length)
                at += length
            length = header_value_ends[h + 1] - header_value_ends[h]
            if not header_value_present[h]:
                length = np.int64(-1)
            at = put_varint(out, at, length)
            if length > 0:
                copy_bytes(out, at, header_values, header_value_ends[h], length)
                at += length
        highest = max(highest, times[row])
    return rows.size, at, highest
