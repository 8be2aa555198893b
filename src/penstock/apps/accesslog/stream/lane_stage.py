"""The second stage of a batch: the parcels of a lane and its state in, decisions and its new state out.

A task has all parcels of some lanes: events of every partition, and the pieces of state that the batch before
has left. Rule: the result depends only on these and on the clocks and orders that the driver decided, so a
task that runs twice, or elsewhere, makes the same. The last lane is that of the monitoring; it also passes on
what concerns all lines: counts and dead letters.

A piece of state is written only if it has changed, and one that no longer exists is marked as gone.

    frame.repartitionById(2, ...).mapInArrow(LaneStage(kit, clocks, orders), PARCELS_DDL)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.apps.accesslog.defence.behaviour_fold import fold_lane
from penstock.apps.accesslog.defence.defence_settings import OrdersInForce
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.events.log_clocks import Clocks, advance
from penstock.apps.accesslog.monitoring.load_counting import merge
from penstock.apps.accesslog.stream.line_stage import (
    COUNTS,
    EVENTS,
    LETTERS,
    PARTIAL,
    Kit,
    Tools,
    open_kit,
)
from penstock.apps.accesslog.stream.parcels import Parcel, make_parcel, pack, read_parcels, unpack
from penstock.kernels.worker_garbage_collection import spare_the_collector

#: Kinds of parcels: pieces of state, on their way in and out; what a lane has counted; rows for tables.
STATE, LANE = "state", "lane"
DECISIONS = "decisions"
SECONDS, MINUTES, TOPS, ALERTS = "seconds", "minutes", "tops", "alerts"
#: What a lane has done with a batch (these add up), and what it holds then.
LANE_COUNTS = ("folded", "forced", "evicted")
LANE_LEVELS = ("pending", "subjects")
LANE_SCHEMA = pa.schema(
    [("lane", pa.int32())] + [(name, pa.int64()) for name in (*LANE_COUNTS, *LANE_LEVELS)]
)


@dataclass
class LaneInput:
    """All parcels of one lane, by kind."""

    state: dict[int, pa.Buffer] = field(default_factory=dict)
    rest: dict[str, list[pa.Buffer]] = field(default_factory=dict)

    def put(self, parcel: Parcel) -> None:
        assert parcel.payload is not None
        if parcel.kind == STATE:
            self.state[parcel.part] = parcel.payload
        else:
            self.rest.setdefault(parcel.kind, []).append(parcel.payload)

    def get(self, kind: str) -> list[pa.Buffer]:
        return self.rest.get(kind, [])


@dataclass(frozen=True)
class LaneStage:
    """What a task does with its lanes. `clocks` are those before the batch, with idle partitions marked."""

    kit: Kit
    clocks: Clocks
    orders: OrdersInForce

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lanes: dict[int, LaneInput] = {}
        for batch in batches:
            for parcel in read_parcels(batch):
                lanes.setdefault(parcel.lane, LaneInput()).put(parcel)
        tools = open_kit(self.kit)
        for lane, given in sorted(lanes.items()):
            if lane == tools.monitor_lane:
                yield from self._monitor(tools, lane, given)
            else:
                yield from self._fold(tools, lane, given)
        spare_the_collector("lanes", collects=True)

    def _fold(self, tools: Tools, lane: int, given: LaneInput) -> Iterator[pa.RecordBatch]:
        state = LaneState.unpack([given.state[part] for part in sorted(given.state)], tools.defence)
        events = [batch for payload in given.get(EVENTS) for batch in _read_batches(payload)]
        result = fold_lane(state, events, self.clocks, tools.defence, self.orders)
        if result.decisions.num_rows:
            yield make_parcel(DECISIONS, lane, pack(result.decisions))
        yield from _write_changes(lane, given.state, dict(enumerate(result.state.pack())))
        counted = {name: result.counters[name] for name in (*LANE_COUNTS, *LANE_LEVELS)}
        yield make_parcel(
            LANE, lane, pack(pa.Table.from_pylist([{"lane": lane, **counted}], schema=LANE_SCHEMA))
        )

    def _monitor(self, tools: Tools, lane: int, given: LaneInput) -> Iterator[pa.RecordBatch]:
        maxima = read_maxima(map(unpack, given.get(COUNTS)))
        clocks = advance(self.clocks, maxima, lateness_us=tools.defence.lateness_us)
        for kind in (COUNTS, LETTERS):
            for payload in given.get(kind):
                yield make_parcel(kind, lane, payload)
        state = {part: bytes(piece) for part, piece in given.state.items()}
        partials = [bytes(each) for each in given.get(PARTIAL)]
        merged = merge(partials, state, clocks.watermark_us, settings=tools.monitoring)
        for kind, rows in (
            (SECONDS, merged.seconds),
            (MINUTES, merged.minutes),
            (TOPS, merged.tops),
            (ALERTS, merged.alerts),
        ):
            if rows.num_rows:
                yield make_parcel(kind, lane, pack(rows))
        yield from _write_changes(lane, given.state, merged.state)


def read_maxima(counts: Iterable[pa.Table]) -> dict[int, int]:
    """Return how far the clock of each partition has come, by what the tasks counted."""
    maxima: dict[int, int] = {}
    for each in counts:
        for partition, most in zip(each["partition"].to_pylist(), each["maximum"].to_pylist(), strict=True):
            maxima[partition] = max(maxima.get(partition, most), most)
    return maxima


def _read_batches(payload: pa.Buffer) -> list[pa.RecordBatch]:
    """Return events as they were made; what is known about their lines is in their schema."""
    with pa.ipc.open_stream(payload) as stream:
        return list(stream)


def _write_changes(
    lane: int, before: Mapping[int, pa.Buffer], after: Mapping[int, bytes]
) -> Iterator[pa.RecordBatch]:
    """Yield the pieces of state that have changed; those that are gone have no payload."""
    for part, piece in after.items():
        if part not in before or not before[part].equals(pa.py_buffer(piece)):
            yield make_parcel(STATE, lane, piece, part)
    for part in before.keys() - after.keys():
        yield make_parcel(STATE, lane, None, part)
