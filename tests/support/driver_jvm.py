"""One JVM for the drivers of many programs, one after the other, each in its own Python process.

A program that starts Spark waits some seconds for a JVM that has loaded and compiled next to nothing, which
costs 12 seconds of processor time for each program. Programs that are not killed and do not test how Spark
starts can use a JVM that is already running: `spark-submit` runs Python programs in the same way. Each
creates its own `SparkContext` in it, with its own settings, workers and queries, for 3 seconds of processor
time.

A JVM cannot change its working directory, and a program's relative paths must mean the same to both. So all
programs run in `folder`, which is emptied before each.

    with DriverJvm() as jvm:
        jvm.run([sys.executable, "program.py"])
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from penstock.cluster.processes.python_launcher import make_launcher

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class DriverJvm:
    """A JVM that waits for programs and ends with its owner."""

    def __init__(self) -> None:
        self.folder = Path()
        self._gateway: Any = None
        self._environment: dict[str, str] = {}
        self._log = Path()

    def __enter__(self) -> DriverJvm:
        top = Path(tempfile.mkdtemp(prefix="penstock-driver-"))
        self.folder, self._log = top / "work", top / "jvm.log"
        self.folder.mkdir()
        self._environment = {
            "PYSPARK_PYTHON": make_launcher(),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        conf = SparkConf(loadDefaults=False).setAll(list(SETTINGS.items()))
        with self._log.open("wb") as log, mock.patch.dict(os.environ, self._environment):
            how = {"cwd": self.folder, "stdout": log, "stderr": log}
            self._gateway = launch_gateway(conf, how)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._gateway.proc
        self._gateway.shutdown()
        process.stdin.close()  # this is how a JVM of Spark's ends
        process.wait(60)
        shutil.rmtree(self.folder.parent)

    def clear(self) -> Path:
        """Remove what earlier programs left in the folder, and return the folder."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return self.folder

    def run(self, command: list[str], timeout_s: float = 280) -> str:
        """Run a program to its end in the folder and return what it printed; it must not fail."""
        parameters = self._gateway.gateway_parameters
        gateway = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={**os.environ, **self._environment, **gateway},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        finally:
            self._stop_context()
        assert done.returncode == 0, done.stdout + done.stderr + self._log.read_text()[-3000:]
        return done.stdout

    def _stop_context(self) -> None:
        """Stop the context of a program that did not: normally its own JVM would have ended with it."""
        scala_object = getattr(self._gateway.jvm.org.apache.spark, "SparkContext$")
        active = getattr(scala_object, "MODULE$").getActive()
        if active.isDefined():
            active.get().stop()
