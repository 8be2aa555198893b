"""Handmade parsed lines, and the monitoring results to expect from them, worked out slowly."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings, count_load, merge
from penstock.apps.accesslog.monitoring.load_merging import HEAD_PIECE, read_too_late
from penstock.apps.accesslog.monitoring.packed_tables import unpack_tables
from penstock.apps.accesslog.parsing.line_parser import Lines

MINUTE_US = 60_000_000
TABLES = {
    "seconds": ("second", "server"),
    "minutes": ("minute", "server"),
    "tops": ("minute", "server", "kind", "rank"),
    "alerts": ("alert_id",),
}


@dataclass(frozen=True)
class Line:
    """One request."""

    time_us: int
    server: str | None = None
    vhost: str = ""
    client: str = "192.0.2.1"
    target: str = "/"
    agent: str = "curl"
    referrer: str = ""
    status: int = 200
    size: int = 100
    latency_us: int = -1

    @property
    def name(self) -> str:
        return self.server if self.server is not None else self.vhost


def make_lines(requests: Sequence[Line]) -> Lines:
    """Return the lines as a parser would: texts packed one after the other; an empty one counts as absent."""
    data = bytearray(b"?")  # a start of 0 must not be a special case
    fields = ("client", "target", "agent", "referrer", "vhost")
    starts: dict[str, list[int]] = {name: [] for name in fields}
    lengths: dict[str, list[int]] = {name: [] for name in fields}
    for request in requests:
        for name in fields:
            text = getattr(request, name).encode("utf-8", "surrogateescape")
            starts[name].append(len(data))
            lengths[name].append(len(text) or -1)
            data += text
    count = len(requests)

    def column(name: str, kind: Any) -> Any:
        return np.array([getattr(each, name) for each in requests], kind)

    return Lines(
        data=np.frombuffer(bytes(data), np.uint8).copy(),
        rows=np.arange(count, dtype=np.int32),
        starts={name: np.array(of, np.int32) for name, of in starts.items()},
        lengths={name: np.array(of, np.int32) for name, of in lengths.items()},
        time_us=column("time_us", np.int64),
        status=column("status", np.int16),
        size=column("size", np.int64),
        latency_us=column("latency_us", np.int64),
        is_json=np.zeros(count, np.bool_),
        bad_rows=np.zeros(0, np.int32),
        bad_reasons=np.zeros(0, np.int8),
    )


def observe_lines(
    requests: Sequence[Line], partition: int = 0, offset: int = 0, settings: MonitorSettings | None = None
) -> bytes:
    servers = pa.array([each.server for each in requests], pa.string())
    return count_load(
        make_lines(requests), servers=servers, partition=partition, first_offset=offset, settings=settings
    )


def read_lines(state: Mapping[int, bytes]) -> int:
    """Return how many lines there have been since the beginning."""
    return int(unpack_tables(state[HEAD_PIECE])[0]["lines"])


@dataclass
class Database:
    """Upserted rows, and the state between batches."""

    settings: MonitorSettings = field(default_factory=MonitorSettings)
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = field(
        default_factory=lambda: {name: {} for name in TABLES}
    )
    state: dict[int, bytes] = field(default_factory=dict)
    offsets: Counter[int] = field(default_factory=Counter)

    @property
    def lines_total(self) -> int:
        """Return how many lines there have been since the beginning, according to the state."""
        return read_lines(self.state)

    @property
    def too_late_total(self) -> int:
        return read_too_late(self.state[HEAD_PIECE]) if self.state else 0

    def add(self, batch: Mapping[int, Iterable[Sequence[Line]]], watermark_us: int | None = None) -> None:
        """Add one batch: for each partition, the pieces in which its lines arrived."""
        partials = []
        for partition, pieces in batch.items():
            for piece in pieces:
                partials.append(observe_lines(piece, partition, self.offsets[partition], self.settings))
                self.offsets[partition] += len(piece)
        partials.reverse()  # their order must not matter
        merged = merge(partials, self.state, watermark_us, settings=self.settings)
        self.state = merged.state
        assert max(map(len, self.state.values())) <= 1 << 20
        for name, keys in TABLES.items():
            for row in getattr(merged, name).to_pylist():
                self.tables[name][tuple(row[key] for key in keys)] = row


@dataclass
class Expected:
    """The expected content of the tables, and how many lines came too late."""

    seconds: dict[tuple[int, str], Counter[str]]
    minutes: dict[tuple[int, str], dict[str, Any]]
    tops: dict[tuple[int, str, str], Counter[str]]
    too_late: int


def work_out(partitions: Mapping[int, Sequence[Line]], grace_us: int = 300_000_000) -> Expected:
    """Work out the expected results one line after the other, by the rules."""
    seconds: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    cells: dict[tuple[int, str], list[Line]] = defaultdict(list)
    too_late = 0
    for requests in partitions.values():
        last: dict[str, int] = {}
        clock: dict[str, float] = {}
        for each in requests:
            now = min(last.get(each.name, each.time_us), each.time_us) if each.name in last else -math.inf
            clock[each.name] = max(clock.get(each.name, -math.inf), now)
            last[each.name] = each.time_us
            minute = each.time_us // MINUTE_US
            if clock[each.name] >= (minute + 1) * MINUTE_US + grace_us:
                too_late += 1
                continue
            counts = seconds[each.time_us // 1_000_000, each.name]
            counts["requests"] += 1
            counts["bytes"] += each.size
            counts["errors"] += 500 <= each.status < 600
            if 100 <= each.status < 600:
                counts[f"status_{each.status // 100}xx"] += 1
            cells[minute, each.name].append(each)
            cells[minute, "*"].append(each)
    tops: dict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
    for (minute, server), found in cells.items():
        for each in found:
            tops[minute, server, "url"][each.target.partition("?")[0] or "-"] += 1
            for kind in ("client", "agent", "referrer"):
                tops[minute, server, kind][getattr(each, kind) or "-"] += 1
            if server == "*":
                tops[minute, server, "server"][each.name] += 1
    return Expected(
        seconds, {key: _sum_up(key, found, seconds) for key, found in cells.items()}, tops, too_late
    )


def _sum_up(
    key: tuple[int, str], found: Sequence[Line], seconds: Mapping[tuple[int, str], Counter[str]]
) -> dict[str, Any]:
    minute, server = key
    rates: Counter[int] = Counter()
    for (second, name), counts in seconds.items():
        if second // 60 == minute and server in ("*", name):
            rates[second] += counts["requests"]
    errors = sum(500 <= each.status < 600 for each in found)
    return {
        "requests": len(found),
        "bytes": sum(each.size for each in found),
        "errors": errors,
        "error_ratio": errors / len(found),
        "unique_clients": len({each.client for each in found}),
        "latencies": sum(each.latency_us >= 0 for each in found),
        "rate_min": min(rates.values()) if len(rates) == 60 else 0,
        "rate_avg": len(found) / 60,
        "rate_max": max(rates.values()),
        "sorted_latencies": sorted(each.latency_us for each in found if each.latency_us >= 0),
    }
