"""The defence in memory: batches of log lines go through the same functions that the pipeline on Spark calls.

Rule: nothing here decides. Lines are parsed, matched, made into events and folded lane by lane, by the same
functions and in the same order as on a cluster. So a replay or a test finds what a running pipeline would
have found.

>>> from penstock.apps.accesslog.parsing.line_parser import make_parser
>>> engine = Engine(DefenceSettings.default(), partitions=[0])
>>> log = [b'192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /.env HTTP/1.1" 404 23']
>>> _ = engine.feed_lines(make_parser().parse(pa.array(log)), 0, np.arange(1))
>>> engine.finish()["client"].to_pylist()
['192.0.2.7']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.behaviour_fold import fold_lane
from penstock.apps.accesslog.defence.defence_settings import DECISIONS, DefenceSettings, OrdersInForce
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.events.line_events import make_events
from penstock.apps.accesslog.events.log_clocks import Clocks, finish
from penstock.apps.accesslog.parsing.line_parser import Lines
from penstock.apps.accesslog.texts.text_grouping import group_lines


class Engine:
    """Runs the defence over batches of lines; each call returns the decisions that can be made by then."""

    def __init__(self, settings: DefenceSettings, *, partitions: Iterable[int] = ()) -> None:
        self.settings = settings
        self.clocks = Clocks.begin(partitions)
        self.lanes = [LaneState.begin(settings) for _ in range(settings.lanes)]
        self.counters: Counter[str] = Counter()

    @cached_property
    def detector(self) -> Detector:
        return Detector(self.settings.ruleset)

    def feed_lines(
        self, lines: Lines, partition: int, offsets: NDArray[np.int64], servers: pa.Array | None = None
    ) -> pa.Table:
        """Fold one batch of parsed lines of one partition; return the decisions in order."""
        return self.fold([self.make_events(lines, partition, offsets, servers)])

    def finish(self) -> pa.Table:
        """Fold what still waits when the log has ended; return the decisions in order."""
        return self.fold([], ended=finish(self.clocks))

    def make_events(
        self, lines: Lines, partition: int, offsets: NDArray[np.int64], servers: pa.Array | None
    ) -> dict[int, pa.RecordBatch]:
        """Return the events of parsed lines by lane."""
        grouped = group_lines(lines)
        return make_events(
            lines, self.detector.detect(lines, grouped), self.settings.ruleset, partition=partition,
            offsets=offsets, servers=servers, lanes=self.settings.lanes,
            lateness_us=self.settings.lateness_us, grouped=grouped,
        )  # fmt: skip

    def fold(
        self,
        events: Sequence[Mapping[int, pa.RecordBatch]],
        orders: OrdersInForce | None = None,
        ended: Clocks | None = None,
    ) -> pa.Table:
        """Fold events of one or more partitions; return the decisions in order."""
        made, clocks = [], self.clocks
        levels = Counter({"pending": 0, "subjects": 0})
        for lane, state in enumerate(self.lanes):
            mine = [each[lane] for each in events if lane in each]
            result = fold_lane(state, mine, self.clocks, self.settings, orders, finished=ended)
            self.lanes[lane], clocks = result.state, result.clocks
            for name, value in result.counters.items():
                (levels if name in levels else self.counters)[name] += value
            if result.decisions.num_rows:
                made.append(result.decisions)
        dict.update(self.counters, levels)
        self.clocks = clocks
        if not made:
            return DECISIONS.empty_table()
        return pa.concat_tables(made).sort_by([("decided_at", "ascending"), ("client", "ascending")])
