"""Spark standalone from the pip package: two workers, each with its own executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.cluster.processes.python_launcher import make_launcher

DRIVER = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
# The job begins when both executors are there, so that both get tasks.
builder = builder.config("spark.cores.max", "2")
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()

def where(_):
    import os
    yield os.getcwd()  # each executor works in a folder of its own

print("EXECUTORS", len(set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect())))
spark.stop()
"""


def test_tasks_run_in_two_executors_on_a_real_cluster(spark_standalone: Any, tmp_path: Path) -> None:
    assert spark_standalone.count_workers() == 2
    environment = {**os.environ, "PYSPARK_PYTHON": make_launcher(), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, spark_standalone.master_url],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "EXECUTORS 2" in done.stdout
