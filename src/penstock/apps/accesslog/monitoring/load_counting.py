"""Load monitoring, first half: what one batch of lines adds, as a small packed partial.

`count_load` runs in the worker that fetched the lines; `merge` (in `load_merging`, offered here too) joins
partials and the state of earlier batches.

Rule: where a line is counted depends only on its partition's log, so any split into batches gives the same
numbers. A line is counted in the second it belongs to, or as too late if its server's clock in its partition
is five minutes past the end of its minute. A clock is the highest time that two lines in a row have reached.
`line_stage.cap_times` lets no line be more than a minute ahead, which keeps minutes open. But a second is
judged thirty times sooner, so a single line from the future must move nothing here. Why both: a server whose
clock is wrong writes more than two lines.

Why not the time of arrival: after an outage the backlog would look like a flood. Why not one clock for all
servers: a server whose clock is an hour ahead would make the lines of all others late.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import (
    COUNTS,
    NEVER,
    CellTable,
    CountedLines,
    SecondTable,
    count_latencies,
    count_lines,
    count_texts,
    hash_numbered,
)
from penstock.apps.accesslog.monitoring.load_merging import Merged, MonitorSettings, merge
from penstock.apps.accesslog.monitoring.minute_tables import ALL
from penstock.apps.accesslog.monitoring.packed_tables import pack_tables
from penstock.apps.accesslog.monitoring.sketches import EXACT_LIMIT, make_registers
from penstock.apps.accesslog.monitoring.top_lists import FIELDS, choose_largest, cut_texts
from penstock.apps.accesslog.texts.text_grouping import GroupedFields, check_grouped, group, group_lines

if TYPE_CHECKING:
    from penstock.apps.accesslog.parsing.line_parser import Lines

__all__ = ["ALL", "Merged", "MonitorSettings", "count_load", "merge"]

#: A longer server name is cut.
_NAME_BYTES = 128


def count_load(
    lines: Lines,
    *,
    servers: pa.Array | pa.ChunkedArray | None = None,
    partition: str | int = 0,
    first_offset: int = 0,
    settings: MonitorSettings | None = None,
    grouped: GroupedFields | None = None,
) -> bytes:
    """Return what these lines add to the load, as a packed partial.

    `servers` has a name or null for each parsed line, or for each row that was given to the parser (the
    record's header). A line without one has its virtual host as its server, or "" if that is missing, too.
    `partition` names the log the lines are from and `first_offset` says where in it: `merge` takes partials
    of one partition in that order. Pass `grouped` if the lines' texts are numbered already.
    """
    settings = settings or MonitorSettings()
    names, numbers = _name_servers(lines, servers)
    total = len(lines.time_us)
    clocks = np.full((len(names) + 1, 3), NEVER, np.int64)
    late = np.zeros((len(names) + 1, 2), np.int64)
    seconds, cells, line_cells = _count_lines(lines, numbers, settings, clocks, late)
    tables = {
        "servers": pa.table({"name": pa.array([*names, ALL], pa.string())}),
        "clocks": pa.table(
            {
                "first": clocks[:, 0],
                "last": clocks[:, 1],
                "clock": clocks[:, 2],
                "late": late[:, 0],
                "late_bytes": late[:, 1],
            }
        ),
        "cells": cells,
        "seconds": seconds,
        "latencies": _count_latencies(lines, line_cells),
    }
    grouped = group_lines(lines, FIELDS) if grouped is None else check_grouped(lines, grouped)
    tables |= _count_texts(lines, grouped, line_cells, cells.num_rows)
    head = {"partition": str(partition), "first_offset": int(first_offset), "lines": total}
    return pack_tables(tables, head)


def _name_servers(
    lines: Lines, servers: pa.Array | pa.ChunkedArray | None
) -> tuple[list[str], NDArray[np.int32]]:
    """Return the names of the servers, and each line's number among them."""
    total = len(lines.time_us)
    names: list[str] = []
    numbers = np.zeros(total, np.int32)
    missing = np.ones(total, np.bool_)
    if servers is not None:
        if isinstance(servers, pa.ChunkedArray):
            servers = servers.combine_chunks()
        kind = servers.type
        if not pa.types.is_dictionary(kind):
            servers = servers.dictionary_encode()
        codes = servers.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        numbers = codes if len(codes) == total else codes[lines.rows]
        names = [_clean_name(each) for each in servers.dictionary.to_pylist()]
        missing = numbers < 0
    if missing.any():
        found, ours = _number_vhosts(lines)
        numbers = np.where(missing, ours + np.int32(len(names)), numbers).astype(np.int32)
        names += found
    if not total:
        return [""], numbers
    # Names that are equal in both places, or after cleaning, are one server. Servers are listed in the order
    # of their first lines, and only if they have one: `merge` has a limited number of places for servers, and
    # which servers get them must not depend on where a batch ends.
    firsts = np.full(len(names), total)
    firsts[numbers[::-1]] = np.arange(total)[::-1]
    used = [number for number in np.argsort(firsts, kind="stable").tolist() if firsts[number] < total]
    known = {name: number for number, name in enumerate(dict.fromkeys(names[each] for each in used))}
    renumber = np.array([known.get(name, 0) for name in names], np.int32)
    return list(known), renumber[numbers]


def _number_vhosts(lines: Lines) -> tuple[list[str], NDArray[np.int32]]:
    total = len(lines.time_us)
    if not (lines.lengths["vhost"] > 0).any():
        return [""], np.zeros(total, np.int32)
    hosts = group(lines, "vhost")
    texts = [
        lines.data[start : start + size].tobytes()
        for start, size in zip(hosts.starts.tolist(), hosts.lengths.tolist(), strict=True)
    ]
    names, numbers = [_clean_name(text) for text in texts], hosts.numbers
    if (numbers < 0).any():
        numbers = np.where(numbers < 0, np.int32(len(names)), numbers)
        names.append("")
    return names, numbers


def _clean_name(name: str | bytes) -> str:
    text = name[:_NAME_BYTES].decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    text = text[:_NAME_BYTES].replace("\0", "\\x00")
    return f"({text})" if text == ALL else text


def _count_lines(
    lines: Lines,
    numbers: NDArray[np.int32],
    settings: MonitorSettings,
    clocks: NDArray[np.int64],
    late: NDArray[np.int64],
) -> tuple[pa.Table, pa.Table, NDArray[np.int32]]:
    total = len(lines.time_us)
    # The seconds of a batch are few; room for as many as there are lines costs nothing until it is used.
    seconds = SecondTable(
        seconds=np.empty(total, np.uint64),
        servers=np.empty(total, np.int32),
        cells=np.empty(total, np.int32),
        counts=np.empty((total, COUNTS), np.int64),
        slots=_make_slots(total),
    )
    cells = CellTable(np.empty(total, np.uint64), np.empty(total, np.int32), _make_slots(total))
    line_cells = np.empty(total, np.int32)
    counted = CountedLines(lines.time_us, lines.status, lines.size, lines.latency_us, numbers)
    second_count, cell_count = count_lines(
        *(counted, settings.grace_us, settings.lateness_us, _draw_salt(), clocks, late),
        *(seconds, cells, line_cells),
    )
    columns = {"second": seconds.seconds[:second_count].view(np.int64), "cell": seconds.cells[:second_count]}
    columns |= {f"n{number}": seconds.counts[:second_count, number].copy() for number in range(COUNTS)}
    found = pa.table(
        {"minute": cells.minutes[:cell_count].view(np.int64), "server": cells.servers[:cell_count]}
    )
    return pa.table(columns), found, line_cells


def _count_latencies(lines: Lines, line_cells: NDArray[np.int32]) -> pa.Table:
    total = len(line_cells)
    buckets, cells, hits = np.empty(total, np.uint64), np.empty(total, np.int32), np.empty(total, np.int64)
    found = 0
    if (lines.latency_us >= 0).any():
        found = count_latencies(
            lines.latency_us, line_cells, _draw_salt(), _make_slots(total), buckets, cells, hits
        )
    return pa.table({"cell": cells[:found], "bucket": buckets[:found].astype(np.int32), "hits": hits[:found]})


def _count_texts(
    lines: Lines, grouped: GroupedFields, line_cells: NDArray[np.int32], cell_count: int
) -> dict[str, pa.Table]:
    """Return the tables of texts: tops with what they have missed, and clients as hashes or sketches."""
    total = len(line_cells)
    slots, hashes = _make_slots(total), np.empty(total, np.uint64)
    cells, texts = np.empty(total, np.int32), np.empty(total, np.int32)
    hits, sums = np.empty(total, np.int64), np.empty(total, np.int64)
    tops, floors, tables = [], [], {}
    for kind, field in enumerate(FIELDS):
        each = grouped[field]
        keys, ends = np.empty(len(each) + 1, np.uint64), np.zeros(len(each) + 1, np.int32)
        hash_numbered(lines.data, each.starts, each.lengths, field == "target", keys, ends)
        found = count_texts(
            *(each.numbers, keys, lines.size, line_cells, _draw_salt(), slots, hashes, cells, hits, sums),
            texts,
        )
        if field == "client":
            tables = _sketch_clients(cells[:found], hashes[:found], cell_count)
        keep, missed = choose_largest(cells[:found], hits[:found], cell_count)
        kept = np.flatnonzero(keep)
        starts = np.append(each.starts, np.int32(0))
        tops.append(
            pa.table(
                {
                    "cell": cells[kept],
                    "kind": np.full(len(kept), kind, np.int8),
                    "hash": hashes[kept],
                    "hits": hits[kept],
                    "bytes": sums[kept],
                    "credit": missed[cells[kept]],
                    "text": cut_texts(lines.data, starts[texts[kept]], (ends - starts)[texts[kept]]),
                }
            )
        )
        short = np.flatnonzero(missed)
        floors.append(
            pa.table(
                {
                    "cell": short.astype(np.int32),
                    "kind": np.full(len(short), kind, np.int8),
                    "missed": missed[short],
                }
            )
        )
    return tables | {
        "tops": pa.concat_tables(tops).combine_chunks(),
        "floors": pa.concat_tables(floors).combine_chunks(),
    }


def _sketch_clients(
    cells: NDArray[np.int32], hashes: NDArray[np.uint64], cell_count: int
) -> dict[str, pa.Table]:
    """Return the clients of each cell: their hashes while they are few, else a sketch of them."""
    many = np.flatnonzero(np.bincount(cells, minlength=cell_count) > EXACT_LIMIT)
    sketches = [make_registers(hashes[cells == cell]).tobytes() for cell in many.tolist()]
    few = np.flatnonzero(~np.isin(cells, many))  # these copy rows, because the arrays are filled again
    return {
        "clients": pa.table({"cell": cells[few], "hash": hashes[few]}),
        "sketches": pa.table({"cell": many.astype(np.int32), "registers": pa.array(sketches, pa.binary())}),
    }


def _make_slots(total: int) -> NDArray[np.int32]:
    """Return slots for a table of at most this many entries: always more than twice as many as used."""
    return np.empty(max(16, 1 << (2 * total).bit_length()), np.int32)


def _draw_salt() -> Any:
    return np.uint64(secrets.randbits(64) | 1)
