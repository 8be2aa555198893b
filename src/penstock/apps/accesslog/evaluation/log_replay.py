"""Replays whole log files through the engine, as fast as they can be read.

Rules. Each file is a partition, and the one whose clock is furthest behind is read next. So several files,
rotated or from several servers, are folded in the order of their times while only one block of each waits.
The decisions are those of a running pipeline. The index of a request is counted here, because the pipeline
forgets clients that were quiet. Lines of one file count in their order, those of several files by the clocks
of the files. The few numbers that this needs of each line go into a temporary file, not into memory. Local
addresses are spared as in a pipeline. For logs that were made with them, set `block_private`.

    for row in replay([Path("access.log.1.gz"), Path("access.log")], settings).rows: ...
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.evaluation.offline_defence import Engine
from penstock.apps.accesslog.events import line_events_kernel as k
from penstock.apps.accesslog.events.log_clocks import NEVER
from penstock.apps.accesslog.first_look.log_blocks import BLOCK_BYTES, look_first, open_log, read_blocks
from penstock.apps.accesslog.parsing.line_parser import Lines, Parser, make_parser

#: How many files are looked at first. One block of each is in memory then.
_LOOKED_AT = 8
#: `reached` is how far the file's clock had come with this line: never less than with the one before.
_LINE = np.dtype(
    [("high", "u8"), ("low", "u8"), ("time", "i8"), ("reached", "i8"), ("partition", "i4"), ("offset", "i8")]
)
_READ_LINES = 1 << 20


@dataclass(frozen=True, slots=True)
class Replayed:
    """Decisions in order, each with its place among the client's lines, and what was counted."""

    rows: list[dict[str, Any]]
    counters: dict[str, int]


def replay(
    paths: Sequence[Path | str],
    settings: DefenceSettings,
    *,
    log_format: str = "auto",
    block_bytes: int = BLOCK_BYTES,
    look: Callable[[pa.Array], object] | None = None,
    resettle: Callable[[], DefenceSettings] | None = None,
) -> Replayed:
    """Feed whole files (`-` is standard input) through the engine and return what it decided.

    `look` gets lines of the first files before anything is decided. An error that it raises ends the replay.
    `resettle` returns the settings to use after the look.
    """
    parser = make_parser(log_format, trusted_proxies=settings.trusted_proxies)
    with ExitStack() as stack:
        ledger = _Ledger(stack.enter_context(tempfile.TemporaryFile()), settings.lateness_us)
        blocks = {
            n: read_blocks(stack.enter_context(open_log(path)), block_bytes) for n, path in enumerate(paths)
        }
        if look is not None:
            blocks |= look_first({n: blocks[n] for n in range(min(len(paths), _LOOKED_AT))}, look)
        settings = settings if resettle is None else resettle()
        engine = Engine(settings, partitions=range(len(paths)))
        positions = dict.fromkeys(blocks, 0)
        made = []
        while blocks:
            number = min(blocks, key=lambda n: (engine.clocks.partitions[n].max_us, n))
            values = next(blocks[number], None)
            if values is None:
                del blocks[number]
                _mark_ended(engine, number)
                continue
            server = name_server(paths[number])
            made.append(_feed(engine, parser, ledger, number, positions[number], values, server))
            positions[number] += len(values)
        made.append(engine.finish())
        decisions = pa.concat_tables(made).to_pylist()
        decisions.sort(
            key=lambda row: (row["decided_at"], row["kind"], row["partition"], row["offset"], row["client"])
        )
        return Replayed(ledger.index(decisions), dict(engine.counters))


def name_server(path: Path | str) -> str:
    """Return the server of a log, its name up to the first dot: web1 for web1.log and web1.log.2.gz.

    Lines of one second are folded server by server, in the same order as in a pipeline, whatever the order of
    the files. So the same rule decides.
    """
    return Path(path).name.partition(".")[0]


def _feed(
    engine: Engine,
    parser: Parser,
    ledger: _Ledger,
    number: int,
    position: int,
    values: pa.Array,
    server: str,
) -> pa.Table:
    lines = parser.parse(values)
    engine.counters.update(lines=len(lines), bad=int(lines.bad_rows.size))
    offsets = np.arange(position, position + len(values), dtype=np.int64)
    ledger.note(lines, number, offsets[lines.rows])
    servers = pa.repeat(pa.scalar(server.encode(), pa.binary()), len(values))
    return engine.feed_lines(lines, number, offsets, servers)


def _mark_ended(engine: Engine, number: int) -> None:
    """Mark the partition of a file that has ended as idle, so that it holds nothing back."""
    clocks = engine.clocks
    ended = replace(clocks.partitions[number], is_idle=True)
    engine.clocks = replace(clocks, partitions={**clocks.partitions, number: ended})


class _Ledger:
    """Keeps in a file who sent each line and when, to find the place of a line among its client's lines."""

    def __init__(self, file: IO[bytes], lateness_us: int) -> None:
        self._file = file
        self._lateness_us = lateness_us
        self._maxima: dict[int, int] = {}

    def note(self, lines: Lines, partition: int, offsets: NDArray[np.int64]) -> None:
        count = len(lines)
        if not count:
            return
        rows = np.zeros(count, _LINE)
        high, low, times = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.int64)
        present, late = np.empty(count, np.int8), np.empty(count, np.int64)
        k.read_clients(lines.data, lines.starts["client"], lines.lengths["client"], high, low, present)
        most, _ = k.follow_clock(lines.time_us, self._lateness_us, times, late)
        before = self._maxima.get(partition, NEVER)
        self._maxima[partition] = max(before, int(most))
        rows["high"], rows["low"], rows["partition"], rows["offset"] = high, low, partition, offsets
        rows["time"] = np.maximum(times, before - self._lateness_us)
        rows["reached"] = np.maximum(np.maximum.accumulate(lines.time_us), before)
        self._file.write(rows.tobytes())

    def index(self, decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the decisions with `request_index`: how many lines the client had sent by then."""
        lines = self._lines_of({row["client"] for row in decisions})
        indexed = []
        for row in decisions:
            rows = lines[row["client"]]
            is_it = (rows["partition"] == row["partition"]) & (rows["offset"] == row["offset"])
            if is_it.any():
                index = int(is_it.argmax()) + 1
            else:
                # The line of another client caused this decision.
                index = max(int((rows["time"] <= row["decided_at"]).sum()), 1)
            indexed.append({**row, "request_index": index})
        return indexed

    def _lines_of(self, clients: set[str]) -> dict[str, NDArray[Any]]:
        names = sorted(clients)
        # A client that is a network is read from its first address.
        column = pa.array([name.partition("/")[0].encode() for name in names], pa.binary())
        offsets = np.frombuffer(column.buffers()[1], np.int32)[: len(names) + 1]
        data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
        high, low = np.empty(len(names), np.uint64), np.empty(len(names), np.uint64)
        present = np.empty(len(names), np.int8)
        k.read_clients(data, offsets[:-1], np.diff(offsets), high, low, present)
        wanted = np.unique(high ^ low)
        self._file.seek(0)
        found = []
        while data_read := self._file.read(_READ_LINES * _LINE.itemsize):
            rows = np.frombuffer(data_read, _LINE)
            found.append(rows[np.isin(rows["high"] ^ rows["low"], wanted)])
        rows = np.concatenate(found) if found else np.zeros(0, _LINE)
        order = ("offset", "partition", "reached", "low", "high")
        rows = rows[np.lexsort([rows[name] for name in order])]
        if not rows.size:
            return dict.fromkeys(names, rows)
        changes = (np.diff(rows["high"]) != 0) | (np.diff(rows["low"]) != 0)
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.size]
        spans = {
            (int(rows["high"][begin]), int(rows["low"][begin])): rows[begin:end]
            for begin, end in pairwise(bounds)
        }
        keys = zip(high.tolist(), low.tolist(), strict=True)
        return {name: spans.get(key, rows[:0]) for name, key in zip(names, keys, strict=True)}
