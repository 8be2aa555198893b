"""A Spark session that can stream through either connector, and queries that end.

Rule: a session has a JVM of its own, which ends with it. `spark.stop()` alone leaves the JVM running, and
with it what a later session can no longer change: the heap, and the connector's pool of consumers, which is
made once. All that Spark writes is under one temporary folder, which is removed when that JVM is gone.

    with StreamSession() as session:
        frame = session.stream("penstock", bootstrap, "t", startingOffsets="earliest")
        with session.run(frame.writeStream.format("noop")) as query: ...
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster.downloads.jvm_connector import fetch_connector
from penstock.cluster.processes.python_launcher import make_launcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: The sides of a comparison: Spark's name of the format.
FORMATS = {"penstock": "penstock", "default": "kafka", "tuned": "kafka"}
#: Spark matches the error of a batch that `stop()` interrupted with a pattern that recurses at each letter.
_DEEP_STACK = "-Xss16m"
_POLL_S = 0.1
_JVM_END_S = 60.0


class StreamSession:
    """One `local[2]` session. `conf` is added to its settings, `java_options` to the driver's JVM."""

    def __init__(
        self, conf: Mapping[str, str] | None = None, *, java_options: str = "", memory: str = "4g"
    ) -> None:
        self._conf, self._java_options, self._memory = dict(conf or {}), java_options, memory

    def __enter__(self) -> StreamSession:
        os.environ["PYSPARK_PYTHON"] = make_launcher()
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        from pyspark.sql import SparkSession

        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self.folder = Path(self._folder.name)
        self._checkpoints = 0
        java_options = f"-Djava.io.tmpdir={self.folder} {_DEEP_STACK} {self._java_options}"
        builder = (
            SparkSession.builder.master("local[2]")
            .config(
                "spark.jars",
                ",".join(str(jar) for jar in fetch_connector(ProgressBar("Fetching Spark's own connector"))),
            )
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", self._memory)
            .config("spark.driver.extraJavaOptions", java_options)
            .config("spark.sql.warehouse.dir", str(self.folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        )
        for key, value in self._conf.items():
            builder = builder.config(key, value)
        try:
            self.spark = builder.getOrCreate()
        except BaseException:
            end_jvm()
            self._folder.cleanup()
            raise
        self.spark.sparkContext.setLogLevel("OFF")  # a stopped query logs an error; a failed one raises
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.spark.stop()
        finally:
            end_jvm()
            self._folder.cleanup()

    def stream(self, form: str, bootstrap: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(form).options(**options)
        return reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()

    @contextmanager
    def run(self, writer: DataStreamWriter) -> Iterator[StreamingQuery]:
        """Start a query on a fresh checkpoint and stop it at the end of the block."""
        self._checkpoints += 1
        checkpoint = self.folder / "checkpoints" / str(self._checkpoints)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            yield query
        finally:
            query.stop()


def end_jvm() -> None:
    """Close the JVM that PySpark started and wait for its end; the next session then starts another."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        process = gateway.proc
        process.stdin.close()  # it reads from there until this end
        process.wait(_JVM_END_S)


def list_progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the reports of all triggers so far."""
    return [json.loads(each.json) for each in query.recentProgress]


def last_progress(query: StreamingQuery) -> dict[str, Any] | None:
    """Return the report of the last trigger, or None if there was none."""
    last = query.lastProgress
    return None if last is None else dict(json.loads(last.json))


def count_batches(query: StreamingQuery) -> int:
    last = query.lastProgress
    return 0 if last is None else int(last["batchId"]) + 1


def wait_until(query: StreamingQuery, condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll and return whether the condition holds before the time is up; raise a failed query's error."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
