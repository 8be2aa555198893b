"""Programs whose tasks run on a Spark cluster with two workers, and whose driver is a separate process.

A program finds a `builder` for its session and its arguments in `sys.argv[2:]`. It runs in `folder`, which is
empty at the start. It prints TOLD, followed by its results as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.driver_jvm import DriverJvm
    from tests.support.servers.spark_standalone import LocalSpark

OPENING = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession

builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
# Without a number of cores to wait for, Spark would wait for none, and one executor would get all tasks.
builder = builder.config("spark.cores.max", "2")
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
builder = builder.config("spark.locality.wait", "0").config("spark.ui.showConsoleProgress", "false")
"""


@dataclass(frozen=True)
class TwoWorkers:
    """A cluster, and a folder for one program to run in."""

    cluster: LocalSpark
    jvm: DriverJvm
    folder: Path

    def run(self, program: str, *arguments: str) -> Any:
        """Run a program to its end and return the results that it printed."""
        command = [sys.executable, "-c", OPENING + program, self.cluster.master_url, *arguments]
        return json.loads(self.jvm.run(command).split("TOLD", 1)[1])


@pytest.fixture
def two_workers(spark_standalone: LocalSpark, driver_jvm: DriverJvm) -> TwoWorkers:
    """Return the cluster and a folder for the programs of one test."""
    return TwoWorkers(spark_standalone, driver_jvm, driver_jvm.clear())
