"""Measures how long a micro-batch takes under a trickle: every 100 ms one record into each partition.

The figure is the median `durationMs.triggerExecution` of the batches that had rows, after a warm-up, with the
fastest trigger. Each side's turn has a session and a JVM of its own.

Spark's connector takes long with many partitions, as thread dumps and changes of settings show:
- It runs one task for each partition, so on 2 cores 200 of them take 100 rounds.
- In each task it polls once and then asks for the partition's first and last offset, over the connection on
  which its consumer has just sent the fetch for what comes next. A broker answers one connection's requests
  in order, and a fetch with nothing to return is held until something is written or `fetch.max.wait.ms` (500)
  is over. So every task of a caught-up stream waits for the partition's next record, or half a second. In
  thread dumps the tasks are most often in `getAvailableOffsetRange`, waiting for the network.
- Changing the settings confirms that. A record every 0.1 s, 200 partitions, a pool of 256, whole batch:
  10.5 s, which is 100 rounds of 0.1 s; with `kafka.fetch.min.bytes` 0, so that no fetch is held, 2.8 s.
  20 partitions, the batch's job alone: 1.0 s (10 rounds of 0.1 s) and 0.2 s; with a record every 2 s 4.5 s
  (10 rounds of 0.5 s) and 0.3 s. `kafka.fetch.max.wait.ms` 1 helped 20 partitions, too, but somewhat less.
  Each is one short turn on a machine that was also doing other things: these are magnitudes, not figures.
- A pool of 64 consumers for 200 partitions also closes and makes consumers in every batch, which
  `spark.kafka.consumer.cache.capacity` cures. It does not cure the waits.
- `coalesce(2)` changes nothing (1.0 s again): two tasks then wait for their partitions one after the other.
  `minPartitions` and `maxRecordsPerPartition` only cut ranges further.
So a fair comparison has three peers here: both sizes of the pool as they are, and the pool that is large
enough with fetches that do not wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.sampling import Samples
from bench.stream_load import SteadyLoad
from bench.stream_session import StreamSession, count_batches, list_progress, wait_until
from bench.topics import settings_of
from penstock.kafka.metadata.topic_admin import create_topic

_TICK_S = 0.1
_LEAST_BATCHES = 3
_PATIENCE_S = 120.0
_START_S = 120.0


@dataclass(frozen=True)
class Turn:
    """One side's turn: `format` is that of `readStream`, and `conf` is the session's."""

    format: str
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


def measure_turn(turn: Turn, bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Return the seconds of each batch with rows; batches of the first `seconds` seconds are warm-up."""
    return [each["triggerExecution"] / 1000 for each in list_durations(turn, bootstrap, topic, seconds)]


def list_durations(turn: Turn, bootstrap: str, topic: str, seconds: float) -> list[dict[str, int]]:
    """Return what Spark says each part of these batches took, in milliseconds."""
    with StreamSession(turn.conf) as session:
        frame = session.stream(turn.format, bootstrap, topic, startingOffsets="latest", **turn.options)
        with session.run(frame.writeStream.format("noop")) as query:
            if not wait_until(query, lambda: count_batches(query) > 1, _START_S):
                raise TimeoutError(f"{turn.format}: no second batch after {_START_S:g} s")
            time.sleep(seconds)  # the warm-up
            first = count_batches(query)
            ends = time.monotonic() + seconds
            wait_until(
                query,
                lambda: time.monotonic() >= ends and count_batches(query) >= first + _LEAST_BATCHES,
                seconds + _PATIENCE_S,
            )
            done = [each for each in list_progress(query) if each["numInputRows"] > 0]
    measured = [each for each in done if each["batchId"] >= first] or done[-1:]
    return [each["durationMs"] for each in measured]


def run_trickle(
    bootstrap: str, partitions: int, sides: Mapping[str, Turn], *, runs: int, seconds: float
) -> dict[str, Samples]:
    """Return the samples of sides that take turns; a sample is the median batch of one turn."""
    topic = f"trickle-{partitions}"
    create_topic(settings_of(bootstrap), topic, partitions=partitions)
    medians: dict[str, list[float]] = {name: [] for name in sides}
    with SteadyLoad(bootstrap, topic, partitions=partitions, rate=partitions / _TICK_S, tick_s=_TICK_S):
        for turn in range(1, runs + 1):
            for name, side in sides.items():
                batches = measure_turn(side, bootstrap, topic, seconds)
                medians[name].append(statistics.median(batches))
                print(f"  turn {turn} {name:<12} {_describe(batches)}", flush=True)
    return {name: Samples(tuple(values)) for name, values in medians.items()}


def _describe(batches: list[float]) -> str:
    ordered = sorted(batches)
    shown = " ".join(f"{each:.3f}" for each in batches[:12])
    return (
        f"{len(batches)} batches, median {statistics.median(ordered):.3f} s "
        f"[{ordered[0]:.3f}..{ordered[-1]:.3f}], first ones: {shown}"
    )


#: The connector's pool of consumers holds 64 by default; 256 hold one for each of 200 partitions.
CAPACITY = "spark.kafka.consumer.cache.capacity"
#: The remedy; see the beginning of this file.
NO_WAIT = {"kafka.fetch.min.bytes": "0"}
FOUR = {
    "penstock": Turn("penstock"),
    "default": Turn("kafka"),
    "no wait": Turn("kafka", options=NO_WAIT),
}
MANY = {
    "penstock": Turn("penstock"),
    "cache 64": Turn("kafka", {CAPACITY: "64"}),
    "cache 256": Turn("kafka", {CAPACITY: "256"}),
    "256, no wait": Turn("kafka", {CAPACITY: "256"}, NO_WAIT),
}
