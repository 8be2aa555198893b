"""The state of open minutes in numbered pieces, each small enough for one SQL row.

A minute has 256 piece numbers, which are used again 4,096 minutes later. Its servers are put into pieces of
less than 1 MiB. Rule: a piece is complete for its servers and holds their names, because server numbers are
valid for one batch only. One server's tables cannot be larger than a piece: their lengths and the lengths of
their texts are bounded.

>>> piece_numbers(0)[:2], piece_numbers(4097)[:1]
(range(32, 34), range(288, 289))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.minute_tables import SERVERS, Minutes, cell_of, choose_cells
from penstock.apps.accesslog.monitoring.packed_tables import (
    Columns,
    pack_tables,
    pick,
    to_columns,
    unpack_tables,
)

_FIRST, _PIECES = 32, 256
_MOST_BYTES = 900_000


def piece_numbers(minute: int) -> range:
    first = _FIRST + minute % 4096 * _PIECES
    return range(first, first + _PIECES)


def _estimate_bytes(minutes: Minutes, cells: NDArray[np.int64]) -> list[int]:
    """Return an estimate of the bytes that each cell takes before compression."""
    sizes = np.full(len(cells), 4096, np.int64)
    texts = pc.binary_length(minutes.texts).to_numpy(zero_copy_only=False)
    for columns, each in (
        (minutes.seconds["cell"], 80),
        (minutes.latencies["cell"], 24),
        (minutes.clients["cell"], 16),
        (np.array([cell for cell, _ in minutes.sketches], np.int64), 33_000),
    ):
        np.add.at(sizes, np.searchsorted(cells, columns), each)
    np.add.at(sizes, np.searchsorted(cells, minutes.tops["cell"]), 40 + texts)
    return [int(size) for size in sizes]


def rekey(columns: Columns, late: NDArray[np.bool_], key: NDArray[np.int64]) -> Columns:
    kept = pick(columns, ~late[columns["cell"]])
    return {**kept, "cell": key[kept["cell"]]}


def read_sketches(
    table: pa.Table, late: NDArray[np.bool_], key: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.uint8]]]:
    rows = zip(table["cell"].to_pylist(), table["registers"].to_pylist(), strict=True)
    return [(int(key[cell]), np.frombuffer(found, np.uint8)) for cell, found in rows if not late[cell]]


def pack_cells(minutes: Minutes, cells: NDArray[np.int64], names: Sequence[str]) -> list[bytes]:
    """Return the tables of the cells of one minute, in as few pieces as possible."""
    groups: list[list[int]] = [[]]
    filled = 0
    for cell, size in zip(cells.tolist(), _estimate_bytes(minutes, cells), strict=True):
        if groups[-1] and filled + size > _MOST_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(cell)
        filled += size
    return [_pack_group(choose_cells(minutes, np.array(group)), group, names) for group in groups]


def unpack_cells(piece: bytes, minute: int, number: Callable[[str], int]) -> Minutes:
    """Return the tables in a piece; `number` gives a server its number in this batch."""
    _, tables = unpack_tables(piece)
    key = cell_of(minute, np.array([number(name) for name in tables["servers"]["name"].to_pylist()]))
    none = np.zeros(len(key), np.bool_)
    seconds = rekey(to_columns(tables["seconds"]), none, key)
    return Minutes(
        {**seconds, "fresh": np.zeros(len(seconds["second"]), np.int64)},
        rekey(to_columns(tables["latencies"]), none, key),
        rekey(to_columns(tables["clients"]), none, key),
        read_sketches(tables["sketches"], none, key),
        rekey(to_columns(tables["tops"], "text"), none, key),
        tables["tops"]["text"].combine_chunks(),
        rekey(to_columns(tables["floors"]), none, key),
    )


def _pack_group(minutes: Minutes, cells: list[int], names: Sequence[str]) -> bytes:
    number = np.zeros(SERVERS, np.int16)
    number[[cell % SERVERS for cell in cells]] = np.arange(len(cells))

    def numbered(columns: Columns) -> dict[str, Any]:
        found = {name: of for name, of in columns.items() if name != "fresh"}
        return {**found, "cell": number[columns["cell"] % SERVERS]}

    sketches = minutes.sketches
    tables = {
        "servers": pa.table({"name": [names[cell % SERVERS] for cell in cells]}),
        "seconds": pa.table(numbered(minutes.seconds)),
        "latencies": pa.table(numbered(minutes.latencies)),
        "clients": pa.table(numbered(minutes.clients)),
        "sketches": pa.table(
            {
                "cell": pa.array([int(number[cell % SERVERS]) for cell, _ in sketches], pa.int16()),
                "registers": pa.array([of.tobytes() for _, of in sketches], pa.binary()),
            }
        ),
        "tops": pa.table({**numbered(minutes.tops), "text": minutes.texts}),
        "floors": pa.table(numbered(minutes.floors)),
    }
    return pack_tables(tables, {})
