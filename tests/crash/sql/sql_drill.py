"""One round of faults on Spark: a whole topic is written to a table while everything around it breaks.

Each fault has a gate: the driver (or one of its tasks) comes to a step and stops there while the fault
happens. The next gate is armed before the process may continue, so nothing unplanned happens between two
faults. A stream that ended with an error is started again, as a supervisor would do. Between faults, and
while processes wait, rows and offsets are counted in one statement.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from penstock.cluster import LocalKafka
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.stores.sql.sink.sql_sink import RowTransport
from penstock.testing.proxy import FaultProxy
from tests.crash.acknowledged import Sent
from tests.crash.gates import MOMENTS
from tests.crash.sql.sql_crew import Crew, Driver, find_executor
from tests.crash.sql.sql_lives import check_moment, check_sent, count_moment, hold_writer_row, prepare_rows
from tests.crash.sql.sql_program import LOCK_TIMEOUT_S, SqlOrder
from tests.sql.databases import OwnDatabase

log = logging.getLogger(__name__)

#: The steps of one publish; before the first of them all rows are staged.
PUBLISH = ("Begin", "LockWriter", "ReadLedger", "InsertStages", "WriteLedger", "Commit")
#: Steps that only a driver takes that has just started.
TAKE_OVER = ("RaiseEpoch", "SweepStages")
FILE_FAULTS = ("driver", "task", "zombie", "lock", "broker", "broker-away")
FAULTS = (*FILE_FAULTS, "database", "database-before-publish", "database-restart", "cut", "cut-commit",
          "cut-answer-of-commit")  # fmt: skip
FAULTS_PER_ROUND = 4
ARRIVAL_TIMEOUT_S = 300.0
LOOK_S = 0.05


@dataclass
class Place:
    """Where a round happens, and what can be broken there. `url` leads through the proxy, if there is one."""

    database: OwnDatabase
    url: str
    kafka: LocalKafka
    sent: Sent
    server: LocalDatabase | None = None
    proxy: FaultProxy | None = None


@dataclass(frozen=True)
class Fault:
    name: str
    step: str
    moment: str
    call: int = 1


def choose_fault(dice: random.Random, name: str, *, is_fresh: bool, stages: bool = False) -> Fault:
    """Return the step where a fault strikes.

    `is_fresh` means that the driver has not taken over the stream yet, and `stages` that its tasks stage
    rows.
    """
    moment = dice.choice(MOMENTS)
    call = dice.choice((1, 2, 3))
    if name == "task" and stages and dice.random() < 0.6:
        return Fault(name, "staged", "after", call)
    if name == "task" or (name.startswith("broker") and dice.random() < 0.4):
        return Fault(name, "task", "after", call)
    if name == "database-before-publish":
        return Fault(name, "Begin", "before", 3 if is_fresh else 1)  # taking over and registering begin too
    if name.startswith("broker") and dice.random() < 0.4:
        return Fault(name, "plan", "after", call)
    if name in ("cut-commit", "cut-answer-of-commit"):
        return Fault(name, "Commit", "before" if "answer" in name else moment, call)
    if name == "lock":
        return Fault(name, "Begin", "before", call)
    if name == "driver" and is_fresh and dice.random() < 0.5:
        return Fault(name, dice.choice(TAKE_OVER), moment)
    if name == "driver" and dice.random() < 0.2:
        return Fault(name, dice.choice(("task", "plan", "batch")), "after", call)
    if name == "zombie" and dice.random() < 0.3:
        return Fault(name, dice.choice(("task", "plan")), "after", call)
    step = dice.choice(PUBLISH)
    if (name, step) == ("cut", "Begin"):
        moment = "after"  # before it there may be no connection yet
    if name == "zombie":
        call = 3  # past taking over: a driver before that would rightly take over from its own successor
    return Fault(name, step, moment, call)


@dataclass
class SqlDrill:
    """One round; `log` has an entry for each fault that happened."""

    seed: int
    place: Place
    drivers: Crew
    strategy: RowTransport = "driver"
    log: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    snapshots: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def run(self, faults: tuple[str, ...], *, parallel: bool) -> None:
        dice = self._dice
        self.strategy = "parallel" if parallel else "driver"
        place = self.place
        size = len(place.sent.rows) // dice.randint(16, 18)  # enough batches for all faults
        self._order = SqlOrder(place.kafka.bootstrap, place.sent.topic, place.url, self.strategy, size)
        prepare_rows(place.database)
        self._driver = self.drivers.take()
        self._go: Callable[[], None] = lambda: self._driver.begin(self._order)
        is_fresh = True
        names = dice.sample(faults, min(FAULTS_PER_ROUND, len(faults)))
        for name in names:
            fault = choose_fault(dice, name, is_fresh=is_fresh, stages=parallel)
            before = self._driver
            self._await_gate(fault)
            self._strike(fault)
            is_fresh = self._driver is not before and name == "driver"
        self._driver.disarm()
        self._go()
        self._await_end()
        self.drivers.put_back(self._driver)
        self._note_rows_after()
        assert len(self.log) == len(names), f"of {names} these happened: {self.log}"
        self.rows = check_sent(place.database, place.sent)
        assert self.rows == len(place.sent.rows), f"{self.rows} rows of {len(place.sent.rows)}: {self.log}"

    # --- waiting ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        check_moment(self.place.database)
        self.snapshots += 1

    def _await_gate(self, fault: Fault) -> None:
        """Wait until a process stands at the gate of this fault."""
        driver = self._driver
        driver.arm(fault.step, fault.moment, fault.call)
        self._go()
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while driver.look_at_gate() is None:
            self._look()
            self._restart_if_ended(driver, fault)
            assert time.monotonic() < deadline, f"nobody comes to {fault}; {self.log}; {driver.console}"
            time.sleep(LOOK_S)
        self._look()
        self._note_rows_after()

    def _restart_if_ended(self, driver: Driver, fault: Fault | None) -> bool:
        """Start a stream again that failed. Return True when it has ended successfully."""
        said = driver.answer()
        if said is None:
            return False
        if self.log:
            self.log[-1].setdefault("streams_ended", []).append(said["ended"])
        if said["ended"] == "idle":
            assert fault is None, f"it has ended before {fault}: {said}; {self.log}"
            return True
        assert self.log, f"it fails without a fault: {said}"
        assert len(self.log[-1]["streams_ended"]) < 4, f"it fails again and again: {said}; {self.log}"
        driver.begin(self._order)
        return False

    def _await_end(self) -> None:
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while not self._restart_if_ended(self._driver, None):
            self._look()
            assert time.monotonic() < deadline, f"it does not end; {self.log}; {self._driver.console}"
            time.sleep(LOOK_S)
        self._look()

    def _note_rows_after(self) -> None:
        if not self.log or "rows_after" in self.log[-1]:
            return
        entry = self.log[-1]
        entry["rows_after"] = count_moment(self.place.database)[0]
        entry["seconds"] = round(time.monotonic() - self._struck_at, 1)  # until the next one, or the end
        if "cuts_before" in entry:
            assert self.place.proxy is not None
            entry["connections_cut"] = self.place.proxy.counts.cuts - entry.pop("cuts_before")
        assert entry.get("connections_cut", 1) > 0, f"nothing was cut: {self.log}"
        log.info("%s: %s", self.seed, entry)

    # --- faults -----------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        """Make the fault happen while a process stands at the gate. Afterwards `_go` continues the round."""
        driver, place = self._driver, self.place
        entry = {
            "fault": fault.name,
            "step": f"{fault.moment} {fault.step}",
            "call": fault.call,
            "driver": driver.pid,
            "rows_before": count_moment(place.database)[0],
        }
        self._struck_at = time.monotonic()
        gate = driver.newest_gate
        self._go = lambda: driver.release(gate)
        pid = driver.look_at_gate()
        assert pid is not None
        self.log.append(entry)
        match fault.name:
            case "driver":
                self._kill_driver()
            case "task":
                victim = find_executor(pid) if self.drivers.is_cluster else pid
                entry["victim"] = "executor" if self.drivers.is_cluster else "Python worker of a task"
                os.kill(victim, signal.SIGKILL)
            case "zombie":
                self._replace_frozen(entry)
            case "lock":
                self._hold_lock(entry, gate)
            case "broker":
                place.kafka.brokers[0].kill()
                place.kafka.brokers[0].start()
            case "broker-away":
                place.kafka.brokers[0].kill()
                driver.arm("nowhere", "after")  # the next gate is armed when the broker is back
                driver.release(gate)
                place.kafka.brokers[0].start()
                self._go = lambda: None
            case "database" | "database-before-publish" | "database-restart":
                assert place.server is not None
                (place.server.stop if fault.name == "database-restart" else place.server.kill)()
                place.server.start()
            case "cut" | "cut-commit":
                assert place.proxy is not None
                entry["connections_cut"] = place.proxy.cut()
            case "cut-answer-of-commit":
                assert place.proxy is not None
                entry["cuts_before"] = place.proxy.counts.cuts
                place.proxy.cut_before_answer()

    def _kill_driver(self) -> None:
        self._driver.kill()
        self.drivers.bury(self._driver)
        self._driver = driver = self.drivers.take()
        self._go = lambda: driver.begin(self._order)

    def _replace_frozen(self, entry: dict[str, Any]) -> None:
        """Let a second driver take over while the first one is frozen, if the lock allows it."""
        zombie, gate = self._driver, self._driver.newest_gate
        zombie.freeze()
        successor = self.drivers.take()
        successor.arm("batch", "after")
        successor.begin(self._order)
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        said = None
        while said is None and successor.look_at_gate() is None:
            self._look()
            said = successor.answer()
            assert time.monotonic() < deadline, f"no successor; {self.log}; {successor.console}"
            time.sleep(LOOK_S)
        zombie.disarm()
        zombie.resume()
        if said is not None:
            # The zombie holds the lock: its own transaction is open, and no other writer may get ahead of it.
            entry["successor"] = said["ended"]
            assert said["ended"] in ("START_FAILED", "DATABASE_BUSY"), f"{said}; {self.log}"
            self.drivers.put_back(successor)
            return
        entry["successor"] = "took over"
        zombie.release(gate)
        answer = None
        while answer is None:
            self._look()
            answer = zombie.answer()
            assert time.monotonic() < deadline, f"the zombie does not end; {self.log}; {zombie.console}"
            time.sleep(LOOK_S)
        entry["zombie"] = answer["ended"]
        assert answer["ended"] == "WRITER_FENCED", f"{answer}; {self.log}"
        self.drivers.put_back(zombie)
        self._driver = successor
        at_gate = successor.newest_gate
        self._go = lambda: successor.release(at_gate)

    def _hold_lock(self, entry: dict[str, Any], gate: int) -> None:
        """Hold the writer's row from outside: for a short while, or for longer than the lock timeout."""
        driver = self._driver
        held_s = self._dice.choice((0.5, LOCK_TIMEOUT_S + 1.0))
        with ExitStack() as undo:
            entry["lock"] = "taken" if hold_writer_row(self.place.database, undo) else "not free"
            entry["held_s"] = held_s
            assert entry["lock"] == "taken", f"{entry}: nothing happened"
            driver.arm("nowhere", "after")
            driver.release(gate)
            free_at = time.monotonic() + held_s
            while time.monotonic() < free_at:
                self._look()
                time.sleep(LOOK_S)
        self._go = lambda: None
