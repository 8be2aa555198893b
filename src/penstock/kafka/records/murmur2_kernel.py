"""Finds the partition of a key as Java's default partitioner does.

Rule: a key always goes to the same partition, whatever client writes it. Java hashes the key's bytes with
murmur2 (32 bit, its own seed), drops the sign bit and takes the remainder. A null key has no partition: the
writer chooses one; an empty key is a key.

Why not Python's `hash` or librdkafka's default (crc32): records of one key would be spread over two
partitions as soon as a Java application writes to the same topic, and their order would be lost.

>>> import pyarrow as pa
>>> from penstock.kernels.byte_columns import byte_column
>>> partition_of_keys(byte_column(pa.array(["item1", "item2", "item3", None])), 3).tolist()
[1, 0, 2, -1]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.kernels.byte_columns import ByteColumn, Bytes, Longs
from penstock.kernels.compilation import kernel

#: In the result: the row has no key.
NO_KEY = -1


def partition_of_keys(keys: ByteColumn, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each row's key, `NO_KEY` where it is null."""
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    chosen = np.empty(keys.rows, np.int32)
    _hash_keys(keys.ends, keys.present, keys.data, partitions, chosen)
    return chosen


def group_rows(chosen: npt.NDArray[np.int32], partitions: int) -> tuple[Longs, Longs]:
    """Return row numbers sorted by partition, in their old order within each, and `partitions + 1` starts."""
    starts = np.zeros(partitions + 1, np.int64)
    np.cumsum(np.bincount(chosen, minlength=partitions), out=starts[1:])
    rows = np.empty(chosen.size, np.int64)
    _place_rows(chosen, starts[:-1].copy(), rows)
    return rows, starts


@kernel
def _place_rows(chosen: npt.NDArray[np.int32], next_place: Longs, rows: Longs) -> None:
    for row in range(chosen.size):
        partition = chosen[row]
        rows[next_place[partition]] = row
        next_place[partition] += 1


@kernel
def _hash_keys(
    ends: Longs, present: Bytes, data: Bytes, partitions: int, chosen: npt.NDArray[np.int32]
) -> None:
    for row in range(chosen.size):
        if not present[row]:
            chosen[row] = -1
            continue
        at, end = ends[row], ends[row + 1]
        mask, m = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
        # 64-bit arithmetic, cut to 32 bits after each product: Java's int overflow.
        h = np.uint64(0x9747B28C) ^ np.uint64(end - at)
        while end - at >= 4:
            k = (
                np.uint64(data[at])
                | np.uint64(data[at + 1]) << np.uint64(8)
                | np.uint64(data[at + 2]) << np.uint64(16)
                | np.uint64(data[at + 3]) << np.uint64(24)
            )
            k = (k * m) & mask
            k ^= k >> np.uint64(24)
            k = (k * m) & mask
            h = ((h * m) & mask) ^ k
            at += 4
        left = end - at
        if left == 3:
            h ^= np.uint64(data[at + 2]) << np.uint64(16)
        if left >= 2:
            h ^= np.uint64(data[at + 1]) << np.uint64(8)
        if left >= 1:
            h ^= np.uint64(data[at])
            h = (h * m) & mask
        h ^= h >> np.uint64(13)
        h = (h * m) & mask
        h ^= h >> np.uint64(15)
        chosen[row] = np.int32((h & np.uint64(0x7FFFFFFF)) % np.uint64(partitions))
