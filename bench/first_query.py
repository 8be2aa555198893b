"""The first query of a fresh process: Penstock with a cold and a warm kernel cache, Spark's own connector.

    python -m bench.first_query

Each sample is a process of its own. Its session is started first; what is timed is the first read of a
topic of 100,000 records into the `noop` sink. `cold` gives numba an empty cache folder, `warm` one that a
process before has filled. `python floor` is the first query of the smallest Python source there can be, one
row and no Kafka: what Spark takes to start its Python processes, which the JVM connector does not need.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
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
form, bootstrap, topic, jars = sys.argv[1:]
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
spark.read.format(form).options(**options).load().write.format("noop").mode("overwrite").save()
print("SECONDS", time.perf_counter() - began)
spark.stop()
"""


def time_first_query(form: str, bootstrap: str, jars: str, cache: str) -> float:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": make_launcher(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "NUMBA_CACHE_DIR": cache,
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, form, bootstrap, LOAD.name, jars],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ran.stdout.split("SECONDS")[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    machine = describe_machine(PACKAGES)
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    jars = ",".join(str(jar) for jar in fetch_connector(ProgressBar("Fetching Spark's own connector")))
    seconds: dict[str, list[float]] = {"warm": [], "cold": [], "default": [], "python floor": []}
    with (
        LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka,
        tempfile.TemporaryDirectory() as warm,
    ):
        fill(kafka.bootstrap, LOAD)
        time_first_query("penstock", kafka.bootstrap, jars, warm)  # fills the cache
        for run in range(arguments.runs):
            seconds["warm"].append(time_first_query("penstock", kafka.bootstrap, jars, warm))
            with tempfile.TemporaryDirectory() as cold:
                seconds["cold"].append(time_first_query("penstock", kafka.bootstrap, jars, cold))
            seconds["default"].append(time_first_query("kafka", kafka.bootstrap, jars, warm))
            seconds["python floor"].append(time_first_query("floor", kafka.bootstrap, jars, warm))
            print(
                f"run {run + 1}",
                *(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items()),
                flush=True,
            )
    samples = {name: Samples(tuple(values)) for name, values in seconds.items()}
    print_ratios(
        "first query of a fresh process, 100,000 records of 100 B", samples, "warm", {"default": 1.0}
    )
    if arguments.save:
        save(arguments.save, machine, {name: each.seconds for name, each in samples.items()})


if __name__ == "__main__":
    main()
