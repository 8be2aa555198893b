"""The demo's web servers: a simulator, and a shipper for the log of each server, all separate processes.

Rule: only the demo stops them. Ctrl-C at a terminal reaches every foreground process, even one that is still
starting or just ending, and a simulator killed then would leave no truth behind. So each process has its own
session, ends with the demo however the demo ends, and gets no signal before it listens for one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from penstock.cli.shared.stop_signals import hearing_signals
from penstock.cluster.processes.owned_process import start_process
from penstock.core.errors import ClusterError

_TIMEOUT_S = 120.0
_LOOK_EVERY_S = 0.05


class Servers:
    """Runs the processes. Call `simulate`, `ship`, `wait` (or wait for a signal), `ship_rest` and `end`."""

    def __init__(self, bootstrap: str, topic: str, logs: Path, truth: Path, names: Sequence[str]) -> None:
        self._bootstrap, self._topic, self._logs, self._truth = bootstrap, topic, logs, truth
        self._names = names
        self._simulator: subprocess.Popen[bytes] | None = None
        self._shippers: list[subprocess.Popen[bytes]] = []

    def simulate(self, rate: float, seconds: int, seed: int) -> None:
        """Start the servers, and return when they write: from then on a signal makes them end cleanly."""
        logs = [self._find_log(name) for name in self._names]
        options = [f"--rate={rate}", f"--seconds={seconds}", f"--seed={seed}"]
        options += [f"--servers={len(logs)}", f"--truth={self._truth}", "--out", *map(str, logs)]
        self._simulator = self._start("simulate", *options)
        deadline = time.monotonic() + _TIMEOUT_S
        while not all(log.exists() for log in logs):
            try:
                code: int | None = self._simulator.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                code = None
            if code or time.monotonic() > deadline:
                raise ClusterError(
                    "SIMULATION_FAILED",
                    "The simulated servers do not write.",
                    hint=f"Their output is in {self._logs / 'simulate.txt'}.",
                )

    def ship(self) -> None:
        self._shippers = [self._start("ship", *self._name_shipper(name)) for name in self._names]

    def wait(self) -> None:
        """Wait until the servers have stopped."""
        assert self._simulator is not None
        self._simulator.wait()

    def stopping_on_signals(self) -> AbstractContextManager[None]:
        """Stop the servers at the first SIGINT or SIGTERM; a second one does what it did before."""

        def stop(_: int) -> None:
            assert self._simulator is not None
            self._simulator.terminate()

        return hearing_signals(stop, once=True)

    def ship_rest(self) -> None:
        """End all processes, then ship the files to their ends: each shipper continues where it was."""
        self.end()
        for name in self._names:
            child = self._start("ship", "--once", *self._name_shipper(name))
            self._shippers.append(child)
            if child.wait(_TIMEOUT_S):
                raise ClusterError(
                    "SHIP_FAILED",
                    f"The shipper of {name} ended with {child.returncode}.",
                    hint=f"Its output is in {self._logs / 'ship.txt'}.",
                )

    def end(self) -> None:
        for child in (self._simulator, *self._shippers):
            if child is not None and child.poll() is None:
                child.terminate()
                try:
                    child.wait(_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        self._shippers = []

    def _find_log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _name_shipper(self, name: str) -> tuple[str, ...]:
        where = f"--bootstrap-server={self._bootstrap}"
        return (str(self._find_log(name)), f"--topic={self._topic}", f"--server={name}", where)

    def _start(self, verb: str, *options: str) -> subprocess.Popen[bytes]:
        return start_process(
            [sys.executable, "-m", "penstock.cli", "accesslog", verb, *options],
            output=self._logs / f"{verb}.txt",
            ending=signal.SIGTERM,
        )
