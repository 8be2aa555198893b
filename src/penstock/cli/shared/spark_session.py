"""Spark for a command: a JVM that only the command ends.

Rules: the JVM runs in a session of its own, so that a signal to the command's process group (a supervisor's
SIGTERM, `timeout`, a closed terminal) reaches only the command, which then finishes its batch while Spark is
still running. The JVM has ended when the command returns, whereas PySpark would let it end after the program.
If the command is killed, the JVM ends on its own: it reads from a pipe that is closed then.

A session that already exists in this process is used unchanged, and only its Spark is stopped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.cluster.processes.python_launcher import make_launcher
from penstock.cluster.processes.signals import hold_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The JVM cleans up when it ends; after this long it is left to do so alone.
_END_S = 30
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@contextlib.contextmanager
def open_spark(master: str, name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a Spark session for the block; `settings` are Spark's own."""
    is_local = master.startswith("local")  # the launcher is in this computer's cache
    os.environ.setdefault("PYSPARK_PYTHON", make_launcher() if is_local else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setMaster(master).setAppName(name).setAll([*_QUIET.items(), *settings.items()])
    gateway: Any = None
    try:
        if SparkContext._gateway is None:
            with hold_signals():  # a JVM without an owner yet would be left behind
                gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        context = (
            SparkContext.getOrCreate(conf) if gateway is None else SparkContext(conf=conf, gateway=gateway)
        )
        spark = SparkSession(context)
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        if gateway is not None:
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            gateway.proc.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                gateway.proc.wait(_END_S)
