"""The defence in memory: batches of log lines through the very functions that the pipeline on Spark calls.

Rule: nothing here decides. Lines are parsed, matched, made into events and folded lane by lane, by the same
functions and in the same order as on a cluster; so what a replay or a test finds is what a running pipeline
would have found. An engine can be stopped after any batch, written down, and resumed.

>>> engine = Engine(DefenceSettings.default(), partitions=[0])
>>> log = [b'192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /.env HTTP/1.1" 404 23']
>>> _ = engine.feed({0: pa.array(log, pa.binary())})
>>> engine.finish()["client"].to_pylist()
['192.0.2.7']
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.behaviour_fold import fold_lane
from penstock.apps.accesslog.defence.defence_settings import DECISIONS, DefenceSettings, Orders
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.events.line_events import make_events
from penstock.apps.accesslog.events.log_clocks import Clocks, decide_idle, finish
from penstock.apps.accesslog.parsing.line_parser import Lines, Parser, make_parser
from penstock.apps.accesslog.texts.text_grouping import group_lines


class Engine:
    """Feed it batches, `{partition: lines}`; each feed returns the decisions that could be made by then."""

    def __init__(
        self,
        settings: DefenceSettings,
        *,
        partitions: Iterable[int] = (),
        parser: Parser | None = None,
        detector: Detector | None = None,
    ) -> None:
        self.settings = settings
        self.clocks = Clocks.begin(partitions)
        self.lanes = [LaneState.begin(settings) for _ in range(settings.lanes)]
        self.counters: Counter[str] = Counter()
        self._parser = parser or make_parser(trusted_proxies=settings.trusted_proxies)
        self._detector = detector or Detector(settings.ruleset)
        self._next: dict[int, int] = {}

    def feed(
        self,
        batch: Mapping[int, pa.Array],
        *,
        servers: Mapping[int, pa.Array] | None = None,
        orders: Orders | None = None,
    ) -> pa.Table:
        """Fold one batch: the next lines of each partition."""
        events: list[list[pa.RecordBatch]] = [[] for _ in self.lanes]
        for partition, values in batch.items():
            first = self._next.get(partition, 0)
            self._next[partition] = first + len(values)
            offsets = np.arange(first, first + len(values), dtype=np.int64)
            lines = self._parser.parse(values)
            self.counters.update(lines=len(lines), bad=int(lines.bad_rows.size))
            self._add_events(
                lines, partition, offsets, None if servers is None else servers[partition], events
            )
        return self._fold(events, orders)

    def feed_lines(
        self, lines: Lines, partition: int, offsets: NDArray[np.int64], servers: pa.Array | None = None
    ) -> pa.Table:
        """Fold one batch of parsed lines of one partition."""
        events: list[list[pa.RecordBatch]] = [[] for _ in self.lanes]
        self._add_events(lines, partition, offsets, servers, events)
        return self._fold(events, None)

    def _add_events(
        self,
        lines: Lines,
        partition: int,
        offsets: NDArray[np.int64],
        servers: pa.Array | None,
        events: list[list[pa.RecordBatch]],
    ) -> None:
        grouped = group_lines(lines)
        made = make_events(
            lines, self._detector.detect(lines, grouped), self.settings.ruleset, partition=partition,
            offsets=offsets, servers=servers, lanes=self.settings.lanes,
            lateness_us=self.settings.lateness_us, grouped=grouped,
        )  # fmt: skip
        for lane, some in made.items():
            events[lane].append(some)

    def _fold(
        self, events: Sequence[Sequence[pa.RecordBatch]], orders: Orders | None, ended: Clocks | None = None
    ) -> pa.Table:
        made, clocks = [], self.clocks
        levels: Counter[str] = Counter()
        for lane, state in enumerate(self.lanes):
            result = fold_lane(state, events[lane], self.clocks, self.settings, orders, finished=ended)
            self.lanes[lane], clocks = result.state, result.clocks
            for name, value in result.counters.items():
                (levels if name in ("pending", "subjects") else self.counters)[name] += value
            if result.decisions.num_rows:
                made.append(result.decisions)
        self.counters.update({"pending": 0, "subjects": 0})
        self.counters |= levels
        for name, value in levels.items():
            self.counters[name] = value
        self.clocks = clocks
        if not made:
            return DECISIONS.empty_table()
        return pa.concat_tables(made).sort_by([("decided_at", "ascending"), ("client", "ascending")])

    def note_idle(self, *, now_us: int, known: Iterable[int] = ()) -> None:
        """Decide which partitions are idle after a while without lines, as the pipeline does."""
        self.clocks = decide_idle(
            self.clocks, now_us=now_us, with_lines=(), known=known, idle_after_us=self.settings.idle_after_us
        )

    def finish(self) -> pa.Table:
        """Fold what still waits: the log has ended."""
        return self._fold([[] for _ in self.lanes], None, finish(self.clocks))

    def pack(self) -> dict[str, Any]:
        """Return all state: clocks, positions, and the pieces of each lane."""
        told = {"next": {str(number): offset for number, offset in self._next.items()}}
        return {
            "engine": json.dumps(told).encode(),
            "clocks": self.clocks.pack(),
            "lanes": [state.pack() for state in self.lanes],
        }

    @classmethod
    def resume(cls, packed: Mapping[str, Any], settings: DefenceSettings, **parts: Any) -> Engine:
        """Return an engine that goes on from a packed one."""
        engine = cls(settings, **parts)
        engine.clocks = Clocks.unpack(packed["clocks"])
        engine.lanes = [LaneState.unpack(chunks, settings) for chunks in packed["lanes"]]
        engine._next = {int(n): offset for n, offset in json.loads(packed["engine"])["next"].items()}
        return engine
