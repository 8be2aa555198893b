"""Spark drivers with SQL sinks as a test handles them: start, order, hold at a gate, kill, freeze, resume.

A crew has one driver at work and one that is ready to take over, as clusters have. So a kill does not have to
wait for Spark to start, and a driver that was only stopped meets a successor at once.

    with crew(folder, "local[2,4]") as drivers:
        driver = drivers.take()
        driver.arm("Commit", "before")
        driver.begin(order)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.crash.gates import Gate, arm, release
from tests.crash.programs import ROOT, Order, find_marked, make_environment
from tests.crash.sql.sql_program import ANSWER
from tests.support.waiting import wait_until

_MARK = "PENSTOCK_SQL_DRIVER"


class Driver:
    """A program that takes orders, one per line, with every process that it has started."""

    def __init__(self, folder: Path, master: str, program: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self._gates = folder, folder / "gates"
        self._gates.mkdir()
        self._mark, self._gate, self._armed = uuid.uuid4().hex, "", 0
        self._answers: deque[dict[str, Any]] = deque()
        self._rest = b""
        with (folder / "console.log").open("wb") as console:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, master],
                cwd=ROOT,
                env=make_environment(f"{_MARK}={self._mark}", self._gates),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def console(self) -> str:
        return (self.folder / "console.log").read_text(errors="replace")[-3000:]

    def begin(self, order: Order) -> None:
        """Send an order, which the driver runs as soon as it is ready."""
        assert self.process.stdin is not None
        self.process.stdin.write(order.write().encode())
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """Return the driver's new answer, if there is one; the driver must be alive."""
        assert self.process.stdout is not None
        with suppress(BlockingIOError):
            while piece := os.read(self.process.stdout.fileno(), 65536):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                said = (line.decode() for line in lines)
                self._answers += (json.loads(each[len(ANSWER) :]) for each in said if each.startswith(ANSWER))
        if self._answers:
            return self._answers.popleft()
        assert self.process.poll() is None, f"it has ended: {self.console}"
        return None

    # --- gates ------------------------------------------------------------------------------------------

    def arm(self, step: str, moment: str, call: int = 1) -> None:
        """Make the driver stop there the next time; a process that already stands at a gate stays."""
        self._armed += 1
        arm(self._gates, Gate(f"gate-{self._armed}", step, moment, call))

    def disarm(self) -> None:
        (self._gates / "armed.json").unlink(missing_ok=True)

    def look_at_gate(self) -> int | None:
        """Return which process stands at the newest gate, if any."""
        reached = self._gates / f"reached-gate-{self._armed}.json"
        return int(json.loads(reached.read_text())["pid"]) if reached.exists() else None

    def release(self, number: int) -> None:
        release(self._gates, f"gate-{number}")

    @property
    def newest_gate(self) -> int:
        return self._armed

    # --- violence ---------------------------------------------------------------------------------------

    def list_processes(self) -> dict[int, str]:
        return find_marked(f"{_MARK}={self._mark}")

    def kill(self) -> None:
        """Kill Python and JVM at once. The processes they started end on their own."""
        jvms = [pid for pid, command in self.list_processes().items() if "SparkSubmit" in command]
        assert len(jvms) == 1, jvms
        for pid in (self.pid, *jvms):
            os.kill(pid, signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL

    def freeze(self) -> None:
        """Stop all its processes where they are; a cluster's executors are not its own and keep running."""
        for pid in self.list_processes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process.poll() is None, "it was dead already"
        for pid in self.list_processes():
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End every process of the driver, whatever has happened."""
        for pid in self.list_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        wait_until(lambda: not self.list_processes(), "nothing of the driver is left", 60)


class Crew:
    """Drivers for one master. `take` returns one that is ready and starts the next."""

    def __init__(self, folder: Path, master: str, program: str = "tests.crash.sql.sql_program") -> None:
        self.folder, self.master, self.program = folder, master, program
        self._ready: deque[Driver] = deque()
        self._all: list[Driver] = []
        self._start()

    def take(self, *, start_next: bool = True) -> Driver:
        """Return a driver; meanwhile start the next one, unless this one will be put back."""
        if not self._ready:
            self._start()
        driver = self._ready.popleft()
        if start_next and not self._ready:
            self._start()
        return driver

    def put_back(self, driver: Driver) -> None:
        """Put back an idle driver, which may be taken again."""
        driver.disarm()
        self._ready.appendleft(driver)

    def bury(self, driver: Driver) -> None:
        driver.close()
        self._all.remove(driver)

    def replace_all(self) -> None:
        """Replace all drivers: after a failed round their state is unknown."""
        self.close()
        self._all.clear()
        self._ready.clear()
        self._start()

    @property
    def is_cluster(self) -> bool:
        return self.master.startswith("spark://")

    def _start(self) -> None:
        driver = Driver(self.folder / f"driver-{uuid.uuid4().hex[:8]}", self.master, self.program)
        self._all.append(driver)
        self._ready.append(driver)

    def close(self) -> None:
        for driver in self._all:
            driver.close()


@contextmanager
def crew(folder: Path, master: str) -> Iterator[Crew]:
    """Yield a crew that leaves nothing behind."""
    made = Crew(folder, master)
    try:
        yield made
    finally:
        made.close()


def find_executor(pid: int) -> int:
    """Return the executor that a Python worker belongs to."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, "there is no executor above it"
    return pid
