"""Measures how old a record is when the program has it: from the record's own time to the sink.

The load is 1,000 records a second. A `foreachBatch` sink collects each batch into the driver and takes the
time then. Both connectors run in one session, in turns, with the fastest trigger. Records written during the
warm-up are not counted. Offsets must follow each other without a gap: a reader that loses rows is not fast.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bench.stream_load import SteadyLoad
from bench.stream_session import StreamSession, wait_until
from bench.stream_trickle import NO_WAIT
from bench.topics import settings_of
from penstock.kafka.metadata.topic_admin import create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
_RATE = 1_000.0
_TICK_S = 0.01
_PATIENCE_S = 120.0
#: The format and the options of each side. Without waits: see `bench.stream_trickle`.
SIDES = {"penstock": ("penstock", {}), "default": ("kafka", {}), "no wait": ("kafka", NO_WAIT)}
Numbers = npt.NDArray[np.int64]


@dataclass
class Arrivals:
    """What the sink has seen, a row for each record: partition, offset, its time and its arrival, in ms."""

    batches: list[Numbers] = field(default_factory=list)

    def take(self, batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("partition", "offset", "unix_millis(timestamp) AS written").toArrow()
        now_ms = time.time_ns() // 1_000_000
        if rows.num_rows:
            columns = [rows.column(name).to_numpy().astype(np.int64) for name in rows.column_names]
            self.batches.append(np.column_stack([*columns, np.full(rows.num_rows, now_ms)]))

    def reached(self, written_ms: float) -> bool:
        """Return whether all records before this time have arrived, as each partition shows a later one."""
        latest: dict[int, int] = {}
        for batch in reversed(self.batches):
            for partition in np.unique(batch[:, 0]).tolist():
                if partition not in latest:
                    latest[partition] = int(batch[batch[:, 0] == partition, 2].max())
            if len(latest) == PARTITIONS:
                return min(latest.values()) >= written_ms
        return False

    def latencies_s(self, first_ms: float, last_ms: float) -> npt.NDArray[np.float64]:
        rows = np.concatenate(self.batches)
        check_whole(rows)
        chosen = rows[(rows[:, 2] >= first_ms) & (rows[:, 2] < last_ms)]
        latencies: npt.NDArray[np.float64] = (chosen[:, 3] - chosen[:, 2]) / 1000
        return latencies


def check_whole(rows: Numbers) -> None:
    """Check that no record came twice and none is missing, from the first that was seen to the last."""
    for partition in np.unique(rows[:, 0]).tolist():
        offsets = np.sort(rows[rows[:, 0] == partition, 1])
        if not np.array_equal(offsets, np.arange(offsets[0], offsets[0] + offsets.size)):
            raise AssertionError(f"partition {partition}: records are missing or came twice")


def run_latency(
    session: StreamSession, bootstrap: str, *, runs: int, seconds: float, rate: float = _RATE
) -> Mapping[str, dict[str, list[float]]]:
    """Return the p50 and p99 of each turn, in seconds, for each side."""
    topic = "latency"
    create_topic(settings_of(bootstrap), topic, partitions=PARTITIONS)
    found: dict[str, dict[str, list[float]]] = {side: {"p50": [], "p99": []} for side in SIDES}
    with SteadyLoad(bootstrap, topic, partitions=PARTITIONS, rate=rate, tick_s=_TICK_S):
        for turn in range(1, runs + 1):
            for side, points in found.items():
                latencies = _measure_turn(session, side, bootstrap, topic, seconds)
                p50, p99 = (float(np.percentile(latencies, each)) for each in (50, 99))
                points["p50"].append(p50)
                points["p99"].append(p99)
                print(
                    f"  turn {turn} {side:<10} p50 {p50 * 1000:6.0f} ms  p99 {p99 * 1000:6.0f} ms  "
                    f"highest {latencies.max() * 1000:6.0f} ms  of {latencies.size} records",
                    flush=True,
                )
    return found


def _measure_turn(
    session: StreamSession, side: str, bootstrap: str, topic: str, seconds: float
) -> npt.NDArray[np.float64]:
    arrivals = Arrivals()
    form, options = SIDES[side]
    frame = session.stream(form, bootstrap, topic, startingOffsets="latest", **options)
    with session.run(frame.writeStream.foreachBatch(arrivals.take)) as query:

        def arrive(written_ms: float, what: str) -> None:
            if not wait_until(query, lambda: arrivals.reached(written_ms), _PATIENCE_S):
                raise TimeoutError(f"{side}: {what} have not arrived within {_PATIENCE_S:g} s")

        arrive(0, "the first records")
        first_ms = time.time() * 1000 + seconds / 3 * 1000  # the first third is more warm-up
        last_ms = first_ms + seconds * 1000
        time.sleep(seconds / 3 + seconds)
        arrive(last_ms, "the last records")
    return arrivals.latencies_s(first_ms, last_ms)
