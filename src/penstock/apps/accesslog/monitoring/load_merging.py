"""Load monitoring, second half: partials and state become rows for SQL and the next state.

The rows of seconds and minutes are complete and replace the stored ones (upsert), so a batch that is repeated
changes nothing. Rules: every line is counted, in its second or as too late. Rows depend only on the logs,
however they were split into batches. What a minute needs stays in the state until its server's clocks are
past it by `grace`; then it is closed, and its rows are final.

A minute is closed when all partitions that carry its server are past it, or when the pipeline's watermark and
at least one of their clocks are (the others are idle), or when the clock of all servers together is fifteen
minutes further. State is in numbered pieces of at most 1 MiB; a piece that did not change keeps its bytes.
The state is bounded: 256 servers (the rest is "(other)"), 180 open minutes and 64 MiB. Beyond that, the
oldest minutes close early.

Why not add up in SQL: percentiles, distinct clients and top lists of parts cannot be added.

>>> merged = merge([], None)
>>> merged.seconds.num_rows, sorted(merged.state)
(0, [0, 1])
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import (
    COUNTS,
    LATENCIES,
    LATENCY_SQUARES,
    LATENCY_SUM,
    MICROS,
    MINUTE_MICROS,
    NEVER,
    ON_TIME,
    ON_TIME_ERRORS,
)
from penstock.apps.accesslog.monitoring.minute_tables import (
    ALL,
    KEPT,
    MINUTE_ROWS,
    SECOND_ROWS,
    SERVERS,
    TOP_ROWS,
    Minutes,
    cell_of,
    choose_cells,
    make_minute_rows,
    make_second_rows,
    make_top_rows,
    minute_of,
    unite_minutes,
    with_everyone,
)
from penstock.apps.accesslog.monitoring.packed_tables import (
    Columns,
    pack_tables,
    pick,
    to_columns,
    unpack_tables,
)
from penstock.apps.accesslog.monitoring.spike_detection import AlertChange, AnomalyLimits, Watch
from penstock.apps.accesslog.monitoring.state_rows import (
    pack_cells,
    piece_numbers,
    read_sketches,
    rekey,
    unpack_cells,
)
from penstock.apps.accesslog.monitoring.top_lists import ROOM

OTHER = "(other)"
_MOST_SERVERS = 256
_MOST_CLOCKS = 16_384
_MOST_MINUTES = 180
#: Seconds of servers that wait to be judged while a partition holds the clock back.
_MOST_PENDING = 8_192
_MOST_BYTES = 64 << 20
#: A server that has been silent for this long no longer keeps minutes open.
_DEAD_US = 900 * MICROS
_FORGOTTEN_US = 86_400 * MICROS
HEAD_PIECE, _WATCH_PIECE = 0, 1
#: Series in one piece: each takes 7 KiB.
_WATCH_ROWS = 64
_TIME = pa.timestamp("us", tz="UTC")

ALERT_ROWS = pa.schema(
    [
        ("alert_id", pa.string()),
        ("kind", pa.string()),
        ("server", pa.string()),
        ("opened_at", _TIME),
        ("closed_at", _TIME),
        ("value", pa.float64()),
        ("expected", pa.float64()),
        ("peak", pa.float64()),
        ("score", pa.float64()),
        ("new_level", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """How long to wait for lines, in event time."""

    grace_s: int = 300  #: a minute stays open for this long
    lateness_s: int = 2  #: a second is judged this long after its end
    limits: AnomalyLimits = field(default_factory=AnomalyLimits)

    @property
    def grace_us(self) -> int:
        return self.grace_s * MICROS

    @property
    def lateness_us(self) -> int:
        return self.lateness_s * MICROS


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows to upsert by the key that is named at each table, and the state for the next call."""

    seconds: pa.Table  # key: second, server
    minutes: pa.Table  # key: minute, server
    tops: pa.Table  # key: minute, server, kind, rank
    alerts: pa.Table  # key: alert_id
    state: dict[int, bytes]


def merge(
    partials: Sequence[bytes],
    state: Mapping[int, bytes] | None = None,
    watermark_us: int | None = None,
    *,
    settings: MonitorSettings | None = None,
) -> Merged:
    """Merge partials, in any order, with the state of earlier calls; return rows and the next state."""
    settings = settings or MonitorSettings()
    before = dict(state or {})
    books = _Books.read(before, settings)
    opened = sorted(
        (unpack_tables(each) for each in partials),
        key=lambda each: (each[0]["partition"], each[0]["first_offset"]),
    )
    parts = [each for each in (books.admit(head, tables) for head, tables in opened) if each is not None]
    books.lines += sum(int(head["lines"]) for head, _ in opened)
    touched = sorted({int(each) for part in parts for each in np.unique(minute_of(part.seconds["cell"]))})
    parts += [books.read_minute(before, minute) for minute in touched if minute in books.pieces]
    seconds, minutes, tops = (schema.empty_table() for schema in (SECOND_ROWS, MINUTE_ROWS, TOP_ROWS))
    united = None
    if parts:
        united = unite_minutes(parts, max(64, min(ROOM, 32 * ROOM // len(books.servers))))
        everything = with_everyone(united)
        seconds = make_second_rows(united, books.servers)
        minutes = make_minute_rows(everything, books.servers)
        tops = make_top_rows(everything, books.servers)
    alerts = books.judge(watermark_us)
    books.close(watermark_us)
    after = books.write(before, united, touched)
    return Merged(seconds, minutes, tops, _make_alert_rows(alerts), after)


def read_too_late(head_piece: bytes) -> int:
    """Return how many lines were too late since the beginning, from the state's piece `HEAD_PIECE`."""
    return int(unpack_tables(head_piece)[0]["too_late"])


@dataclass(slots=True)
class _Books:
    """The state while a batch is merged."""

    settings: MonitorSettings
    watch: Watch
    servers: list[str] = field(default_factory=list)
    clocks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # last time, clock
    closed: dict[str, int] = field(default_factory=dict)  # minutes before this one are closed
    pieces: dict[int, list[str]] = field(default_factory=dict)  # open minute -> servers in its pieces
    lines: int = 0
    too_late: int = 0

    @classmethod
    def read(cls, state: Mapping[int, bytes], settings: MonitorSettings) -> _Books:
        if HEAD_PIECE not in state:
            return cls(settings, Watch.begin(settings.limits))
        head, tables = unpack_tables(state[HEAD_PIECE])
        known = [unpack_tables(state[_WATCH_PIECE + at])[1] for at in range(head["watch_pieces"])]
        watched = dict(known[0])
        watched["series"] = pa.concat_tables([each["series"] for each in known])
        rows = tables["clocks"].to_pydict()
        keys = zip(rows["partition"], rows["server"], strict=True)
        pieces: dict[int, list[str]] = {}
        for minute, name in zip(*tables["minutes"].to_pydict().values(), strict=True):
            pieces.setdefault(minute, []).append(name)
        return cls(
            settings,
            Watch.from_tables(watched, settings.limits),
            tables["servers"]["name"].to_pylist(),
            dict(zip(keys, zip(rows["last"], rows["clock"], strict=True), strict=True)),
            dict(zip(*tables["closed"].to_pydict().values(), strict=True)),
            pieces,
            head["lines"],
            head["too_late"],
        )

    # --- lines in ------------------------------------------------------------------------------------------

    def admit(self, head: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Minutes | None:
        """Return the part of a partial that is counted: no lines that earlier clocks make too late."""
        partition, names = head["partition"], tables["servers"]["name"].to_pylist()
        numbers, begins = self._update_clocks(partition, names, to_columns(tables["clocks"]))
        self.too_late += int(tables["clocks"]["late"].to_numpy().sum())
        cells = to_columns(tables["cells"])
        minutes, servers = cells["minute"], cells["server"]
        closed = np.array([self.closed.get(name, NEVER) for name in self.servers] or [NEVER], np.int64)
        late = begins[servers] >= (minutes + 1) * MINUTE_MICROS + self.settings.grace_us
        late |= minutes < closed[numbers[servers]]
        # A new server may bring a minute that is closed for all servers: those sums cannot be made again.
        late |= minutes < self.closed.get(ALL, NEVER)
        seconds = to_columns(tables["seconds"])
        refused = late[seconds["cell"]]
        self.too_late += int(seconds["n0"][refused].sum())
        seconds = pick(seconds, ~refused)
        if not len(seconds["second"]):
            return None
        self._queue_for_watch(seconds, numbers[servers][seconds["cell"]], int(begins[-1]))
        key = cell_of(minutes, numbers[servers])
        texts = tables["tops"]["text"].combine_chunks()
        counted = {f"n{number}": seconds[f"n{number}"] for number in range(KEPT)}
        counted |= {"second": seconds["second"], "cell": key[seconds["cell"]]}
        tops = to_columns(tables["tops"], "text")
        kept = ~late[tops["cell"]]
        return Minutes(
            {**counted, "fresh": np.ones(len(seconds["second"]), np.int64)},
            rekey(to_columns(tables["latencies"]), late, key),
            rekey(to_columns(tables["clients"]), late, key),
            read_sketches(tables["sketches"], late, key),
            rekey(tops, late, key),
            texts if kept.all() else texts.filter(pa.array(kept)),
            rekey(to_columns(tables["floors"]), late, key),
        )

    def _update_clocks(
        self, partition: str, names: list[str], rows: Columns
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of each server of a partial, and its clock when the partial began."""
        numbers, begins = np.zeros(len(names), np.int64), np.full(len(names), NEVER, np.int64)
        after: dict[tuple[str, str], tuple[int, int]] = {}
        for at, name in enumerate(names):
            if name != ALL:
                numbers[at] = self._number(name)
                name = self.servers[numbers[at]]
            first, last, clock = (int(rows[column][at]) for column in ("first", "last", "clock"))
            if first == NEVER:
                continue
            last_before, clock_before = self.clocks.get((partition, name), (NEVER, NEVER))
            begins[at] = max(clock_before, min(last_before, first))
            # Of servers that share a name (`OTHER`), the clock that is furthest ahead counts.
            _, furthest = after.get((partition, name), (NEVER, NEVER))
            after[partition, name] = (last, max(int(begins[at]), clock, furthest))
        self.clocks |= after
        return numbers, begins

    def _number(self, name: str) -> int:
        """Return the number of a server; servers beyond the limit share one."""
        if name not in self.servers:
            if len(self.servers) >= _MOST_SERVERS:
                name = OTHER
            if name not in self.servers:
                self.servers.append(name)
        return self.servers.index(name)

    def _queue_for_watch(self, seconds: Columns, servers: NDArray[np.int64], begin: int) -> None:
        """Give the watch the seconds with lines that came on time; they wait there to be judged."""
        wanted = (ON_TIME, ON_TIME_ERRORS, LATENCIES, LATENCY_SUM, LATENCY_SQUARES)
        late = begin >= (seconds["second"] + 1) * MICROS + self.settings.lateness_us
        rows = np.flatnonzero(~late & (seconds[f"n{ON_TIME}"] > 0))
        facts = np.stack([seconds[f"n{number}"][rows] for number in wanted], axis=1)
        names = [self.servers[number] for number in servers[rows].tolist()]
        for name, second, row in zip(names, seconds["second"][rows].tolist(), facts, strict=True):
            self.watch.add(name, second, row)

    # --- time ----------------------------------------------------------------------------------------------

    def _find_reached(self, watermark_us: int | None) -> dict[str, int]:
        """Return for each server the time that all its partitions have passed, idle ones left out."""
        clocks: dict[str, list[int]] = {}
        for (_, name), (_, clock) in self.clocks.items():
            clocks.setdefault(name, []).append(clock)
        limit = NEVER if watermark_us is None else watermark_us
        return {name: max(min(of), min(limit, max(of))) for name, of in clocks.items()}

    def judge(self, watermark_us: int | None) -> list[AlertChange]:
        reached = self._find_reached(watermark_us).get(ALL, NEVER)
        if reached == NEVER:
            return []
        changes = self.watch.advance((reached - self.settings.lateness_us) // MICROS)
        return changes + self.watch.relieve(_MOST_PENDING)

    def close(self, watermark_us: int | None) -> None:
        """Close the minutes that are over, and forget servers that have been silent for a day."""
        found = self._find_reached(watermark_us)
        everyone = found.get(ALL, NEVER)
        for name in self.servers:
            reached = max(found.get(name, NEVER), everyone - _DEAD_US if everyone != NEVER else NEVER)
            until = (reached - self.settings.grace_us) // MINUTE_MICROS if reached != NEVER else NEVER
            self.closed[name] = max(self.closed.get(name, NEVER), until)
        if self.servers:
            past = min(self.closed[name] for name in self.servers)
            self.closed[ALL] = max(self.closed.get(ALL, NEVER), past)
        heard: dict[str, int] = {}
        for (_, name), (_, clock) in self.clocks.items():
            heard[name] = max(heard.get(name, NEVER), clock)
        used = {name for names in self.pieces.values() for name in names}
        for name, clock in heard.items():
            if name not in (ALL, OTHER) and NEVER < clock < everyone - _FORGOTTEN_US and name not in used:
                self.clocks = {key: value for key, value in self.clocks.items() if key[1] != name}
                self.watch.forget(name)
        if len(self.clocks) > _MOST_CLOCKS:
            newest = sorted(self.clocks.items(), key=lambda each: (each[0][1] != ALL, -each[1][1], each[0]))
            self.clocks = dict(newest[:_MOST_CLOCKS])

    def _is_open(self, minute: int) -> bool:
        """Return whether any server may still add to it. If so, it is kept whole for sums over all."""
        return minute >= self.closed.get(ALL, NEVER)

    def _close_early(self, minute: int) -> None:
        for name in (*self.servers, ALL):
            self.closed[name] = max(self.closed.get(name, NEVER), minute + 1)

    def _close_colliding(self, touched: Sequence[int]) -> None:
        """Close the older of two open minutes, days apart, whose pieces would have the same numbers."""
        owners: dict[int, int] = {}
        for minute in sorted({*touched, *self.pieces}):
            if self._is_open(minute):
                first = piece_numbers(minute).start
                if first in owners:
                    self._close_early(owners[first])
                owners[first] = minute

    # --- state out -----------------------------------------------------------------------------------------

    def read_minute(self, state: Mapping[int, bytes], minute: int) -> Minutes:
        """Return the tables of an open minute."""
        found = []
        for number in piece_numbers(minute):
            if number not in state:
                break
            found.append(unpack_cells(state[number], minute, self._number))
        return unite_minutes(found, 1 << 62)

    def write(
        self, before: Mapping[int, bytes], united: Minutes | None, touched: Sequence[int]
    ) -> dict[int, bytes]:
        """Return all pieces of the new state. Minutes that this batch did not touch keep their bytes."""
        after: dict[int, bytes] = {}
        self._close_colliding(touched)
        for minute in touched:
            self.pieces.pop(minute, None)
            if united is not None:
                after |= self._write_minute(united, minute)
        for minute in list(self.pieces):
            if not self._is_open(minute):
                del self.pieces[minute]
            elif minute not in touched:
                kept = [number for number in piece_numbers(minute) if number in before]
                after |= {number: before[number] for number in kept}
        while len(self.pieces) > _MOST_MINUTES or sum(map(len, after.values())) > _MOST_BYTES:
            oldest = min(self.pieces)
            del self.pieces[oldest]
            self._close_early(oldest)
            for number in piece_numbers(oldest):
                after.pop(number, None)
        watch = self.watch.to_tables()
        series = watch["series"]
        starts = range(0, max(1, series.num_rows), _WATCH_ROWS)
        for at, start in enumerate(starts):
            rest = {} if at else {name: watch[name] for name in ("pending", "judged")}
            after[_WATCH_PIECE + at] = pack_tables({"series": series.slice(start, _WATCH_ROWS), **rest}, {})
        after[HEAD_PIECE] = self._write_head(len(starts))
        return after

    def _write_head(self, watch_pieces: int) -> bytes:
        used = {name for _, name in self.clocks} | {name for names in self.pieces.values() for name in names}
        self.closed = {name: minute for name, minute in self.closed.items() if name in used}
        clocks = sorted(self.clocks.items())
        closed = sorted(self.closed.items())
        cells = [(minute, name) for minute, names in sorted(self.pieces.items()) for name in names]
        tables = {
            "servers": pa.table({"name": pa.array([n for n in self.servers if n in used], pa.string())}),
            "clocks": pa.table(
                {
                    "partition": pa.array([key[0] for key, _ in clocks], pa.string()).dictionary_encode(),
                    "server": pa.array([key[1] for key, _ in clocks], pa.string()).dictionary_encode(),
                    "last": pa.array([value[0] for _, value in clocks], pa.int64()),
                    "clock": pa.array([value[1] for _, value in clocks], pa.int64()),
                }
            ),
            "closed": pa.table(
                {
                    "server": pa.array([name for name, _ in closed], pa.string()),
                    "minute": pa.array([minute for _, minute in closed], pa.int64()),
                }
            ),
            "minutes": pa.table(
                {
                    "minute": pa.array([minute for minute, _ in cells], pa.int64()),
                    "server": pa.array([name for _, name in cells], pa.string()).dictionary_encode(),
                }
            ),
        }
        head = {"lines": self.lines, "too_late": self.too_late, "watch_pieces": watch_pieces}
        return pack_tables(tables, head)

    def _write_minute(self, united: Minutes, minute: int) -> dict[int, bytes]:
        begin, end = np.int64(minute * SERVERS), np.int64((minute + 1) * SERVERS)
        cells = np.unique(united.seconds["cell"])
        cells = cells[(cells >= begin) & (cells < end)]
        if not len(cells) or not self._is_open(minute):
            return {}
        self.pieces[minute] = sorted(self.servers[cell % SERVERS] for cell in cells.tolist())
        packed = pack_cells(choose_cells(united, cells), cells, self.servers)
        return dict(zip(piece_numbers(minute), packed, strict=False))


def _make_alert_rows(changes: list[AlertChange]) -> pa.Table:
    """Return a row with the latest state of each alert that changed."""
    rows: dict[str, dict[str, Any]] = {}
    for each in changes:
        name = f"{each.kind}|{each.server}|{each.opened_at}"
        identity = hashlib.sha256(name.encode()).hexdigest()[:24]
        rows[identity] = {
            "alert_id": identity,
            "kind": each.kind,
            "server": each.server,
            "opened_at": each.opened_at * MICROS,
            "closed_at": None if each.closed_at is None else each.closed_at * MICROS,
            "value": each.value,
            "expected": each.expected,
            "peak": each.peak,
            "score": each.score,
            "new_level": each.new_level,
        }
    return pa.Table.from_pylist(list(rows.values()), schema=ALERT_ROWS)


assert COUNTS > KEPT
