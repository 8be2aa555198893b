"""Compares reads through Spark: Penstock against Spark's own JVM connector, default and tuned.

    python -m bench.read                  # all cases
    python -m bench.read all-100 value    # some of them
    python -m bench.read --runs 5 --save docs/proof/bench-read.json

Every side reads the same topic into the `noop` sink of one `local[2]` session; sides take turns. `floor` is
what no Python source can beat: the same rows as ready-made Arrow batches, without Kafka (see `bench.floor`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.sampling import Samples, describe_machine, print_ratios, save, take_turns
from bench.topics import Load, fill
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka
from penstock.cluster.downloads.jvm_connector import fetch_connector
from penstock.cluster.processes.python_launcher import make_launcher
from penstock.kafka.records import codecs

TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.receive.buffer.bytes": "1048576",
}
PACKAGES = ("pyspark", "pyarrow", "numba", "numpy", "cramjam", "crc32c", "kafka-python")


@dataclass(frozen=True)
class Case:
    """One comparison. `columns` is our option; the peer selects the same columns after its read."""

    load: Load
    goal_default: float | None = None
    goal_tuned: float | None = None
    columns: str | None = None
    headers: bool = False
    sink: str = "noop"
    floor: bool = False
    cluster: str = "plain"  # or "tls", "three": which cluster it runs on


SMALL = Load("b-100", 5_000_000, 100)
CASES = {
    "all-100": Case(SMALL, 2.7, 1.6, floor=True),
    "value-100": Case(SMALL, 4.0, 2.3, columns="value", floor=True),
    "all-1k": Case(Load("b-1k", 1_000_000, 1000), 1.7, 1.2),
    "lz4-100": Case(Load("b-lz4", 5_000_000, 100, codec=codecs.LZ4), 2.5, 1.6),
    "zstd-100": Case(Load("b-zstd", 5_000_000, 100, codec=codecs.ZSTD), 2.5, 1.6),
    "snappy-100": Case(Load("b-snappy", 5_000_000, 100, codec=codecs.SNAPPY), 2.5, 1.6),
    "gzip-100": Case(Load("b-gzip", 5_000_000, 100, codec=codecs.GZIP), 2.5, 1.6),
    "headers-100": Case(Load("b-headers", 2_000_000, 100, headers=2), 2.0, headers=True),
    "all-10": Case(Load("b-10", 5_000_000, 10), None, 1.0),
    "all-1m": Case(Load("b-1m", 1_000, 1 << 20), None, 1.0),
    "group-by": Case(SMALL, sink="groupBy"),
    "parquet": Case(SMALL, sink="parquet"),
    "tls": Case(Load("b-tls", 2_000_000, 100), cluster="tls"),
    "three-brokers": Case(Load("b-three", 2_000_000, 100, partitions=6), cluster="three"),
}


class SparkSides:
    """One session that can read through either connector."""

    def __init__(self, bootstrap: str, folder: Path, security: dict[str, str] | None = None) -> None:
        os.environ["PYSPARK_PYTHON"] = make_launcher()
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        from pyspark.sql import SparkSession

        jars = ",".join(str(jar) for jar in fetch_connector(ProgressBar("Fetching Spark's own connector")))
        self.bootstrap, self.folder, self.security = bootstrap, folder, security or {}
        self.spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", jars)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")

    def read(self, form: str, case: Case, options: dict[str, str]) -> Callable[[], None]:
        def run() -> None:
            reader = self.spark.read.format(form).options(**options, **self.security)
            frame = reader.option("kafka.bootstrap.servers", self.bootstrap).option(
                "subscribe", case.load.name
            )
            frame = frame.option("includeHeaders", "true") if case.headers else frame
            rows = frame.load()
            self.finish(rows.select("value") if case.columns == "value" and form == "kafka" else rows, case)

        return run

    def finish(self, rows: object, case: Case) -> None:
        if case.sink == "groupBy":
            counted = rows.groupBy("key").count().collect()  # type: ignore[attr-defined]
            assert sum(each["count"] for each in counted) == case.load.records
        elif case.sink == "parquet":
            rows.write.mode("overwrite").parquet(str(self.folder / "out"))  # type: ignore[attr-defined]
        else:
            rows.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]

    def sides(self, case: Case) -> dict[str, Callable[[], None]]:
        ours = {"columns": case.columns} if case.columns else {}
        sides = {
            "penstock": self.read("penstock", case, ours),
            "default": self.read("kafka", case, {}),
            "tuned": self.read("kafka", case, TUNED),
        }
        if case.floor:
            sides["floor"] = self._floor(case, hot=False)
            sides["hot floor"] = self._floor(case, hot=True)
        return sides

    def _floor(self, case: Case, *, hot: bool) -> Callable[[], None]:
        from bench.floor import register_floor, save_batches

        register_floor(self.spark)
        folder = self.folder / f"floor-{case.load.name}"
        if not folder.exists():
            save_batches(self.bootstrap, case.load, folder)

        def run() -> None:
            reader = self.spark.read.format("floor").option("folder", str(folder))
            rows = reader.option("columns", case.columns or "").option("hot", str(hot).lower()).load()
            self.finish(rows, case)

        return run


def check_equal_counts(sides: SparkSides, case: Case) -> None:
    """Check that no row is lost: a fast reader that loses rows is not fast."""
    options = {"kafka.bootstrap.servers": sides.bootstrap, "subscribe": case.load.name, **sides.security}
    found = sides.spark.read.format("penstock").options(**options, columns="offset").load().count()
    assert found == case.load.records, (found, case.load.records)


def run_case(sides: SparkSides, plain: str, name: str, case: Case, runs: int) -> dict[str, Samples]:
    fill(plain, case.load)
    check_equal_counts(sides, case)
    samples = take_turns(sides.sides(case), runs=runs)
    goals = {"default": case.goal_default, "tuned": case.goal_tuned}
    print_ratios(
        f"{name}: {case.load.records} records of {case.load.value_bytes} B, {case.sink} sink",
        samples,
        "penstock",
        {side: goal for side, goal in goals.items() if goal is not None},
    )
    if "floor" in samples:
        over, hot = (samples["penstock"].median / samples[side].median for side in ("floor", "hot floor"))
        print(f"  penstock / floor = {over:.2f}  goal at most 1.3: {'met' if over <= 1.3 else 'MISSED'}")
        print(f"  penstock / hot floor = {hot:.2f}")
    return samples


class WorkerMemory:
    """The highest resident memory of any Python worker, sampled from /proc while the block runs."""

    def __enter__(self) -> WorkerMemory:
        self.peak_kb, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            for status in _worker_statuses():
                self.peak_kb = max(self.peak_kb, status)


def _worker_statuses() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                    for line in (entry / "status").read_text().splitlines():
                        if line.startswith("VmHWM"):
                            yield int(line.split()[1])
            except OSError:
                continue  # it ended while we looked


def measure_memory(sides: SparkSides) -> dict[str, float]:
    """Return a worker's peak for 5 and then for 20 million records, in workers that have read nothing before.

    The peak of the second read includes the first one's, so "within 10 %" is judged too strictly, if at all.
    """
    peaks = {}
    for millions in (5, 20):
        load = Load(f"b-memory-{millions}", millions * 1_000_000, 100)
        fill(sides.bootstrap, load)
        with WorkerMemory() as memory:
            sides.read("penstock", Case(load), {})()
        peaks[f"{millions} M records"] = memory.peak_kb / 1024
    small, large = peaks.values()
    print("\n== worker memory (highest resident size of any Python worker)")
    for name, mib in peaks.items():
        print(f"  {name:<14} {mib:.0f} MiB")
    met = large < 512 and large <= small * 1.1
    print(f"  goal: under 512 MiB and within 10 %: {'met' if met else 'MISSED'}")
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}, memory; default all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    wanted = arguments.cases or [*CASES, "memory"]
    machine = describe_machine(PACKAGES)
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    results: dict[str, object] = {}
    for cluster in ("plain", "memory", "tls", "three"):
        here = [name for name in wanted if (CASES[name].cluster if name in CASES else name) == cluster]
        if here:
            _run_on(cluster, here, arguments.runs, results)
    if arguments.save:
        save(arguments.save, machine, results)


def _run_on(cluster: str, names: list[str], runs: int, results: dict[str, object]) -> None:
    brokers = 3 if cluster == "three" else 1
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKafka(
            brokers, heap_mb=1024, secure=cluster == "tls", progress=ProgressBar("Fetching Kafka")
        ) as kafka,
    ):
        bootstrap, security = kafka.bootstrap, {}
        if cluster == "tls":
            bootstrap = kafka.secure.bootstrap("SSL")
            security = {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": str(kafka.secure.ca_pem_path),
            }
        sides = SparkSides(bootstrap, Path(folder), security)
        try:
            for name in names:
                if name == "memory":
                    results[name] = measure_memory(sides)
                else:
                    samples = run_case(sides, kafka.bootstrap, name, CASES[name], runs)
                    results[name] = {side: each.seconds for side, each in samples.items()}
        finally:
            sides.spark.stop()


if __name__ == "__main__":
    main()
