"""Top tables: the most frequent URLs, clients, agents and referrers, in bounded memory with a bounded error.

A table holds at most `ROOM` texts of one minute, server and kind. As long as there are no more, its hits are
exact. With more, the smallest are dropped by the rule of Misra and Gries in its mergeable form: when the
weights of all texts are lowered by that of the first one dropped, each such step is paid by ROOM + 1 texts,
so what a table has missed of any text is at most all its hits / (ROOM + 1), however it was split and merged.

A row gives both bounds: `hits` were seen, and `hits_at_most` is the most there can have been. Why not only
the usual lowered counts: a busy text would show fewer hits than were seen. Here `hits` is what was counted
since the text came in, and `credit` remembers how far the weights have been lowered since.

>>> entries = {name: np.array([0, 0, 0]) for name in ("group", "bytes", "credit")}
>>> entries |= {"hash": np.array([1, 2, 3]), "hits": np.array([5, 2, 1])}
>>> kept, floors = merge_entries(entries, np.array([0]), room=2)
>>> kept["hits"].tolist(), kept["credit"].tolist(), floors.tolist()
([5, 2], [1, 1], [1])
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import STEPS, copy_texts, keep_largest
from penstock.apps.accesslog.monitoring.packed_tables import Columns, add_up, group_rows, pick

#: Kinds of texts, by their number in the tables, with the field of the lines they come from.
KINDS = ("url", "client", "agent", "referrer")
FIELDS = ("target", "client", "agent", "referrer")
#: Servers are counted without a table of their own: there are few.
SERVER_KIND = "server"
ROOM = 512
RANKS = 10
#: Of a longer text, only the first bytes are shown.
TEXT_BYTES = 256


def choose_largest(
    cells: NDArray[np.int32], hits: NDArray[np.int64], cell_count: int, room: int = ROOM
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which entries of a batch to keep, and per cell how many hits a dropped text may have."""
    floors = np.zeros(cell_count, np.int64)
    keep = np.ones(len(cells), np.bool_)
    sizes = np.bincount(cells, minlength=cell_count)
    crowded = np.flatnonzero(sizes > room)
    if not len(crowded):
        return keep, floors
    numbers = np.full(cell_count, -1, np.int32)
    numbers[crowded] = np.arange(len(crowded))
    found = np.zeros(len(crowded), np.int64)
    if not keep_largest(cells, hits, room, numbers, np.zeros((len(crowded), STEPS), np.int64), found, keep):
        order = np.lexsort((np.arange(len(hits)), -hits, cells))
        starts = np.concatenate([[0], np.cumsum(sizes)])[cells[order]]
        rank = np.arange(len(order)) - starts
        keep[order] = rank < room
        first_out = order[rank == room]
        floors[cells[first_out]] = hits[first_out]
        return keep, floors
    floors[crowded] = found
    return keep, floors


def cut_texts(data: NDArray[np.uint8], starts: NDArray[np.int32], lengths: NDArray[np.int32]) -> pa.Array:
    """Return texts from a buffer, each cut to the part that is shown; an empty text becomes `-`."""
    sizes = np.minimum(lengths, TEXT_BYTES)
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    copy_texts(data, starts, offsets, target)
    texts = pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(target)]
    )
    return texts if (sizes > 0).all() else pc.if_else(pa.array(sizes > 0), texts, b"-")


def merge_entries(
    entries: Columns, floors: NDArray[np.int64], room: int = ROOM
) -> tuple[Columns, NDArray[np.int64]]:
    """Return one entry per text of a group, at most `room`; `row` is one of the rows it came from.

    `floors` has for each group the sum of what the merged tables have missed of any text.
    """
    order, starts = group_rows(entries["group"], entries["hash"])
    merged = {name: add_up(entries[name][order], starts) for name in ("hits", "bytes", "credit")}
    merged |= {name: entries[name][order][starts] for name in ("group", "hash")}
    merged["row"] = order[starts]
    sizes = np.bincount(merged["group"], minlength=len(floors))
    if not (sizes > room).any():
        return merged, floors
    weights = merged["hits"] - merged["credit"]
    by_weight = np.lexsort((merged["hash"], -weights, merged["group"]))
    groups = merged["group"][by_weight]
    rank = np.arange(len(groups)) - np.concatenate([[0], np.cumsum(sizes)])[groups]
    lowered = np.zeros(len(floors), np.int64)
    lowered[groups[rank == room]] = np.maximum(0, weights[by_weight[rank == room]])
    kept = pick(merged, np.sort(by_weight[rank < room]))
    kept["credit"] = kept["credit"] + lowered[kept["group"]]
    return kept, floors + lowered


def rank_entries(entries: Columns, ranks: int = RANKS) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the first `ranks` of each group by hits, and their ranks from 1."""
    order = np.lexsort((entries["hash"], -entries["hits"], entries["group"]))
    groups = entries["group"][order]
    new = np.ones(len(groups), np.bool_)
    new[1:] = groups[1:] != groups[:-1]
    begins = np.maximum.accumulate(np.where(new, np.arange(len(groups)), 0))
    rank = np.arange(len(groups)) - begins
    return order[rank < ranks], rank[rank < ranks] + 1
