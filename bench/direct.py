"""Compares direct streams with Spark's own JVM connector: bulk, counts per key, tiny batches, cost of stores.

    python -m bench.direct                # all cases
    python -m bench.direct bulk keys      # some of them
    python -m bench.direct --runs 5 --save docs/proof/bench-direct.json

`bulk` reads 5 M records of 100 B, all columns, into `noop`; `floor` is the same rows as ready-made Arrow
batches through `mapInArrow`. `keys` counts the same records per key, here by a fused stage, there by
`groupBy`. `tiny` writes a record every 100 ms into each of 4 partitions, with offsets in SQLite, against a
query's `triggerExecution`. `stores` shows what keeping the offsets costs in such a batch, by store, beside
what its checkpoint costs a query (`walCommit` and `commitOffsets`). `source` compares a direct stream with
`format("penstock")`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.read import PACKAGES, SMALL, TUNED, Case, SparkSides
from bench.sampling import Samples, describe_machine, print_ratios, save, take_turns
from bench.stream_load import SteadyLoad
from bench.stream_session import StreamSession, end_jvm
from bench.stream_trickle import FOUR, list_durations, measure_turn
from bench.topics import fill, settings_of
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka
from penstock.direct import Batch, DirectStream, Subscribe
from penstock.kafka.metadata.topic_admin import create_topic

CASES = ("bulk", "keys", "source", "tiny", "stores")
_TICK_S = 0.1


def count_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a task's keys and how often each occurs; this is the fused stage."""
    counts = [pc.value_counts(batch.column("key")) for batch in batches]
    keys = pa.concat_arrays([each.field("values") for each in counts])
    numbers = pa.concat_arrays([each.field("counts") for each in counts])
    sums = pa.table({"key": keys, "n": numbers}).group_by("key").aggregate([("n", "sum")])
    yield from sums.rename_columns(["key", "n"]).combine_chunks().to_batches()


class DirectSides:
    """The direct stream's sides, which are measured in one session."""

    def __init__(self, sides: SparkSides) -> None:
        self.sides, self.spark = sides, sides.spark

    def stream(self, topic: str, **how: Any) -> DirectStream:
        kafka = {"bootstrap.servers": self.sides.bootstrap, "auto.offset.reset": "earliest"}
        return DirectStream(self.spark, Subscribe(topic), kafka, interval=0, **how)

    def into_noop(self) -> None:
        stream = self.stream(SMALL.name)
        stream.for_each_batch(lambda batch: batch.frame.write.format("noop").mode("overwrite").save())
        stream.run(batches=1)
        assert stream.reports[0].offsets == SMALL.records

    def by_key(self) -> None:
        counted: list[int] = []

        def work(batch: Batch) -> None:
            counted.append(sum(row[1] for row in batch.frame.groupBy("key").sum("n").collect()))

        stream = self.stream(SMALL.name, options={"columns": "key"})
        stream.arrow(count_keys, "key binary, n bigint").for_each_batch(work).run(batches=1)
        assert counted == [SMALL.records]

    def floor(self, folder: Path) -> Callable[[], None]:
        from bench.floor import save_batches

        place = folder / "direct-floor"
        save_batches(self.sides.bootstrap, SMALL, place)
        files = sorted(str(each) for each in place.iterdir())

        def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    ready = pa.ipc.open_file(pa.memory_map(files[number]))
                    for index in range(ready.num_record_batches):
                        yield ready.get_batch(index)

        schema = (
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
            "timestampType int"
        )

        def run() -> None:
            rows = self.spark.range(0, len(files), 1, numPartitions=len(files))
            rows.mapInArrow(hand_over, schema).write.format("noop").mode("overwrite").save()

        return run


def run_bulk(direct: DirectSides, folder: Path, runs: int) -> dict[str, Samples]:
    case = Case(SMALL)
    samples = take_turns(
        {
            "direct": direct.into_noop,
            "default": direct.sides.read("kafka", case, {}),
            "tuned": direct.sides.read("kafka", case, TUNED),
            "floor": direct.floor(folder),
        },
        runs=runs,
        warmups=4,  # the JVM of all sides is still getting faster in the first turns
    )
    print_ratios("bulk: 5 M records of 100 B into noop", samples, "direct", {"default": 3.0, "tuned": 1.8})
    over = samples["direct"].median / samples["floor"].median
    print(f"  direct / floor = {over:.2f}  goal at most 1.4: {'met' if over <= 1.4 else 'MISSED'}")
    return samples


def run_keys(direct: DirectSides, runs: int) -> dict[str, Samples]:
    case = Case(SMALL, sink="groupBy")
    samples = take_turns(
        {
            "direct": direct.by_key,
            "default": direct.sides.read("kafka", case, {}),
            "tuned": direct.sides.read("kafka", case, TUNED),
            "source": direct.sides.read("penstock", Case(SMALL, sink="groupBy"), {"columns": "key"}),
        },
        runs=runs,
        warmups=2,
    )
    print_ratios("keys: 5 M records counted per key", samples, "direct", {"tuned": 3.0})
    return samples


def run_source(direct: DirectSides, runs: int) -> dict[str, Samples]:
    samples = take_turns(
        {"direct": direct.into_noop, "source": direct.sides.read("penstock", Case(SMALL), {})}, runs=runs
    )
    print_ratios("source: direct stream against the data source", samples, "direct", {})
    return samples


# --- tiny batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TinyBatch:
    """The seconds of one batch: all of it, and the part that made its offsets durable."""

    whole: float
    storing: float


def measure_direct(
    bootstrap: str, topic: str, seconds: float, offsets: Callable[[Path], Any]
) -> list[TinyBatch]:
    """Return a direct stream's batches, after a warm-up as long as the measurement."""
    with StreamSession() as session:
        stream = DirectStream(
            session.spark,
            Subscribe(topic),
            {"bootstrap.servers": bootstrap, "group.id": f"bench-{time.time_ns()}"},
            interval=0,
            name="bench",
            offsets=offsets(session.folder),
            options={"minRecordsPerTask": 20_000},  # small ranges share a task, as in the source
        )
        took: list[tuple[float, TinyBatch]] = []

        def note(event: str, report: Any) -> None:
            if event == "completed":
                whole = report.planning_ms + report.processing_ms + report.storing_ms
                took.append((time.monotonic(), TinyBatch(whole / 1000, report.storing_ms / 1000)))

        stream.add_listener(note)
        stream.for_each_batch(lambda batch: batch.frame.write.format("noop").mode("overwrite").save())
        stream.start()
        began = time.monotonic()
        while time.monotonic() < began + 2 * seconds + 10:
            time.sleep(0.1)
        stream.stop()
        stream.await_termination(60)
    ends = took[-1][0]
    return [each for at, each in took if at >= ends - seconds]


def run_tiny(bootstrap: str, runs: int, seconds: float) -> dict[str, Samples]:
    topic = f"tiny-{time.time_ns()}"
    create_topic(settings_of(bootstrap), topic, partitions=4)
    medians: dict[str, list[float]] = {name: [] for name in ("direct", "default", "no wait", "source")}
    with SteadyLoad(bootstrap, topic, partitions=4, rate=4 / _TICK_S, tick_s=_TICK_S):
        for _ in range(runs):
            batches = measure_direct(bootstrap, topic, seconds, lambda folder: str(folder / "offsets.db"))
            medians["direct"].append(statistics.median(each.whole for each in batches))
            for name, side in (("default", "default"), ("no wait", "no wait"), ("source", "penstock")):
                medians[name].append(statistics.median(measure_turn(FOUR[side], bootstrap, topic, seconds)))
            print(
                "  " + "  ".join(f"{name} {values[-1]:.3f}" for name, values in medians.items()), flush=True
            )
    samples = {name: Samples(tuple(values)) for name, values in medians.items()}
    print_ratios(
        "tiny: 4 partitions, offsets in SQLite; a whole batch", samples, "direct", {"default": 1 / 0.6}
    )
    return samples


def run_stores(bootstrap: str, runs: int, seconds: float) -> dict[str, Samples]:
    topic = f"stores-{time.time_ns()}"
    create_topic(settings_of(bootstrap), topic, partitions=4)
    stores: dict[str, Callable[[Path], Any]] = {
        "memory": lambda folder: "memory:",
        "file": lambda folder: str(folder / "offsets"),
        "sqlite": lambda folder: str(folder / "offsets.db"),
        "kafka": lambda folder: "kafka",
    }
    sides = (*stores, "checkpoint")
    whole: dict[str, list[float]] = {name: [] for name in sides}
    storing: dict[str, list[float]] = {name: [] for name in sides}
    with SteadyLoad(bootstrap, topic, partitions=4, rate=4 / _TICK_S, tick_s=_TICK_S):
        for _ in range(runs):
            for name in sides:
                batches = (
                    measure_direct(bootstrap, topic, seconds, stores[name])
                    if name in stores
                    else measure_checkpoint(bootstrap, topic, seconds)
                )
                whole[name].append(statistics.median(each.whole for each in batches))
                storing[name].append(statistics.median(each.storing for each in batches))
                print(f"  {name:<12} batch {whole[name][-1]:.3f} s, of it storing {storing[name][-1]:.3f} s")
    print(
        "\n== stores: a whole tiny batch, by where its offsets are kept (sync), and the part that keeps them"
    )
    samples: dict[str, Samples] = {}
    for name in sides:
        samples[name], samples[f"{name}, storing"] = (
            Samples(tuple(whole[name])),
            Samples(tuple(storing[name])),
        )
        share = 100 * samples[f"{name}, storing"].median / samples[name].median
        print(f"  {name:<12} batch {samples[name]}")
        print(f"  {'':<12} store {samples[f'{name}, storing']}  {share:.0f} %")
    return samples


def measure_checkpoint(bootstrap: str, topic: str, seconds: float) -> list[TinyBatch]:
    """Return the batches of a query on our source, with what Spark says its checkpoint took in each."""
    durations = list_durations(FOUR["penstock"], bootstrap, topic, seconds)
    return [
        TinyBatch(each["triggerExecution"] / 1000, (each["walCommit"] + each["commitOffsets"]) / 1000)
        for each in durations
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; default all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each tiny turn")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    wanted = given.cases or CASES
    machine = describe_machine(PACKAGES)
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    results: dict[str, dict[str, Samples]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka,
    ):
        if {"bulk", "keys", "source"} & set(wanted):
            fill(kafka.bootstrap, SMALL)
            sides = SparkSides(kafka.bootstrap, Path(folder))
            direct = DirectSides(sides)
            try:
                if "bulk" in wanted:
                    results["bulk"] = run_bulk(direct, Path(folder), given.runs)
                if "keys" in wanted:
                    results["keys"] = run_keys(direct, given.runs)
                if "source" in wanted:
                    results["source"] = run_source(direct, given.runs)
            finally:
                sides.spark.stop()
                end_jvm()
        if "tiny" in wanted:
            results["tiny"] = run_tiny(kafka.bootstrap, given.runs, given.seconds)
        if "stores" in wanted:
            results["stores"] = run_stores(kafka.bootstrap, given.runs, given.seconds)
    if given.save:
        plain = {case: {side: each.seconds for side, each in some.items()} for case, some in results.items()}
        save(given.save, machine, plain)


if __name__ == "__main__":
    main()
