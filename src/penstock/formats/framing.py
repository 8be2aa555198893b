"""The frame around a value that comes with a schema registry: a zero byte and the schema's id.

Rule: ids are read in bulk and each different one is looked up once. How many ids a batch may have that the
registry does not know is bounded: five bytes of noise look like an id, and a batch of noise must not become
a hundred thousand questions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.formats.bulk import Array, Input

FRAME_BYTES = 5
MAX_UNKNOWN = 100


def read_ids(source: Input) -> Array:
    """The schema id of each value; -1 where there is no value or no frame."""
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


def choose_entries(ids: Array, find_entry: Callable[[int], int], no_frame: int, unknown: int) -> Array:
    """Where each row's program begins, or a negated fault. `find_entry(id)` is asked once per id."""
    entries = np.full(len(ids), -no_frame, np.int64)
    different, which = np.unique(ids, return_inverse=True)
    missing = 0
    for n, schema_id in enumerate(different):
        if schema_id < 0:
            continue
        entry = find_entry(int(schema_id)) if missing < MAX_UNKNOWN else -unknown
        missing += entry == -unknown
        entries[which.reshape(-1) == n] = entry
    return entries
