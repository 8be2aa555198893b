"""Compares backpressure with a static cap, under a load and a sink that change.

There are five phases: a calm load; ten times the load, which is more than the sink takes; a sink five times
slower; the calm load again; the fast sink again. The static cap (`maxOffsetsPerTrigger`) is the best one for
the fast sink: what it does in one batch's time. The sink sleeps for a fixed time per record: its slowness is
part of the load.

The run with backpressure has these goals: after each change, the batches that have enough to do come within
20 % of their target within 6 batches; the backlog is gone at the end; none of Spark's processes grows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plot import Chart, Column, Line, draw_page
from bench.stream_load import SteadyLoad
from bench.stream_memory import MemoryWatch, Peaks
from bench.stream_session import StreamSession, count_batches, last_progress, list_progress, wait_until
from bench.topics import settings_of
from penstock.kafka.metadata.topic_admin import create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
TARGET_S = 1.0
TOLERANCE = 0.2
MOST_BATCHES = 6
_IN_A_ROW = 3
_TICK_S = 0.05
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Phase:
    """A phase of a run. `load` and `sink` are rates in records a second: written, and taken by the sink."""

    name: str
    load: float
    sink: float


CALM, SURGE, FAST, SLOW = 400.0, 4_000.0, 3_000.0, 600.0
PHASES = (
    Phase("calm", CALM, FAST),
    Phase("load x10", SURGE, FAST),
    Phase("sink 5x slower", SURGE, SLOW),
    Phase("load back", CALM, SLOW),
    Phase("sink back", CALM, FAST),
)


@dataclass(frozen=True)
class Batch:
    """One finished batch; times in seconds since the load began."""

    number: int
    phase: str
    begun_s: float
    took_s: float
    rows: int
    lag: int
    rate: float | None  # what pacing allows, records a second; None for the static cap

    @property
    def was_limited(self) -> bool:
        """Return whether it left as much behind as it took: then the target determined its length."""
        return self.lag >= self.rows


@dataclass(frozen=True)
class Run:
    """The results of one run."""

    batches: Sequence[Batch]
    steps: Mapping[str, float]  # phase -> when it began
    memory: Mapping[str, Peaks]
    drained: bool


def count_until_settled(durations_s: Sequence[float], target_s: float) -> int | None:
    """Return how many batches it took until three in a row were within the tolerance, or None if never.

    With fewer than three batches, all of them must be. The first batch counts 1.

    >>> count_until_settled([5.0, 0.85, 0.98, 1.02, 1.4], 1.0)
    2
    """
    good = [abs(each - target_s) <= TOLERANCE * target_s for each in durations_s]
    for first in range(len(good)):
        row = good[first : first + _IN_A_ROW]
        if all(row) and (len(row) == _IN_A_ROW or first == 0):
            return first + 1
    return None


def run_backpressure(session: StreamSession, bootstrap: str, *, seconds: float) -> dict[str, Run]:
    """Return both runs, made one after the other, because each needs the whole machine."""
    from penstock.listener import QueryListener

    listener = QueryListener()
    session.spark.streams.addListener(listener)
    paced = {
        "backpressure.enabled": "true",
        "backpressure.initialRate": "1000",
        "targetBatchDuration": f"{TARGET_S:g}s",
    }
    sides = {"backpressure": paced, "static cap": {"maxOffsetsPerTrigger": str(round(FAST * TARGET_S))}}
    try:
        return {
            name: _run_side(session, bootstrap, name.replace(" ", "-"), options, seconds)
            for name, options in sides.items()
        }
    finally:
        session.spark.streams.removeListener(listener)


def _run_side(
    session: StreamSession, bootstrap: str, topic: str, options: Mapping[str, str], seconds: float
) -> Run:
    create_topic(settings_of(bootstrap), topic, partitions=PARTITIONS)
    sink = _Sink(PHASES[0].sink)
    frame = session.stream("penstock", bootstrap, topic, startingOffsets="latest", **options)
    steps: dict[str, float] = {}
    with (
        SteadyLoad(bootstrap, topic, partitions=PARTITIONS, rate=CALM, tick_s=_TICK_S) as load,
        session.run(frame.writeStream.foreachBatch(sink.take)) as query,
        MemoryWatch() as memory,
    ):
        # The first batches start Spark's Python processes; nothing is judged before they are there.
        if not wait_until(query, lambda: count_batches(query) > 5, _PATIENCE_S):
            raise TimeoutError(f"{topic}: no five batches within {_PATIENCE_S:g} s")
        began = time.time()
        for phase in PHASES:
            steps[phase.name] = time.time() - began if steps else 0.0
            load.set_rate(phase.load)
            sink.rate = phase.sink
            memory.begin(phase.name)
            time.sleep(seconds)
        drained = wait_until(query, lambda: _lag(last_progress(query)) <= 2 * CALM * TARGET_S, _PATIENCE_S)
        batches = [_describe(each, began, steps) for each in list_progress(query) if each["numInputRows"]]
    return Run([each for each in batches if each.begun_s >= 0], steps, memory.peaks, drained)


class _Sink:
    """A sink that takes a fixed time for each record. `rate` may be changed while it runs."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._slept = threading.Event()  # never set: its `wait` is a sleep

    def take(self, batch: DataFrame, number: int) -> None:
        self._slept.wait(batch.count() / self.rate)


def _describe(progress: Mapping[str, Any], began: float, steps: Mapping[str, float]) -> Batch:
    begun_s = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp() - began
    pace = _reported(progress).get("pace")
    return Batch(
        number=progress["batchId"],
        phase=[name for name, at in steps.items() if at <= max(0.0, begun_s)][-1],
        begun_s=round(begun_s, 3),
        took_s=progress["durationMs"]["triggerExecution"] / 1000,
        rows=progress["numInputRows"],
        lag=_lag(progress),
        rate=None if pace is None else pace["recordsPerSecond"],
    )


def _reported(progress: Mapping[str, Any]) -> dict[str, Any]:
    reported = progress["sources"][0]["latestOffset"]
    return reported if isinstance(reported, dict) else {}


def _lag(progress: Mapping[str, Any] | None) -> int:
    """Return how many records waited behind a batch when it was planned."""
    return 0 if progress is None else int(_reported(progress)["lag"]["records"])


# --- the report -------------------------------------------------------------------------------------------


def print_run(name: str, run: Run) -> None:
    print(f"\n== backpressure: {name}")
    print("   batch   begun s   phase             rows    allowed/s      lag   took s")
    for each in run.batches:
        allowed = "-" if each.rate is None else f"{each.rate:.0f}"
        print(
            f"  {each.number:6} {each.begun_s:9.1f}   {each.phase:<15} {each.rows:6} {allowed:>12} "
            f"{each.lag:8} {each.took_s:8.2f}"
        )
    for process, peaks in run.memory.items():
        print(f"  memory of the {process:<14} " + "  ".join(f"{at} {mib:.0f}" for at, mib in peaks.items()))


def judge(run: Run) -> dict[str, object]:
    """Print each goal as met or MISSED, and return the figures behind them."""
    found: dict[str, object] = {}
    for step in list(run.steps)[1:]:
        limited = [each.took_s for each in run.batches if each.phase == step and each.was_limited]
        settled = count_until_settled(limited, TARGET_S)
        found[step] = {"limited batches": len(limited), "settled at": settled}
        if not limited:
            print(f"  after `{step}`: no batch had more to do than it took; nothing to settle")
            continue
        later = limited[settled - 1 :] if settled else []
        within = sum(abs(each - TARGET_S) <= TOLERANCE * TARGET_S for each in later)
        verdict = "met" if settled is not None and settled <= MOST_BATCHES else "MISSED"
        print(
            f"  after `{step}`: settled at batch {settled} of {len(limited)}, {within} of {len(later)} from "
            f"there on within {TOLERANCE:.0%}  goal {MOST_BATCHES}: {verdict}"
        )
    print(f"  backlog gone at the end: {'met' if run.drained else 'MISSED'}")
    for process, peaks in run.memory.items():
        calm, highest = peaks[PHASES[0].name], max(peaks.values())
        flat = highest <= calm * 1.1
        found[f"memory of the {process}"] = {"calm": calm, "highest": highest}
        print(
            f"  memory of the {process}: {calm:.0f} MiB when calm, at most {highest:.0f} MiB later  "
            f"goal within 10 %: {'met' if flat else 'MISSED'}"
        )
    return found


def keep(runs: Mapping[str, Run], picture: Path | None) -> dict[str, object]:
    """Return the runs as data, and draw them if a picture is wanted."""
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(draw(runs))
    return {
        name: {**asdict(run), "judged": judge(run) if name == "backpressure" else {}}
        for name, run in runs.items()
    }


def draw(runs: Mapping[str, Run]) -> str:
    columns = []
    for name, run in runs.items():
        done = [(each.begun_s + each.took_s, each) for each in run.batches]
        charts = [
            Chart(
                "batch time, s",
                [Line("batch time", "#1f5fa8", [(at, each.took_s) for at, each in done], dots=True)],
                band=(TARGET_S * (1 - TOLERANCE), TARGET_S * (1 + TOLERANCE)),
            ),
            Chart(
                "records/s",
                [
                    Line("load", "#888888", _draw_load(run)),
                    Line("processed", "#1f5fa8", [(at, each.rows / each.took_s) for at, each in done]),
                ],
            ),
            Chart("records waiting", [Line("lag", "#b3382c", [(at, each.lag) for at, each in done])]),
        ]
        columns.append(Column(name, charts, [(at, step) for step, at in run.steps.items()]))
    return draw_page("Backpressure against a static cap: the same load, the same sink", columns)


def _draw_load(run: Run) -> list[tuple[float, float]]:
    """Return a line with steps: each phase's load from its beginning to that of the next one."""
    begins = [run.steps[each.name] for each in PHASES]
    last = max([begins[-1], *(each.begun_s + each.took_s for each in run.batches)])
    ends = [*begins[1:], last]
    return [(at, phase.load) for phase, *span in zip(PHASES, begins, ends, strict=True) for at in span]
