"""Measures the access-log application under a live load: how soon it blocks, and if it keeps up with a flood.

The load is written in columns by a thread of this process, a tenth of a second's lines at a time, keyed by
client. Times are those of this computer: a record's timestamp is set when it is appended, and a ban counts
from the moment its file is in place.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.topics import settings_of
from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.simulation.traffic_simulation import Simulation, SimulationSettings
from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.cluster import LocalKafka
from penstock.cluster.processes.python_launcher import make_launcher
from penstock.kafka.metadata.topic_admin import create_topic
from penstock.kafka.writing.plain_producer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, TOPIC = 4, "access-log"
LATENCY_RATE, FLOOD_RATE, FLOOD_CLIENTS = 5_000, 50_000, 100_000
_SLICES = 10


@dataclass
class Load:
    """A load of lines written as time passes; `times` records when each partition's offsets were appended."""

    bootstrap: str
    steps: Iterator[tuple[float, pa.Table]]
    times: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    lines: int = 0
    late_s: float = 0.0
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error
            raise

    def _run(self) -> None:
        began = time.monotonic()
        with Writer(settings_of(self.bootstrap)) as writer:
            for due_s, records in self.steps:
                wait_s = began + due_s - time.monotonic()
                self.late_s = max(self.late_s, -wait_s)
                if wait_s > 0:
                    time.sleep(wait_s)
                appended = time.time()
                written = writer.write(TOPIC, records)
                self.lines += written.records
                for partition, (_, until) in written.offsets.items():
                    self.times.setdefault(partition, []).append((until, appended))

    def find_time(self, partition: int, offset: int) -> float:
        ends = self.times[partition]
        at = int(np.searchsorted([until for until, _ in ends], offset, side="right"))
        return ends[at][1]


def simulate(rate: int, seconds: int) -> Iterator[tuple[float, pa.Table]]:
    settings = SimulationSettings(rate=rate, seconds=seconds, start_s=int(time.time()))
    for step in Simulation(settings).steps(slices=_SLICES):
        for each in step.servers:
            keys, values = each.clients.cast(pa.binary()), each.lines.cast(pa.binary())
            yield step.due_s, pa.table({"key": keys, "value": values})


def flood(rate: int, clients: int, seconds: int) -> Iterator[tuple[float, pa.Table]]:
    """Yield requests for the same page from this many addresses, as a botnet sends them."""
    dice = np.random.default_rng(7)
    numbers = dice.choice(1 << 24, clients, replace=False)
    names = pa.array([f"{11 + n % 80}.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in numbers.tolist()])
    tail = ' "GET /?q=1 HTTP/1.1" 200 5120 "-" "Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101"'
    count = rate // _SLICES
    for slice_number in range(seconds * _SLICES):
        stamp = time.strftime("[%d/%b/%Y:%H:%M:%S +0000]", time.gmtime())
        chosen = names.take(pa.array(dice.integers(0, clients, count)))
        values = pc.binary_join_element_wise(chosen, f" - - {stamp}{tail}", "")
        keys = chosen.cast(pa.binary())
        yield slice_number / _SLICES, pa.table({"key": keys, "value": values.cast(pa.binary())})


def start_spark(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = make_launcher()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    return builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()


def run_live(
    kafka: LocalKafka,
    folder: Path,
    make_steps: Callable[[], Iterator[tuple[float, pa.Table]]],
    hear: Callable[[BatchNews, Pipeline, Load], None],
    *,
    warm_lines: Iterator[tuple[float, pa.Table]],
) -> Load:
    """Start the pipeline, warm it up with some lines, send the load, and return it when all is published."""
    create_topic(settings_of(kafka.bootstrap), TOPIC, partitions=PARTITIONS)
    spark = start_spark(folder)
    database = folder / "results.db"
    create_tables(str(database))
    warm = Load(kafka.bootstrap, ((0.0, records) for _, records in warm_lines))
    warm.run()
    settings = PipelineSettings(TOPIC, str(database), {"bootstrap.servers": kafka.bootstrap})
    pipeline = Pipeline(spark, settings)
    load = Load(kafka.bootstrap, iter(()))
    writing = threading.Thread(target=load.run, daemon=True)
    taken = [0]

    def listen(news: BatchNews) -> None:
        taken[0] += news.lines
        if taken[0] >= warm.lines and writing.ident is None:
            load.steps = make_steps()
            writing.start()
        elif writing.ident is not None:
            hear(news, pipeline, load)
            if not writing.is_alive() and taken[0] >= warm.lines + load.lines and not news.pending:
                pipeline.stop()

    pipeline.add_listener(listen).run()
    writing.join()
    spark.stop()
    if load.failure is not None:
        raise load.failure
    return load


def run_latency(kafka: LocalKafka, folder: Path, seconds: int) -> dict[str, Any]:
    seen: list[float] = []
    blocklists = folder / "blocklists"
    writer: list[BlocklistWriter] = []

    def hear(news: BatchNews, pipeline: Pipeline, load: Load) -> None:
        if not writer:
            writer.append(BlocklistWriter(folder / "results.db", blocklists, Gate.of()))
        writer[0].refresh(has_new_decisions=bool(news.decisions.num_rows))
        listed_at = time.time()
        rows = news.decisions.select(["partition", "offset", "action"]).to_pylist()
        for row in rows:
            if row["action"] == "block" and load.times.get(row["partition"]):
                first = load.times[row["partition"]][0][0]
                if row["offset"] >= first:
                    seen.append(listed_at - load.find_time(row["partition"], row["offset"]))

    load = run_live(
        kafka, folder, lambda: simulate(LATENCY_RATE, seconds), hear, warm_lines=simulate(LATENCY_RATE, 5)
    )
    ordered = sorted(seen)
    p50, p95 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    verdict = "met" if p95 <= 5.0 else "MISSED"
    print(f"\n== latency: {load.lines:,} lines at {LATENCY_RATE:,} lines/s, {len(seen)} bans")
    print(
        f"  append to blocklist: p50 {p50:.2f} s, p95 {p95:.2f} s, most {ordered[-1]:.2f} s"
        f"  goal 5: {verdict}"
    )
    print(f"  the load was at most {load.late_s:.2f} s behind its own clock")
    return {
        "rate": LATENCY_RATE,
        "lines": load.lines,
        "bans": len(seen),
        "seconds": [round(s, 3) for s in ordered],
    }


def run_flood(kafka: LocalKafka, folder: Path, seconds: int) -> dict[str, Any]:
    moments: list[dict[str, float]] = []
    began = time.monotonic()

    def hear(news: BatchNews, pipeline: Pipeline, load: Load) -> None:
        moments.append(
            {
                "second": round(time.monotonic() - began, 1),
                "lines": news.lines,
                "lag": pipeline.measure_lag(),
                "batch_s": round(news.report.processing_ms / 1000, 2),
                **measure_memory_mib(),
                "subjects": news.subjects,
            }
        )

    load = run_live(
        kafka,
        folder,
        lambda: flood(FLOOD_RATE, FLOOD_CLIENTS, seconds),
        hear,
        warm_lines=flood(FLOOD_RATE, FLOOD_CLIENTS, 2),
    )
    half = len(moments) // 2
    print(f"\n== flood: {load.lines:,} lines at {FLOOD_RATE:,} lines/s from {FLOOD_CLIENTS:,} clients")
    for each in moments[:: max(1, len(moments) // 20)]:
        print("  " + "  ".join(f"{name} {value:g}" for name, value in each.items()))
    for kind in ("python_mib", "jvm_mib"):
        most = [max(each[kind] for each in part) for part in (moments[:half], moments[half:])]
        print(f"  {kind}: most {most[0]:.0f} in the first half, {most[1]:.0f} in the second")
    most_lag, last_lag = max(each["lag"] for each in moments), moments[-1]["lag"]
    verdict = "drained" if last_lag == 0 else "NOT DRAINED"
    print(f"  lag: most {most_lag:,.0f} lines, at the end {last_lag:,.0f}: {verdict}")
    print(f"  the load was at most {load.late_s:.2f} s behind its own clock")
    return {"rate": FLOOD_RATE, "clients": FLOOD_CLIENTS, "lines": load.lines, "moments": moments}


def measure_memory_mib() -> dict[str, float]:
    """Return the memory of this program with its workers, and of its JVM; shared pages count once.

    Kafka is left out.
    """
    tree = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True, timeout=10
    ).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in tree]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}
    held = {"python_mib": 0, "jvm_mib": 0}
    for pid, _, command in rows:
        if "kafka.Kafka" in command or not _descends(int(pid), parents):
            continue
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # ended meanwhile
        kind = "jvm_mib" if command.split()[0].endswith("java") else "python_mib"
        held[kind] += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return {kind: round(kib / 1024, 1) for kind, kib in held.items()}


def _descends(pid: int, parents: dict[int, int]) -> bool:
    own = int(Path("/proc/self").readlink().name)
    while pid and pid != own:
        pid = parents.get(pid, 0)
    return pid == own
