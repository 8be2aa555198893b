"""Drills: a driver in a separate process, rows that keep coming, a kill at a known step, and a final count.

A `Drill` is one query over all its lives: its topic, its checkpoint, its rows, and everything that was
written for it. `kill_at` is one round. It fails when no process came to the step, when the process that did
was dead already, or when it survived the kill. At the end `finish` reads on until everything is there and
`check` compares whole rows, each exactly once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Producer

from tests.crash.gates import Gate, arm, await_arrival
from tests.crash.programs import ROOT, find_marked, make_environment
from tests.crash.streams.driver import QueryOrder
from tests.support.waiting import wait_until

PARTITIONS = 3
#: Known to every process of one driver, and to no other process.
_MARK = "PENSTOCK_CRASH_DRIVER"
#: The victims of a kill.
DRIVER, PLANNER, TASK = "driver", "planner", "task"

Row = tuple[str, int, int, bytes]


@dataclass(frozen=True)
class Round:
    """One kill, with the evidence that it happened."""

    seed: int
    victim: str
    step: str
    moment: str
    call: int
    pids: tuple[int, ...]
    newest_offset_log: int
    newest_commit_log: int
    rows_written_before: int
    rows_read_before: int
    rows_read_after: int
    seconds: float


class Trickle:
    """Writes unique rows to all partitions of a topic, a few at a time, until it is ended.

    It adapts to its reader: nothing is written while too much is unread, however slow the machine is.
    """

    def __init__(
        self, bootstrap: str, topic: str, seed: int, count_read: Callable[[], int], *, rows: int, most: int
    ) -> None:
        self.written: list[Row] = []
        self._rows, self._most_unread = rows, most
        self._topic, self._random, self._count_read = topic, random.Random(seed), count_read
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 120_000,
                "log_level": 0,  # brokers come and go in these tests
            }
        )
        self._number = 0
        self._ended = threading.Event()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.write()
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            if len(self.written) - self._count_read() < self._most_unread:
                self.write()

    def write(self) -> None:
        for _ in range(self._rows):
            value = f"{self._topic}/{self._number}".encode()
            self._number += 1
            where = self._random.randrange(PARTITIONS)
            self._producer.produce(self._topic, value=value, partition=where, on_delivery=self._note)
        self._producer.flush(120)

    def _note(self, error: object, message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))
        else:
            self.written.append(
                (message.topic(), message.partition(), message.offset(), bytes(message.value()))
            )

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        assert self._failures == []


@dataclass(frozen=True)
class Zombie:
    """A driver that was stopped, not ended: it does not notice the time that passes."""

    process: subprocess.Popen[bytes]
    pids: tuple[int, ...]

    def resume(self) -> None:
        assert self.process.poll() is None, "it was dead already"
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Drill:
    """One query over all its lives. `rows` arrive at a time, a few times a second."""

    def __init__(
        self, folder: Path, bootstrap: str, topic: str, seed: int, *, rows: int = 30, **order: Any
    ) -> None:
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        self.gates = folder / "gates"
        self.gates.mkdir()
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "150",
            **order.pop("options", {}),
        }
        self.order = QueryOrder(str(folder), options, **order)
        self.rounds: list[Round] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._marks: list[str] = []
        self._zombies: list[Zombie] = []
        self._lives = 0
        self._counted: dict[Path, int] = {}
        self._seen_logs: set[Path] = set()
        self._named: set[Path] = set()
        self.trickle = Trickle(bootstrap, topic, seed, self.count, rows=rows, most=20 * rows)

    # --- lives ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new driver with the same checkpoint."""
        self._lives += 1
        self._marks.append(uuid.uuid4().hex)
        (self.folder / "order.json").write_text(self.order.write())
        with (self.folder / f"console-{self._lives}.log").open("wb") as console:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.streams.driver", str(self.folder / "order.json")],
                cwd=ROOT,
                env=make_environment(f"{_MARK}={self._marks[-1]}", self.gates),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def processes(self) -> dict[int, str]:
        """Return the living processes of the newest driver, including itself: id to command line."""
        return find_marked(f"{_MARK}={self._marks[-1]}")

    def find_jvm(self) -> int:
        (found,) = [pid for pid, command in self.processes().items() if "SparkSubmit" in command]
        return found

    def kill_driver(self) -> tuple[int, ...]:
        """Kill both processes of the driver at once. What they started must end on its own."""
        pids = (self.find_jvm(), self.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL
        wait_until(lambda: not self.processes(), f"nothing of the driver is left: {self.processes()}", 60)
        return pids

    def freeze(self) -> Zombie:
        """Stop every process of the driver where it is. The next `start` starts a second driver beside it."""
        pids = tuple(self.processes())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        zombie, self._process = Zombie(self.process, pids), None
        self._zombies.append(zombie)
        return zombie

    def end(self) -> None:
        """End every process of the drill, whatever has happened."""
        self.trickle.end()
        for mark in self._marks:
            for pid in find_marked(f"{_MARK}={mark}"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # ends a stopped process too
        for process in (self._process, *(each.process for each in self._zombies)):
            if process is not None:
                process.wait(30)

    # --- rounds -----------------------------------------------------------------------------------------

    def kill_at(self, victim: str, step: str, moment: str, call: int = 1, *, goes_on: bool = True) -> Round:
        """Run one round: a process comes to the step, is killed there, and the query reads on.

        Without `goes_on` the next round begins as soon as the killed process is gone.
        """
        began = time.monotonic()
        name = f"round-{len(self.rounds) + 1}"
        arm(self.gates, Gate(name, step, moment, call))
        if self._process is None or self._process.poll() is not None:
            self.start()
        reached = await_arrival(self.gates, name, timeout_s=150)
        assert (reached["step"], reached["moment"], reached["call"]) == (step, moment, call), reached
        pid = reached["pid"]
        assert pid in self.processes(), f"{pid} was dead before the kill"
        offsets, commits = self.newest("offsets"), self.newest("commits")
        written, read = len(self.trickle.written), self.count()
        if victim == DRIVER:
            killed = self.kill_driver()
            if goes_on:
                self.start()
        else:
            killed = (pid,)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: pid not in self.processes(), f"{pid} is dead", 30)
        if goes_on:
            wait_until(lambda: self.newest("commits") > commits, f"the query goes on after {name}", 150)
        done = Round(
            self.seed,
            victim,
            step,
            moment,
            call,
            killed,
            offsets,
            commits,
            written,
            read,
            self.count(),
            round(time.monotonic() - began, 1),
        )
        self.rounds.append(done)
        return done

    def newest(self, log: str) -> int:
        """Return the number of the newest batch in one of Spark's two logs; -1 when there is none."""
        folder = self.order.checkpoint / log
        names = [path.name for path in folder.glob("[0-9]*")] if folder.exists() else []
        return max(map(int, names), default=-1)

    def notes(self, what: str) -> list[dict[str, Any]]:
        if not self.order.notes.exists():
            return []
        lines = self.order.notes.read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["what"] == what]

    # --- the rows ---------------------------------------------------------------------------------------

    def list_files(self) -> list[Path]:
        """Return the files whose rows count: those in the log of Spark's sink, or all of the batches."""
        if self.order.sink == "batches":
            done = range(self.newest("commits") + 1)
            return [path for each in done for path in (self.order.rows / f"batch-{each}").glob("*.parquet")]
        for log in (self.order.rows / "_spark_metadata").glob("[0-9]*"):
            if log not in self._seen_logs:  # Spark writes each log entry whole and never changes it
                self._seen_logs.add(log)
                lines = log.read_text().splitlines()[1:]
                self._named.update(Path(json.loads(line)["path"].removeprefix("file://")) for line in lines)
        return sorted(self._named)

    def count(self) -> int:
        """Return how many rows there are; each file is counted only once."""
        total = 0
        for path in self.list_files():
            if path not in self._counted:
                self._counted[path] = pq.ParquetFile(path).metadata.num_rows
            total += self._counted[path]
        return total

    def read(self) -> list[Row]:
        rows: list[Row] = []
        for path in self.list_files():
            columns = pq.ParquetFile(path).read().to_pydict()
            rows += zip(*(columns[each] for each in ("topic", "partition", "offset", "value")), strict=True)
        return rows

    def finish(self, timeout_s: float = 120) -> None:
        """Stop writing rows, read on until all are there, then end in order."""
        self.trickle.end()
        if self.process.poll() is not None:
            assert self.order.restarts or self._zombies, f"the query has ended: {self.notes('failed')}"
            self.start()
        expected = len(self.trickle.written)
        wait_until(lambda: self.count() >= expected, f"all of {expected} rows are read", timeout_s)
        self.order.stop_file.touch()
        assert self.process.wait(60) == 0
        wait_until(lambda: not self.processes(), "nothing of the driver is left", 60)

    def check(self) -> None:
        """Check that every row that was written is there, whole and exactly once, and nothing else."""
        found, expected = Counter(self.read()), Counter(self.trickle.written)
        assert expected, "nothing was written"
        story = "\n".join(str(asdict(each)) for each in self.rounds)
        assert {
            "lost": sorted((expected - found).elements())[:10],
            "twice or foreign": sorted((found - expected).elements())[:10],
        } == {"lost": [], "twice or foreign": []}, story


@contextmanager
def drill(folder: Path, bootstrap: str, topic: str, seed: int, **order: Any) -> Iterator[Drill]:
    """Yield a drill that leaves nothing behind."""
    made = Drill(folder, bootstrap, topic, seed, **order)
    try:
        yield made
    finally:
        made.end()
