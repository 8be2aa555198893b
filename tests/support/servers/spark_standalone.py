"""A Spark standalone cluster on this computer: a master and two workers, from the installed PySpark.

Rule: what must work on a cluster is tested on one. In `local[n]`, driver and tasks share a JVM, a view of the
file system and an environment, so a source that forgets to ship something still works there. Spark's
`local-cluster` mode would also do, but it does not start from the pip package.

    with LocalSpark() as cluster:
        SparkSession.builder.master(cluster.master_url)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.cluster.downloads.java import find_java, find_spark_home
from penstock.cluster.processes.free_ports import LOOPBACK, find_free_ports
from penstock.cluster.processes.owned_process import read_tail, start_process
from penstock.cluster.processes.python_launcher import make_launcher
from penstock.cluster.processes.signals import hold_signals
from penstock.core.errors import ClusterError
from penstock.core.versions import check_versions

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
#: The workers' hosts, taken in turn: two names of this computer. Spark runs a second copy of a slow task only
#: on another host, and each name counts as a host.
_HOSTS = (LOOPBACK, "localhost")
_POLL_S = 0.1
_STOP_TIMEOUT_S = 10.0


class LocalSpark:
    """One master and `workers` workers, each with `cores` and `memory_mb`; they end with their owner."""

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory_mb: int = 1024, ready_timeout_s: float = 180.0
    ) -> None:
        self._workers = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._ready_timeout_s = ready_timeout_s
        self._port, self._web_port = 0, 0
        self._finalizer: weakref.finalize[..., LocalSpark] | None = None
        self.folder = Path()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def master_url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def logs(self) -> str:
        return "\n".join(f"--- {log.stem}\n{read_tail(log)}" for log in sorted(self.folder.glob("*.log")))

    def __enter__(self) -> LocalSpark:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start master and workers and wait until the master reports every worker as alive."""
        check_versions()
        with hold_signals():
            self.folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
            self._finalizer = weakref.finalize(self, _clear, self.processes, self.folder, os.getpid())
        self._port, self._web_port = find_free_ports(2)
        try:
            address = ["--host", LOOPBACK, "--port", str(self._port), "--webui-port", str(self._web_port)]
            self._launch("master", [_MASTER, *address])
            for number in range(1, self._workers + 1):
                size = ["--cores", str(self._cores), "--memory", f"{self._memory_mb}m"]
                host = _HOSTS[(number - 1) % len(_HOSTS)]
                place = ["--host", host, "--webui-port", "0", "--work-dir", str(self.folder / "work")]
                self._launch(f"worker-{number}", [_WORKER, *size, *place, self.master_url])
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()

    def count_workers(self) -> int:
        """Return how many workers the master reports as alive; 0 while it cannot be asked."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://{LOOPBACK}:{self._web_port}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return 0
        return int(state.get("aliveworkers", 0))

    def _launch(self, name: str, command: list[str]) -> None:
        home = find_spark_home()
        java = [str(find_java()), "-cp", f"{home}/jars/*", "-Xmx512m", *_module_flags()]
        log = self.folder / f"{name}.log"
        process = start_process(
            [*java, *command], output=log, folder=self.folder, environment=_environment(home, self.folder)
        )
        self.processes.append(process)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while self.count_workers() < self._workers:
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                how = "a process has ended" if ended else f"{self._ready_timeout_s:.0f} s have passed"
                raise ClusterError(
                    "SPARK_DID_NOT_START",
                    f"Spark's master at {self.master_url} has {self.count_workers()} of {self._workers} "
                    f"workers, and {how}. The end of the logs:\n{self.logs}\n",
                    hint="The last lines say why; correct that and start again.",
                )
            time.sleep(_POLL_S)


def _module_flags() -> list[str]:
    """Return flags for the JDK packages that Spark reaches into; its own launcher passes the same."""
    inside = [
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs"),
        *("sun.security.action", "sun.util.calendar"),
    ]
    return [flag for name in inside for flag in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]


def _environment(home: Path, folder: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # otherwise a worker looks for a source tree, and fails
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "PYSPARK_PYTHON": make_launcher(),
    }


def _clear(processes: list[subprocess.Popen[bytes]], folder: Path, owner: int) -> None:
    if os.getpid() != owner:
        return
    # Ask the workers to end first: a worker then ends its executors, which are separate processes.
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
