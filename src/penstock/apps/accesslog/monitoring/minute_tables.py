"""The tables of open minutes: joined from several sources, and turned into rows for SQL.

A cell is a minute of a server, as one number. `Minutes` holds all tables of any number of cells as arrays, so
that a batch of history with a thousand minutes costs as much as a live one with two. Rule: the result does
not depend on the order or the number of the pieces that went in; for top tables this holds until they are
full (see `top_lists`). The rows of "*" are all servers together: their clients are not counted twice.

>>> cell_of(np.array([7]), 3), minute_of(np.array([7171]))
(array([7171]), array([7]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import BYTES, ERRORS, MICROS, REQUESTS, STATUS
from penstock.apps.accesslog.monitoring.packed_tables import Columns, add_up, group_rows, join, pick
from penstock.apps.accesslog.monitoring.sketches import (
    EXACT_LIMIT,
    Registers,
    estimate_distinct,
    find_quantiles,
    make_registers,
    merge_registers,
)
from penstock.apps.accesslog.monitoring.top_lists import (
    KINDS,
    RANKS,
    SERVER_KIND,
    merge_entries,
    rank_entries,
)

#: All servers together.
ALL = "*"
#: A cell is minute * SERVERS + number of the server; the last number is all servers together.
SERVERS = 1024
_EVERYONE = SERVERS - 1
#: The exact counts of a second: requests, bytes, five status classes, errors.
KEPT = 8
_TIME = pa.timestamp("us", tz="UTC")
_STATUS_NAMES = [f"status_{group}xx" for group in range(1, 6)]

SECOND_ROWS = pa.schema(
    [("second", _TIME), ("server", pa.string())]
    + [(name, pa.int64()) for name in ("requests", "bytes", *_STATUS_NAMES, "errors")]
)
MINUTE_ROWS = pa.schema(
    [("minute", _TIME), ("server", pa.string())]
    + [(name, pa.int64()) for name in ("requests", "bytes", *_STATUS_NAMES, "errors")]
    + [("error_ratio", pa.float64())]
    + [(name, pa.int64()) for name in ("latency_p50_us", "latency_p95_us", "latency_p99_us", "latencies")]
    + [("unique_clients", pa.int64())]
    + [("rate_min", pa.int64()), ("rate_avg", pa.float64()), ("rate_max", pa.int64())]
)
TOP_ROWS = pa.schema(
    [
        ("minute", _TIME),
        ("server", pa.string()),
        ("kind", pa.string()),
        ("rank", pa.int32()),
        ("text", pa.string()),
        ("hits", pa.int64()),
        ("hits_at_most", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def cell_of(minutes: Any, servers: Any) -> NDArray[np.int64]:
    return np.asarray(minutes * SERVERS + servers, np.int64)


def minute_of(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(cells // SERVERS, np.int64)


@dataclass(slots=True)
class Minutes:
    """All tables of some cells. `fresh` seconds are those that this batch has added to."""

    seconds: Columns  # second, cell, fresh, n0..n7
    latencies: Columns  # cell, bucket, hits
    clients: Columns  # cell, hash
    sketches: list[tuple[int, Registers]]  # cell, registers
    tops: Columns  # cell, kind, hash, hits, bytes, credit
    texts: pa.Array  # beside tops
    floors: Columns  # cell, kind, missed


def unite_minutes(parts: Sequence[Minutes], room: int) -> Minutes:
    """Return the tables of all parts as one, with each key once. There must be at least one part."""
    seconds = join([each.seconds for each in parts])
    order, starts = group_rows(seconds["second"], seconds["cell"])
    summed = {name: seconds[name][order][starts] for name in ("second", "cell")}
    summed |= {name: add_up(seconds[name][order], starts) for name in ("fresh", *_numbers())}
    latencies = join([each.latencies for each in parts])
    order, starts = group_rows(latencies["cell"], latencies["bucket"])
    buckets = {name: latencies[name][order][starts] for name in ("cell", "bucket")}
    buckets["hits"] = add_up(latencies["hits"][order], starts)
    clients, sketches = _unite_clients(
        join([each.clients for each in parts]), [each for part in parts for each in part.sketches]
    )
    tops, texts, floors = _unite_tops(
        join([each.tops for each in parts]),
        pa.chunked_array([each.texts for each in parts], pa.binary()).combine_chunks(),
        join([each.floors for each in parts]),
        room,
    )
    return Minutes(summed, buckets, clients, sketches, tops, texts, floors)


def choose_cells(minutes: Minutes, cells: NDArray[np.int64]) -> Minutes:
    """Return only the tables of these cells."""
    keep = np.isin(minutes.tops["cell"], cells)
    wanted = set(cells.tolist())
    return Minutes(
        pick(minutes.seconds, np.isin(minutes.seconds["cell"], cells)),
        pick(minutes.latencies, np.isin(minutes.latencies["cell"], cells)),
        pick(minutes.clients, np.isin(minutes.clients["cell"], cells)),
        [each for each in minutes.sketches if each[0] in wanted],
        pick(minutes.tops, keep),
        minutes.texts.filter(pa.array(keep)),
        pick(minutes.floors, np.isin(minutes.floors["cell"], cells)),
    )


def _numbers() -> list[str]:
    return [f"n{number}" for number in range(KEPT)]


def _unite_clients(
    clients: Columns, sketches: list[tuple[int, Registers]]
) -> tuple[Columns, list[tuple[int, Registers]]]:
    order, starts = group_rows(clients["cell"], clients["hash"])
    distinct = {name: of[order][starts] for name, of in clients.items()}
    cells, sizes = np.unique(distinct["cell"], return_counts=True)
    dense: dict[int, list[Registers]] = {int(cell): [] for cell in cells[sizes > EXACT_LIMIT]}
    for cell, registers in sketches:
        dense.setdefault(cell, []).append(registers)
    if not dense:
        return distinct, []
    united = []
    for cell, found in sorted(dense.items()):
        begin, end = np.searchsorted(distinct["cell"], [cell, cell + 1])
        united.append((cell, merge_registers([*found, make_registers(distinct["hash"][begin:end])])))
    return pick(distinct, ~np.isin(distinct["cell"], list(dense))), united


def _unite_tops(
    tops: Columns, texts: pa.Array, floors: Columns, room: int
) -> tuple[Columns, pa.Array, Columns]:
    kinds = len(KINDS)
    groups, numbers = np.unique(tops["cell"] * kinds + tops["kind"], return_inverse=True)
    missed = np.zeros(len(groups), np.int64)
    # A table that has missed something is full, so its group has entries.
    np.add.at(missed, np.searchsorted(groups, floors["cell"] * kinds + floors["kind"]), floors["missed"])
    merged, missed = merge_entries({**tops, "group": numbers.reshape(-1)}, missed, room)
    key = groups[merged["group"]]
    kept = {"cell": key // kinds, "kind": (key % kinds).astype(np.int8)}
    kept |= {name: merged[name] for name in ("hash", "hits", "bytes", "credit")}
    short = np.flatnonzero(missed)
    rest = {"cell": groups[short] // kinds, "kind": (groups[short] % kinds).astype(np.int8)}
    return kept, texts.take(pa.array(merged["row"])), {**rest, "missed": missed[short]}


# --- rows --------------------------------------------------------------------------------------------------


def make_second_rows(minutes: Minutes, names: Sequence[str]) -> pa.Table:
    """Return the seconds that this batch has added to, with all that is counted in them so far."""
    fresh = pick(minutes.seconds, minutes.seconds["fresh"] > 0)
    columns = [
        pa.array(fresh["second"] * MICROS, _TIME),
        _take_names(names, fresh["cell"]),
        *(pa.array(fresh[name]) for name in _numbers()),
    ]
    return pa.Table.from_arrays(columns, schema=SECOND_ROWS)


def with_everyone(minutes: Minutes) -> Minutes:
    """Return the same tables, with those of all servers together beside them."""
    far = 1 << 62  # no table is cut here: the rows of all servers are made of what there is
    return unite_minutes([minutes, _move_to_everyone(minutes)], far)


def make_minute_rows(minutes: Minutes, names: Sequence[str]) -> pa.Table:
    """Return one row for each cell. Rates are over 60 seconds, those without a line included."""
    seconds = minutes.seconds
    order, starts = group_rows(seconds["cell"])
    cells = seconds["cell"][order][starts]
    sums = {name: add_up(seconds[name][order], starts) for name in _numbers()}
    rates = seconds["n0"][order]
    lowest = np.minimum.reduceat(rates, starts) if len(starts) else rates
    highest = np.maximum.reduceat(rates, starts) if len(starts) else rates
    full = np.diff(np.append(starts, len(order))) == 60
    requests = sums[f"n{REQUESTS}"]
    quantiles, latencies = _find_quantiles(minutes.latencies, cells)
    columns = [
        pa.array(minute_of(cells) * 60 * MICROS, _TIME),
        _take_names(names, cells),
        *(pa.array(sums[name]) for name in _numbers()),
        pa.array(sums[f"n{ERRORS}"] / np.maximum(requests, 1)),
        *(pa.array(each, pa.int64()) for each in quantiles),
        pa.array(latencies),
        pa.array(_count_clients(minutes, cells)),
        pa.array(np.where(full, lowest, 0)),
        pa.array(requests / 60.0),
        pa.array(highest),
    ]
    return pa.Table.from_arrays(columns, schema=MINUTE_ROWS)


def make_top_rows(minutes: Minutes, names: Sequence[str]) -> pa.Table:
    """Return the first ranks of each table; servers are ranked under "*" only."""
    tops, kinds = minutes.tops, len(KINDS)
    group = tops["cell"] * kinds + tops["kind"]
    rows, ranks = rank_entries({**tops, "group": group})
    floors = minutes.floors["cell"] * kinds + minutes.floors["kind"]
    order = np.argsort(floors)
    at = np.minimum(np.searchsorted(floors[order], group[rows]), max(0, len(floors) - 1))
    missed = np.zeros(len(rows), np.int64)
    if len(floors):
        hit = floors[order][at] == group[rows]
        missed = np.where(hit, minutes.floors["missed"][order][at], 0)
    hits = tops["hits"][rows]
    texts = [decode_text(each) for each in minutes.texts.take(pa.array(rows)).to_pylist()]
    columns = [
        pa.array(minute_of(tops["cell"][rows]) * 60 * MICROS, _TIME),
        _take_names(names, tops["cell"][rows]),
        pa.array(KINDS).take(pa.array(tops["kind"][rows])),
        pa.array(ranks.astype(np.int32)),
        pa.array(texts, pa.string()),
        pa.array(hits),
        pa.array(hits + missed - tops["credit"][rows]),
        pa.array(tops["bytes"][rows]),
    ]
    by_text = pa.Table.from_arrays(columns, schema=TOP_ROWS)
    return pa.concat_tables([by_text, _rank_servers(minutes, names)])


def decode_text(text: bytes) -> str:
    """Return a log's text as it is stored: bytes that are not UTF-8 and NUL, which SQL refuses, escaped."""
    return text.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _rank_servers(minutes: Minutes, names: Sequence[str]) -> pa.Table:
    seconds = pick(minutes.seconds, minutes.seconds["cell"] % SERVERS != _EVERYONE)
    order, starts = group_rows(seconds["cell"])
    cells = seconds["cell"][order][starts]
    known = [names[number] for number in (cells % SERVERS).tolist()]
    sums = {name: add_up(seconds[name][order], starts) for name in (f"n{REQUESTS}", f"n{BYTES}")}
    by_name = np.argsort(np.argsort(np.array(known or [""])[: len(known)], kind="stable"))
    entries = {"group": minute_of(cells), "hash": by_name, "hits": sums[f"n{REQUESTS}"]}
    rows, ranks = rank_entries(entries, RANKS)
    hits = pa.array(sums[f"n{REQUESTS}"][rows])
    columns = [
        pa.array(minute_of(cells)[rows] * 60 * MICROS, _TIME),
        pa.array([ALL] * len(rows), pa.string()),
        pa.array([SERVER_KIND] * len(rows), pa.string()),
        pa.array(ranks.astype(np.int32)),
        pa.array([known[row] for row in rows.tolist()], pa.string()),
        hits,
        hits,
        pa.array(sums[f"n{BYTES}"][rows]),
    ]
    return pa.Table.from_arrays(columns, schema=TOP_ROWS)


def _move_to_everyone(minutes: Minutes) -> Minutes:
    def moved(columns: Columns) -> Columns:
        return {**columns, "cell": cell_of(minute_of(columns["cell"]), _EVERYONE)}

    return Minutes(
        moved(minutes.seconds),
        moved(minutes.latencies),
        moved(minutes.clients),
        [(cell // SERVERS * SERVERS + _EVERYONE, registers) for cell, registers in minutes.sketches],
        moved(minutes.tops),
        minutes.texts,
        moved(minutes.floors),
    )


def _find_quantiles(
    latencies: Columns, cells: NDArray[np.int64]
) -> tuple[list[list[int | None]], NDArray[np.int64]]:
    begins = np.searchsorted(latencies["cell"], cells)
    ends = np.searchsorted(latencies["cell"], cells + 1)
    found: list[list[int | None]] = [[], [], []]
    totals = np.zeros(len(cells), np.int64)
    for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        shares: list[int | None] = [None, None, None]
        if end > begin:
            hits = latencies["hits"][begin:end]
            shares = [*find_quantiles(latencies["bucket"][begin:end], hits, (0.50, 0.95, 0.99))]
            totals[row] = hits.sum()
        for share, column in zip(shares, found, strict=True):
            column.append(share)
    return found, totals


def _count_clients(minutes: Minutes, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = np.searchsorted(minutes.clients["cell"], cells + 1) - np.searchsorted(
        minutes.clients["cell"], cells
    )
    dense: Mapping[int, Registers] = dict(minutes.sketches)
    for row, cell in enumerate(cells.tolist()):
        if cell in dense:
            counts[row] = round(estimate_distinct(dense[cell]))
    return np.asarray(counts, np.int64)


def _take_names(names: Sequence[str], cells: NDArray[np.int64]) -> pa.Array:
    numbers = cells % SERVERS
    if not len(names) or (numbers == _EVERYONE).any():
        names = [*names, *[""] * (SERVERS - 1 - len(names)), ALL]
    return pa.array(list(names), pa.string()).take(pa.array(numbers))


assert STATUS + 5 == ERRORS, "the kept counts are the first columns of the kernel's"
