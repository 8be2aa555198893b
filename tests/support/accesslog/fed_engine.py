"""An engine that is fed raw lines, and can be stopped after any batch, serialized, and resumed.

>>> engine = FedEngine(DefenceSettings.default(), partitions=[0])
>>> log = [b'192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /.env HTTP/1.1" 404 23']
>>> _ = engine.feed({0: pa.array(log, pa.binary())})
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.evaluation.offline_defence import Engine
from penstock.apps.accesslog.events.log_clocks import Clocks, decide_idle
from penstock.apps.accesslog.parsing.line_parser import make_parser


class FedEngine(Engine):
    """An engine to feed with batches, `{partition: lines}`; it parses them and counts their offsets."""

    def __init__(
        self,
        settings: DefenceSettings,
        *,
        partitions: Iterable[int] = (),
        detector: Detector | None = None,
    ) -> None:
        super().__init__(settings, partitions=partitions)
        self._parser = make_parser(trusted_proxies=settings.trusted_proxies)
        if detector is not None:
            self.detector = detector
        self._next: dict[int, int] = {}

    def feed(
        self,
        batch: Mapping[int, pa.Array],
        *,
        servers: Mapping[int, pa.Array] | None = None,
        orders: OrdersInForce | None = None,
    ) -> pa.Table:
        """Fold one batch: the next lines of each partition."""
        events = []
        for partition, values in batch.items():
            first = self._next.get(partition, 0)
            self._next[partition] = first + len(values)
            offsets = np.arange(first, first + len(values), dtype=np.int64)
            lines = self._parser.parse(values)
            self.counters.update(lines=len(lines), bad=int(lines.bad_rows.size))
            named = None if servers is None else servers[partition]
            events.append(self.make_events(lines, partition, offsets, named))
        return self.fold(events, orders)

    def note_idle(self, *, now_us: int, known: Iterable[int] = ()) -> None:
        """Decide which partitions are idle after a while without lines, as the pipeline does."""
        self.clocks = decide_idle(
            self.clocks, now_us=now_us, with_lines=(), known=known, idle_after_us=self.settings.idle_after_us
        )

    def pack(self) -> dict[str, Any]:
        """Return all state: clocks, positions, and the pieces of each lane."""
        told = {"next": {str(number): offset for number, offset in self._next.items()}}
        return {
            "engine": json.dumps(told).encode(),
            "clocks": self.clocks.pack(),
            "lanes": [state.pack() for state in self.lanes],
        }

    @classmethod
    def resume(cls, packed: Mapping[str, Any], settings: DefenceSettings, **parts: Any) -> FedEngine:
        """Return an engine that continues from a packed one."""
        engine = cls(settings, **parts)
        engine.clocks = Clocks.unpack(packed["clocks"])
        engine.lanes = [LaneState.unpack(chunks, settings) for chunks in packed["lanes"]]
        engine._next = {int(n): offset for n, offset in json.loads(packed["engine"])["next"].items()}
        return engine
