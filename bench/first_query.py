"""Measures the first query and the first stream of a fresh process: Penstock cold, warm and without its
launcher, and Spark's own connector.

    python -m bench.first_query

Each sample is a process of its own. Its session is started first, and the first read of a topic of 100,000
records into the `noop` sink is timed. `cold` gives numba an empty cache folder, `warm` one that an earlier
process has filled. `python floor` is the first query of the smallest Python source there can be, one row and
no Kafka: it shows what Spark takes to start its Python processes, which the JVM connector does not need. All
sides but `no launcher` start Spark's Python with what `penstock python` prints. The stream has the trigger
`availableNow` over the same topic, with a warm cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.read import PACKAGES
from bench.sampling import Samples, describe_machine, print_ratios, save
from bench.topics import Load, fill
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka
from penstock.cluster.downloads.jvm_connector import fetch_connector
from penstock.cluster.processes.python_launcher import make_launcher

LOAD = Load("first", 100_000, 100)
PROGRAM = """
import sys, time
from pyspark.sql import SparkSession
form, bootstrap, topic, jars, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
spark.range(1).write.format("noop").mode("overwrite").save()
began = time.perf_counter()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
if form == "floor":
    from pyspark.sql.datasource import DataSource, DataSourceReader
    class Reader(DataSourceReader):
        def read(self, partition):
            yield (1,)
    class Floor(DataSource):
        @classmethod
        def name(cls):
            return "floor"
        def schema(self):
            return "one int"
        def reader(self, schema):
            return Reader()
    spark.dataSource.register(Floor)
if checkpoint:
    frame = spark.readStream.format(form).options(**options, startingOffsets="earliest").load()
    stream = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()
else:
    spark.read.format(form).options(**options).load().write.format("noop").mode("overwrite").save()
print("SECONDS", time.perf_counter() - began)
spark.stop()
"""


@dataclass(frozen=True)
class Spark:
    """The settings that every sample's process gets, whatever its side."""

    bootstrap: str
    jars: str

    def time_first(self, form: str, cache: str, *, checkpoint: str = "", python: str | None = None) -> float:
        """Return the seconds of the first query, or of the first stream if a checkpoint is given."""
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": python or make_launcher(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "NUMBA_CACHE_DIR": cache,
        }
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, form, self.bootstrap, LOAD.name, self.jars, checkpoint],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(ran.stdout.split("SECONDS")[1])

    def time_stream(self, form: str, cache: str, *, python: str | None = None) -> float:
        with tempfile.TemporaryDirectory() as checkpoint:
            return self.time_first(form, cache, checkpoint=checkpoint, python=python)

    def time_cold(self) -> float:
        with tempfile.TemporaryDirectory() as cold:
            return self.time_first("penstock", cold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    machine = describe_machine(PACKAGES)
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    jars = ",".join(str(jar) for jar in fetch_connector(ProgressBar("Fetching Spark's own connector")))
    with (
        LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka,
        tempfile.TemporaryDirectory() as warm,
    ):
        fill(kafka.bootstrap, LOAD)
        spark = Spark(kafka.bootstrap, jars)
        spark.time_first("penstock", warm)  # fills the cache
        queries = {
            "warm": lambda: spark.time_first("penstock", warm),
            "no launcher": lambda: spark.time_first("penstock", warm, python=sys.executable),
            "cold": spark.time_cold,
            "default": lambda: spark.time_first("kafka", warm),
            "python floor": lambda: spark.time_first("floor", warm),
        }
        streams = {
            "stream": lambda: spark.time_stream("penstock", warm),
            "stream, no launcher": lambda: spark.time_stream("penstock", warm, python=sys.executable),
            "stream, default": lambda: spark.time_stream("kafka", warm),
        }
        seconds: dict[str, list[float]] = {name: [] for name in (*queries, *streams)}
        for run in range(arguments.runs):
            for name, take in {**queries, **streams}.items():
                seconds[name].append(take())
            told = (f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items())
            print(f"run {run + 1}", *told, flush=True)
    samples = {name: Samples(tuple(values)) for name, values in seconds.items()}
    case = "of a fresh process, 100,000 records of 100 B"
    print_ratios(f"first query {case}", {name: samples[name] for name in queries}, "warm", {"default": 1.0})
    print_ratios(f"first stream {case}", {name: samples[name] for name in streams}, "stream", {})
    if arguments.save:
        save(arguments.save, machine, {name: each.seconds for name, each in samples.items()})


if __name__ == "__main__":
    main()
