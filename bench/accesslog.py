"""Measures the access-log application: how well it finds attackers, how fast it is, how soon it blocks.

    python -m bench.accesslog                    # all cases
    python -m bench.accesslog goals throughput   # some of them
    python -m bench.accesslog --save docs/proof/bench-accesslog.json

`goals` runs real labelled logs (../shared/data, or PENSTOCK_ACCESSLOG_DATA) through `replay` and `classify`,
and shows what the known rule sets reach on them. `throughput` takes a million combined lines from Kafka to
committed SQLite on `local[2]`, against GoAccess reading the same lines from a file and against the monitoring
alone, as usually written with Spark's own connector; then it takes each stage alone on one core. `latency`
measures, at 5,000 lines/s, the time from the append of the line that decides to the entry in the blocklist.
`flood` sends 50,000 lines/s from 100,000 clients for two minutes, and shows memory and lag, batch by batch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.accesslog_goals import run_goals
from bench.accesslog_live import run_flood, run_latency
from bench.accesslog_peer import monitor
from bench.goaccess import fetch_goaccess, read_version, time_goaccess
from bench.read import PACKAGES, TUNED, SparkSides
from bench.sampling import Samples, describe_machine, print_ratios, save, take_turns
from bench.topics import settings_of
from penstock.apps.accesslog.defence.behaviour_fold import fold_lane
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.events.line_events import make_events
from penstock.apps.accesslog.events.log_clocks import Clocks
from penstock.apps.accesslog.monitoring.load_counting import count_load
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.simulation.traffic_simulation import Simulation, SimulationSettings
from penstock.apps.accesslog.stream.line_stage import CHUNK_LINES
from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.apps.accesslog.texts.text_grouping import group_lines
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka
from penstock.core.errors import ClusterError
from penstock.kafka.metadata.topic_admin import create_topic
from penstock.kafka.writing.plain_producer import Writer
from penstock.kernels.newline_cutting import cut_lines

CASES = ("goals", "throughput", "latency", "flood")
TOPIC, PARTITIONS, LINES = "access-log", 4, 1_000_000
_RATE = 5_000
#: A pipeline runs for days, so it is measured when the JVM has compiled what it runs, and so are its peers.
_WARMUPS = 4


def make_log(lines: int) -> tuple[bytes, pa.Table]:
    """Return simulated lines in the combined format, as a file's text and as records keyed by client."""
    simulation = Simulation(SimulationSettings(rate=_RATE, seconds=lines // _RATE + 30, with_latency=False))
    texts, clients, left = [], [], lines
    for step in simulation.steps(slices=1):
        for each in step.servers:
            texts.append(each.lines.slice(0, left))
            clients.append(each.clients.slice(0, left))
            left -= len(texts[-1])
    assert left == 0, f"{left} lines are missing"
    values = pa.concat_arrays([each.cast(pa.binary()) for each in texts])
    keys = pa.concat_arrays([each.cast(pa.binary()) for each in clients])
    # GoAccess ends at a line it cannot read only if it is among the first; broken lines stay for both.
    text = b"\n".join(values.to_pylist()) + b"\n"
    return text, pa.table({"key": keys, "value": values})


def run_throughput(kafka: LocalKafka, folder: Path, runs: int, lines: int) -> dict[str, Any]:
    text, records = make_log(lines)
    log = folder / "access.log"
    log.write_bytes(text)
    settings = settings_of(kafka.bootstrap)
    create_topic(settings, TOPIC, partitions=PARTITIONS)
    with Writer(settings) as writer:
        for at in range(0, records.num_rows, 50_000):
            writer.write(TOPIC, records.slice(at, 50_000))
    spark = SparkSides(kafka.bootstrap, folder)
    bare: dict[str, Callable[[], object]] = {
        "penstock": lambda: run_pipeline(spark.spark, kafka.bootstrap, folder, lines),
        "tuned": lambda: _expect(lines, monitor(spark.spark, kafka.bootstrap, TOPIC, TUNED)),
        "default": lambda: _expect(lines, monitor(spark.spark, kafka.bootstrap, TOPIC, {})),
    }
    versions = {}
    try:
        goaccess = fetch_goaccess()
        versions["goaccess"] = read_version(goaccess)
        bare["goaccess"] = lambda: time_goaccess(goaccess, log)
    except ClusterError as error:
        print(f"  without GoAccess: {error}")
    samples = take_turns(bare, runs=runs, warmups=_WARMUPS)
    print_ratios(
        f"throughput: {lines:,} combined lines, {len(text) >> 20} MiB", samples, "penstock",
        {"goaccess": 8.0, "tuned": 3.0},
    )  # fmt: skip
    for name, each in samples.items():
        print(f"  {name:<18} {lines / each.median:>12,.0f} lines/s")
    spark.spark.stop()
    return {"versions": versions, "lines": lines, **_keep(samples), "stages": time_stages(text, runs)}


def _expect(lines: int, counted: int) -> None:
    assert counted == lines, f"{counted} lines of {lines}"


def run_pipeline(spark: Any, bootstrap: str, folder: Path, lines: int) -> None:
    """Run from Kafka to committed SQL in a new database, until the batch with the last line is published."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        database = Path(place) / "results.db"
        create_tables(str(database))
        settings = PipelineSettings(
            TOPIC, str(database), {"bootstrap.servers": bootstrap}, interval="0s", idle_after=None
        )
        pipeline = Pipeline(spark, settings)
        seen: list[BatchNews] = []

        def hear(news: BatchNews) -> None:
            seen.append(news)
            if sum(each.lines for each in seen) >= lines:
                pipeline.stop()

        pipeline.add_listener(hear).run()
        assert sum(each.parsed + each.dead for each in seen) == lines


def time_stages(text: bytes, runs: int) -> dict[str, Any]:
    """Return how long each stage takes over the same lines in this process, on one core."""
    values = cut_lines(text)[0].cast(pa.binary())
    chunks = [values.slice(at, CHUNK_LINES) for at in range(0, len(values), CHUNK_LINES)]
    settings = PipelineSettings("t", "unused.db", {"bootstrap.servers": "localhost:1"})
    tools = settings.tools
    parser, detector = make_parser(), Detector(tools.defence.ruleset)
    parsed = [parser.parse(each) for each in chunks]
    grouped = [group_lines(each) for each in parsed]
    found = [detector.detect(each, texts) for each, texts in zip(parsed, grouped, strict=True)]

    def events() -> list[dict[int, pa.RecordBatch]]:
        return [
            make_events(
                lines, findings, tools.defence.ruleset, partition=number,
                offsets=np.arange(len(chunk), dtype=np.int64), lanes=tools.defence.lanes, grouped=texts,
            )
            for number, (chunk, lines, texts, findings) in enumerate(
                zip(chunks, parsed, grouped, found, strict=True)
            )
        ]  # fmt: skip

    made = events()

    samples = take_turns(
        {
            "parse": lambda: [parser.parse(each) for each in chunks],
            "group": lambda: [group_lines(each) for each in parsed],
            "detect": lambda: [
                detector.detect(each, texts) for each, texts in zip(parsed, grouped, strict=True)
            ],
            "events": events,
            "fold": lambda: fold_all(made, tools.defence),
            "monitor": lambda: [
                count_load(each, servers=None, grouped=texts)
                for each, texts in zip(parsed, grouped, strict=True)
            ],
        },
        runs=runs,
        warmups=1,
    )
    print("\n== stages, one core each")
    for name, each in samples.items():
        print(f"  {name:<18} {each}  {len(values) / each.median:>12,.0f} lines/s")
    return _keep(samples)


def fold_all(made: list[dict[int, pa.RecordBatch]], settings: DefenceSettings) -> None:
    """Fold each lane from its beginning to its state as it is stored; chunks stand for partitions."""
    clocks = Clocks.begin(range(len(made)))
    for lane in range(settings.lanes):
        events = [each[lane] for each in made if lane in each]
        fold_lane(LaneState.begin(settings), events, clocks, settings).state.pack()


def _keep(samples: dict[str, Samples]) -> dict[str, Any]:
    return {name: list(each.seconds) for name, each in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; default all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--seconds", type=int, default=120, help="of the flood; half of it for the latency")
    parser.add_argument("--save", type=Path, help="keep the samples as JSON")
    given = parser.parse_args()
    cases = given.cases or list(CASES)
    if set(cases) - set(CASES):
        parser.error(f"cases are {', '.join(CASES)}")
    machine = describe_machine([*PACKAGES])
    for key, value in machine.items():
        print(f"{key:<14} {value}")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            folder = Path(scratch) / case
            folder.mkdir()
            if case == "goals":
                results[case] = run_goals(folder)
                continue
            with LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka:
                if case == "throughput":
                    results[case] = run_throughput(kafka, folder, given.runs, given.lines)
                elif case == "latency":
                    results[case] = run_latency(kafka, folder, given.seconds // 2)
                else:
                    results[case] = run_flood(kafka, folder, given.seconds)
    if given.save:
        save(given.save, machine, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
