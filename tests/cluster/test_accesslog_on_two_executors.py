"""The access-log pipeline on a real Spark cluster into PostgreSQL: both executors fetch, and both fold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.cluster.processes.python_launcher import make_launcher
from tests.sql.databases import make_database
from tests.support.accesslog_traffic import (
    decide_in_memory,
    make_traffic,
    send_traffic,
    sort_decisions,
    warm_kernels,
    write_rules,
)

DRIVER = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.apps.accesslog.stream import pipeline as pipelines
from penstock.apps.accesslog.stream.lane_stage import LaneStage
from penstock.apps.accesslog.stream.pipeline import Pipeline
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.line_stage import LogStage

master, bootstrap, topic, database, folder = sys.argv[1:]

def note(stage, work):
    # Each executor has a folder of its own to work in.
    (Path(folder) / f"{stage} {os.getcwd().replace('/', '_')}").touch()
    yield from work

class NotedLogStage(LogStage):
    def __call__(self, batches):
        return note("fetched", LogStage.__call__(self, batches))

class NotedLaneStage(LaneStage):
    def __call__(self, batches):
        return note("folded", LaneStage.__call__(self, batches))

pipelines.LogStage, pipelines.LaneStage = NotedLogStage, NotedLaneStage
pipelines.LINES_PER_TASK = 0
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
# Without a number of cores to wait for, Spark would wait for none.
builder = builder.config("spark.cores.max", "2")
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
builder = builder.config("spark.locality.wait", "0").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
settings = PipelineSettings(
    topic, database, {"bootstrap.servers": bootstrap}, rules=(Path(folder) / "rules.yaml",),
    interval="100ms", idle_after="1s", lanes=5, most_lines=500)
print("ENDED", Pipeline(spark, settings).run(until_idle=True))
spark.stop()
"""


def test_two_executors_decide_what_the_engine_in_memory_decides(
    spark_standalone: Any, kafka: Any, topic: Any, postgres: Any, tmp_path: Path
) -> None:
    warm_kernels()
    traffic = make_traffic(6, partitions=4, benign=900)
    expected = decide_in_memory(traffic)
    write_rules(tmp_path)
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    with make_database(postgres) as database:
        create_tables(database.url)
        arguments = [spark_standalone.master_url, kafka.bootstrap, name, database.url, str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={**os.environ, "PYSPARK_PYTHON": make_launcher(), "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        columns = ", ".join(f'"{column}"' for column in DECISIONS.names)
        rows = database.run(f"SELECT {columns} FROM accesslog_decisions")
        counts = database.run("SELECT SUM(lines), SUM(parsed) + SUM(dead) FROM accesslog_counts")
    assert sort_decisions(dict(zip(DECISIONS.names, row, strict=True)) for row in rows) == expected
    assert counts == [(sum(map(len, traffic.values())),) * 2]
    places = [path.name.split(" ") for path in tmp_path.iterdir() if " " in path.name]
    for stage in ("fetched", "folded"):
        assert len({place for what, place in places if what == stage}) == 2, f"two executors {stage}"
