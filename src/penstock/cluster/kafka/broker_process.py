"""One broker process: start, stop, kill, pause, resume, and start again on the same port and folder.

Rule: a broker is alive while its process holds the lock that it inherited. Process ids are not trusted. Every
wait has a deadline, and a wait that fails ends in an error that carries the end of the broker's log.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from penstock.cluster.downloads.java import find_java
from penstock.cluster.kafka.broker_probe import is_broker_ready
from penstock.cluster.kafka.broker_settings import LOG4J, ClusterPlan, NodePlan, write_settings
from penstock.cluster.processes.endings import end_server, wait_until
from penstock.cluster.processes.owned_process import is_locked, read_tail, start_process, take_lock
from penstock.core.errors import ClusterError

# Only Java's simple compiler: a broker is ready after 3.3 s of CPU time instead of 7 s.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Kafka's own switches. Whatever the settings say, they cannot fetch further settings, and a login reads no
# addresses or files and loads no code except the two modules that hold names and passwords.
KAFKA_GUARDS = (
    "-Dorg.apache.kafka.automatic.config.providers=none",
    "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=",
    "-Dorg.apache.kafka.sasl.oauthbearer.allowed.files=",
    "-Dorg.apache.kafka.allowed.login.modules=org.apache.kafka.common.security.plain.PlainLoginModule,"
    "org.apache.kafka.common.security.scram.ScramLoginModule",
)

_PAUSE_TIMEOUT_S = 30.0


class Broker:
    """A node of a local cluster, made by `LocalKafka`. Clients connect to `port`."""

    def __init__(
        self,
        node: NodePlan,
        cluster: ClusterPlan,
        jars: Path,
        *,
        heap_mb: int,
        quick_start: bool,
        owned: bool,
        ready_timeout_s: float,
    ) -> None:
        self.node = node
        self.node_id = node.node_id
        self.port = node.ports["CLIENT"]
        self._cluster = cluster
        self._jars = jars
        self._heap_mb = heap_mb
        self._quick_start = quick_start
        self._owned = owned
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def address(self) -> str:
        """Return the address for clients: the advertised one if there is one."""
        host, port = self.node.advertise or ("127.0.0.1", self.port)
        return f"{host}:{port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # collects the process's exit status if it has ended
        return is_locked(self._lock_path)

    @property
    def _lock_path(self) -> Path:
        return self.node.folder / "server.lock"

    @property
    def _console(self) -> Path:
        return self.node.folder / "console.log"

    @property
    def logs(self) -> str:
        """Return the end of what its JVM printed outside the log, and the end of the broker's log."""
        return "\n".join(text for text in (read_tail(self._console), read_tail(self.node.log)) if text)

    def start(self, *, wait: bool = True) -> None:
        """Start the process. With `wait`, wait until it answers and has joined the cluster."""
        lock = take_lock(self._lock_path, whose=str(self.node.folder))
        try:
            self._console.unlink(missing_ok=True)
            self.node.log.unlink(missing_ok=True)  # so that an error shows this start's log only
            self._process = start_process(
                self._write_files(),
                output=self._console,
                folder=self.node.folder,
                lock=lock,
                owned=self._owned,
            )
        finally:
            os.close(lock)  # the server has its own copy now
        self._paused = False
        if wait:
            self.wait_until_ready({self.node_id})

    def _write_files(self) -> list[str]:
        folder = self.node.folder
        settings, log4j = folder / "server.properties", folder / "log4j2.properties"
        settings.write_text(write_settings(self.node, self._cluster))
        settings.chmod(0o600)
        log4j.write_text(LOG4J.format(log=self.node.log))
        return [
            str(find_java()),
            f"-Xmx{self._heap_mb}m",
            *(_QUICK_START if self._quick_start else ()),
            *shlex.split(os.environ.get("KAFKA_OPTS", "")),  # as Kafka's own scripts do
            *KAFKA_GUARDS,
            f"-Dlog4j2.configurationFile={log4j}",
            *("-cp", f"{self._jars}/*", "kafka.Kafka", str(settings)),
        ]

    def is_ready(self, others: Collection[int] = ()) -> bool:
        """Return whether it answers a request, knows a controller, and lists itself and `others`."""
        return is_broker_ready(self.port, {self.node_id, *others})

    def wait_until_ready(self, others: Collection[int] = ()) -> None:
        if not wait_until(lambda: self.is_ready(others) or not self.is_alive, self._ready_timeout_s):
            raise self._did_not_start(f"was not ready after {self._ready_timeout_s:.0f} s")
        if not self.is_alive:
            code = None if self._process is None else self._process.wait()
            raise self._did_not_start(f"ended with exit code {code} before it was ready")

    def _did_not_start(self, how: str) -> ClusterError:
        log, whole_log = self.logs, read_tail(self.node.log, lines=20_000, limit_bytes=4_194_304)
        facts = {"node": self.node_id, "ports": dict(self.node.ports), "log": str(self.node.log)}
        if "Address already in use" in whole_log:
            condition, hint = "PORT_TAKEN", "Stop the program on that port or choose another port."
        elif "DUPLICATE_BROKER_REGISTRATION" in whole_log:
            condition, hint = "NODE_ID_TAKEN", "Give each broker of a cluster its own node id."
        else:
            condition, hint = "BROKER_DID_NOT_START", "The last lines say why; correct that and start again."
        what = f"Broker {self.node_id} on port {self.port} {how}. The end of its log:\n{log}\n"
        return ClusterError(condition, what, hint=hint, facts=facts)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask the broker to shut down cleanly; after the deadline, kill it. A second call does nothing."""
        if self._process is None:
            return  # never started here; another holder of the folder's lock is not ours to end
        self.resume()
        self._end((signal.SIGTERM, timeout_s))

    def kill(self) -> None:
        """End the broker at once, as a power cut would. A second call does nothing."""
        self._end()
        self._paused = False

    def _end(self, *steps: tuple[signal.Signals, float]) -> None:
        if self._process is not None:
            end_server(f"Broker {self.node_id}", self._process, self._lock_path, *steps)

    def pause(self) -> None:
        """Suspend the broker and return once it has stopped. It keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        self._paused = True
        if not wait_until(self._has_stopped, _PAUSE_TIMEOUT_S):
            raise ClusterError(
                "BROKER_RUNS_ON",
                f"Broker {self.node_id} on port {self.port} has not stopped within {_PAUSE_TIMEOUT_S:.0f} s.",
                hint="It may wait for a disk that does not answer; look at the computer's storage.",
                facts={"node": self.node_id},
            )

    def _has_stopped(self) -> bool:
        # A signal returns at once, but threads run on until the kernel has stopped every one.
        if self._process is None:
            return True
        seen = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        try:
            return os.waitid(os.P_PID, self._process.pid, seen) is not None
        except ChildProcessError:  # it has ended
            return True

    def resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
