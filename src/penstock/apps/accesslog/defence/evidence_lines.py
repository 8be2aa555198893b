"""Evidence: the lines that caused a decision, as far as they are kept.

Rules. A lane remembers the last lines that a rule has hit (with the request), and the last ones in which a
client showed a new agent (with the agent). It keeps a fixed number of them for all its clients together, in
the order of the fold, so that the evidence is a function of the log, as the decision is. Of all other lines
only numbers are kept. The line that decided is shown with its agent, and with its request if a rule has hit
it. Why not all requests: a text in each event would double what goes through a shuffle.

Agents travel as hashes in the events, and once for each batch and lane as texts beside them. A lane keeps the
texts that waiting events need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.evidence_lines_kernel import find_last
from penstock.apps.accesslog.events import line_events_kernel
from penstock.apps.accesslog.events.line_events import AGENTS
from penstock.apps.accesslog.events.subjects import NET, PRINT

#: How many lines are shown with a decision.
MOST_EVIDENCE = 5
#: How many hits a lane remembers as evidence, and how many new agents.
HITS_KEPT, AGENTS_KEPT = 1024, 256
EVIDENCE = pa.schema(
    [
        ("kind", pa.int8()),
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("time", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("text", pa.binary()),
    ]
)
_ROW_COLUMNS = ["kind", "high", "low", "group", "time", "partition", "offset"]

ShownLine = dict[str, Any]
_Row = tuple[int, int, int, bytes | None]


class Witnesses:
    """The lines kept as evidence, each with its subject: those of earlier batches, then those of this one."""

    def __init__(self, before: pa.Table, kept: int, places: NDArray[np.int64], rows: pa.Table) -> None:
        """Take the rows of this batch, with their `places` in the fold, and those kept `before`."""
        self._places, self._kept, self._before = places, kept, before.num_rows
        self._known = pa.concat_tables([before, rows]).combine_chunks()
        self._keys = tuple(self._known.column(name).to_numpy() for name in ("kind", "high", "low"))

    @property
    def kept(self) -> pa.Table:
        """Return the rows to pass to the next batch as `before`."""
        return self._known.slice(max(self._known.num_rows - self._kept, 0))

    def find(
        self,
        events: NDArray[np.int64],
        kinds: NDArray[np.int64],
        highs: NDArray[np.uint64],
        lows: NDArray[np.uint64],
    ) -> list[list[_Row]]:
        """Return each subject's last rows up to its event: partition, offset, time and text."""
        untils = self._before + np.searchsorted(self._places, events, "right").astype(np.int64)
        places = np.empty((events.size, MOST_EVIDENCE), np.int64)
        counts = np.empty(events.size, np.int64)
        find_last(*self._keys, untils, self._kept, kinds, highs, lows, places, counts)
        chosen = places[np.arange(MOST_EVIDENCE) >= MOST_EVIDENCE - counts[:, np.newaxis]]
        columns = self._known.select(["partition", "offset", "time", "text"]).take(pa.array(chosen))
        rows = list(zip(*(column.to_pylist() for column in columns.columns), strict=True))
        ends = np.cumsum(counts).tolist()
        return [rows[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def pick_rows(queue: pa.Table, chosen: NDArray[np.int64], texts: pa.Array, *, is_group: bool) -> pa.Table:
    """Return these events of the queue as rows of `EVIDENCE`, each with its subject."""
    rows = queue.select(_ROW_COLUMNS).take(pa.array(chosen))
    kinds, high, low = (rows.column(name).to_numpy() for name in ("kind", "high", "low"))
    if is_group:
        high, low = high.copy(), low.copy()
        line_events_kernel.cut_nets(high, low)
        low = np.where(kinds == PRINT, rows.column("group").to_numpy(), low)
        high = np.where(kinds == NET, high, np.uint64(0))
    columns = [pa.array(kinds), pa.array(high), pa.array(low)]
    columns += [rows.column(name).combine_chunks() for name in ("time", "partition", "offset")]
    return pa.Table.from_arrays([*columns, texts], schema=EVIDENCE)


def name_agents(names: pa.Table, hashes: NDArray[np.uint32]) -> pa.Array:
    """Return the texts of agents; null for one without a text."""
    if not hashes.size:
        return pa.nulls(0, pa.binary())
    known = names.column("agent").to_numpy()
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known, hashes, sorter=order)
    places = order[np.minimum(at, known.size - 1)] if known.size else np.zeros(hashes.size, np.int64)
    is_known = known[places] == hashes if known.size else np.zeros(hashes.size, bool)
    return names.column("text").combine_chunks().take(pa.array(places, pa.int64(), mask=~is_known))


def select_agents(names: pa.Table, waiting: NDArray[np.uint32]) -> pa.Table:
    """Return the agents' texts that waiting events need, each once."""
    if not waiting.size or not names.num_rows:
        return AGENTS.empty_table()
    known, firsts = np.unique(names.column("agent").to_numpy(), return_index=True)
    return names.take(pa.array(firsts[np.isin(known, waiting)])).combine_chunks()


def show_line(
    partition: int, offset: int, time: int, request: bytes | None, agent: bytes | None
) -> ShownLine:
    """Return a line of the evidence; without an agent if none is known."""
    line: ShownLine = {"partition": partition, "offset": offset, "time": time, "request": _show(request)}
    return line if agent is None else {**line, "agent": _show(agent)}


def _show(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "backslashreplace")
