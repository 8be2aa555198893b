"""Compares streams through Spark: Penstock against Spark's own JVM connector.

    python -m bench.stream                             # all cases
    python -m bench.stream trickle-4 latency           # some of them
    python -m bench.stream --runs 5 --save docs/proof/bench-stream.json --plot docs/proof/backpressure.svg

    available-now   5 M records of 100 B in one run of the trigger `availableNow`, noop sink
    trickle-4       a record into each of 4 partitions every 100 ms: how long a micro-batch takes
    trickle-200     the same with 200 partitions
    latency         1,000 records/s: how old a record is when a `foreachBatch` sink has it
    json            5 M JSON documents grouped by a field, decoded to typed columns (a batch read)
    backpressure    load and sink change; paced batches against a static cap

`--records` and `--seconds` make the cases small enough to try them; figures come from the defaults. A missed
goal is printed as MISSED and changes nothing else.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.read import PACKAGES, TUNED
from bench.sampling import Samples, describe_machine, print_ratios, save
from bench.stream_session import FORMATS, StreamSession, list_progress
from bench.topics import Load, fill
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka

#: A heap that is there from the beginning, so that growth is a leak and not Java taking what it was given.
_WHOLE_HEAP = "-Xms1g -XX:+AlwaysPreTouch"
_END_S = 600
#: This many because Java compiles the path of rows from Python over several runs of a few seconds each.
_WARM_UPS = 4


@dataclass(frozen=True)
class Sizes:
    """The amount of work in each case."""

    runs: int
    records: int
    seconds: float
    plot: Path | None


def measure_available_now(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    load = Load("s-100", sizes.records, 100)
    fill(bootstrap, load)
    with StreamSession() as session:

        def run(side: str, options: Mapping[str, str]) -> tuple[float, float]:
            """Return the seconds from `start()` to the end, and how many of them lie outside the batches.

            `load()`, which only looks at options, comes before that.
            """
            frame = session.stream(FORMATS[side], bootstrap, load.name, startingOffsets="earliest", **options)
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            began = time.perf_counter()
            with session.run(writer) as query:
                if not query.awaitTermination(_END_S):
                    raise TimeoutError(f"{side}: the query has not ended within {_END_S} s")
                seconds = time.perf_counter() - began
                batches = list_progress(query)
            found = sum(each["numInputRows"] for each in batches)
            assert found == load.records, (side, found)
            return seconds, seconds - sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000

        settings = {"penstock": {}, "default": {}, "tuned": TUNED}
        taken: dict[str, list[float]] = {side: [] for side in settings}
        outside: dict[str, list[float]] = {side: [] for side in settings}
        for turn in range(_WARM_UPS + sizes.runs):
            for side, options in settings.items():
                seconds, before = run(side, options)
                if turn >= _WARM_UPS:
                    taken[side].append(seconds)
                    outside[side].append(before)
    samples = {side: Samples(tuple(each)) for side, each in taken.items()}
    print_ratios(
        f"available-now: {load.records} records of 100 B, noop sink",
        samples,
        "penstock",
        {"default": 2.7, "tuned": 1.6},
    )
    for side, each in outside.items():
        print(f"  {side:<18} {statistics.median(each):6.2f} s of it outside of batches: start and end")
    inside = {
        side: Samples(tuple(whole - before for whole, before in zip(each, outside[side], strict=True)))
        for side, each in taken.items()
    }
    # Spark starts a Python process for a stream's reader, once for each start of a query: see the README.
    print_ratios("available-now: the batch alone (triggerExecution)", inside, "penstock", {})
    return {**_raw(samples), "outside of batches": outside}


def measure_trickle_4(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    from bench.stream_trickle import FOUR, run_trickle

    print("\n-- trickle-4: turns", flush=True)
    samples = run_trickle(bootstrap, 4, FOUR, runs=sizes.runs, seconds=sizes.seconds)
    print_ratios("trickle-4: median micro-batch, 4 partitions", samples, "penstock", {})
    over = samples["penstock"].median / samples["default"].median
    print(f"  penstock / default = {over:.2f}  goal at most 1.15: {'met' if over <= 1.15 else 'MISSED'}")
    return _raw(samples)


def measure_trickle_200(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    from bench.stream_trickle import MANY, run_trickle

    print("\n-- trickle-200: turns", flush=True)
    samples = run_trickle(bootstrap, 200, MANY, runs=sizes.runs, seconds=sizes.seconds)
    print_ratios("trickle-200: median micro-batch, 200 partitions", samples, "penstock", {})
    better = min(samples["cache 64"].median, samples["cache 256"].median) / samples["penstock"].median
    print(f"  better cache / penstock = {better:.1f}  goal 30: {'met' if better >= 30 else 'MISSED'}")
    return _raw(samples)


def measure_latency(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    from bench.stream_latency import run_latency

    print("\n-- latency: turns", flush=True)
    with StreamSession() as session:
        found = run_latency(session, bootstrap, runs=max(1, sizes.runs), seconds=sizes.seconds)
    for point in ("p50", "p99"):
        samples = {side: Samples(tuple(points[point])) for side, points in found.items()}
        print_ratios(f"latency: {point} from a record's time to the sink", samples, "penstock", {})
    return dict(found)


def measure_json(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    from bench.stream_json import run_json

    load = Load("s-json", sizes.records, 100)
    with StreamSession() as session:
        samples = run_json(session, bootstrap, load, runs=sizes.runs)
    print_ratios(
        f"json: {load.records} documents to typed columns, grouped by status, equal results",
        samples,
        "penstock",
        {"tuned": 2.0},
    )
    return _raw(samples)


def measure_backpressure(bootstrap: str, sizes: Sizes) -> dict[str, object]:
    from bench.stream_backpressure import keep, print_run, run_backpressure

    with StreamSession(java_options=_WHOLE_HEAP, memory="1g") as session:
        runs = run_backpressure(session, bootstrap, seconds=sizes.seconds)
    for name, run in runs.items():
        print_run(name, run)
    medians = {name: statistics.median(each.took_s for each in run.batches) for name, run in runs.items()}
    longest = {name: max(each.took_s for each in run.batches) for name, run in runs.items()}
    print("\n== backpressure: the goals")
    for name in runs:
        print(f"  {name:<14} median batch {medians[name]:.2f} s, longest {longest[name]:.2f} s")
    return keep(runs, sizes.plot)


def _raw(samples: Mapping[str, Samples]) -> dict[str, object]:
    return {side: each.seconds for side, each in samples.items()}


CASES = {
    "available-now": measure_available_now,
    "trickle-4": measure_trickle_4,
    "trickle-200": measure_trickle_200,
    "latency": measure_latency,
    "json": measure_json,
    "backpressure": measure_backpressure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="case", help="default all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=5_000_000, help="of available-now and json")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of a turn, or of a phase of backpressure"
    )
    parser.add_argument("--save", type=Path)
    parser.add_argument("--plot", type=Path, help="where to draw backpressure, an SVG")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as an error: everything that was started is ended
    machine = describe_machine(PACKAGES)
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    sizes = Sizes(arguments.runs, arguments.records, arguments.seconds, arguments.plot)
    results: dict[str, object] = {}
    for name in arguments.cases or CASES:
        # Each case gets its own cluster, so that it does not meet what another one left behind.
        with LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka:
            results[name] = CASES[name](kafka.bootstrap, sizes)
        if arguments.save:
            save(
                arguments.save, machine, results
            )  # after each case: a later one that fails costs only itself


if __name__ == "__main__":
    main()
