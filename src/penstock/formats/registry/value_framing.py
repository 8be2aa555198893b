"""The frame that precedes a value written with a schema registry: a zero byte and the schema's id.

Rule: ids are read in bulk and each distinct one is looked up once, those with the most rows first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.kernels.byte_columns import Array, ByteColumn

FRAME_BYTES = 5


def read_ids(source: ByteColumn) -> Array:
    """Return the schema id of each value; -1 where there is no value or no frame."""
    ids = np.full(source.rows, -1, np.int64)
    starts = source.ends[:-1].astype(np.int64)
    framed = np.flatnonzero((source.present != 0) & (np.diff(source.ends) >= FRAME_BYTES))
    if not len(framed):
        return ids
    at = starts[framed]
    framed, at = (each[source.data[at] == 0] for each in (framed, at))
    value = np.zeros(len(at), np.int64)
    for n in range(1, FRAME_BYTES):
        value = value << 8 | source.data[at + n]
    ids[framed] = value
    return ids


def choose_entries(ids: Array, find_entries: Callable[[list[int]], Sequence[int]], no_frame: int) -> Array:
    """Return where each row's program begins, or a negated fault. The id -1 stands for a row without a frame.

    `find_entries` is called once for all ids, those with the most rows first.
    """
    different, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
    entries = np.full(len(different), -no_frame, np.int64)
    order = np.lexsort((different, -counts))
    order = order[different[order] >= 0]
    if len(order):
        entries[order] = find_entries(different[order].tolist())
    return entries[which.reshape(-1)]
