"""One pipeline over several lives: killed at a step, restarted, and compared with one that was left alone.

All tables that are a function of the log must equal those of the undisturbed run, row by row. A life whose
gate was never reached, or that survived its kill, fails the round, because it would prove nothing.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.apps.accesslog.stream.pipeline_tables import TABLES, create_tables
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_dialects import GRAMMARS
from tests.crash.accesslog.accesslog_program import LogOrder
from tests.crash.sql.sql_crew import Crew
from tests.sql.databases import OwnDatabase

#: Columns that record when something was seen by the wall clock.
OF_THE_WALL = {"accesslog_clocks": ("seen_at", "idle_since")}
#: Steps of a batch and of the transaction that publishes it; `Begin` and `Commit` also belong to taking over.
STEPS = [
    ("plan", "after"), ("stage", "after"), ("lanes", "before"), ("lanes", "after"), ("Begin", "before"),
    ("LockWriter", "after"), ("ReadLedger", "after"), ("InsertStages", "before"), ("InsertStages", "after"),
    ("WriteLedger", "before"), ("WriteLedger", "after"), ("Commit", "before"), ("Commit", "after"),
    ("batch", "after"),
]  # fmt: skip
ARRIVAL_S = 240.0
#: The program that the drivers of a `Crew` run.
PROGRAM = "tests.crash.accesslog.accesslog_program"

Dump = dict[str, list[tuple[Any, ...]]]


@dataclass
class LogRound:
    """Several lives of one pipeline. `log` records what was done to it."""

    seed: int
    drivers: Crew
    order: LogOrder
    log: list[dict[str, Any]] = field(default_factory=list)

    def run(self, kills: int, steps: list[tuple[str, str]] | None = None) -> None:
        """Kill the pipeline `kills` times, at the given steps or at random ones, then let it finish."""
        dice = random.Random(self.seed)
        create_tables(self.order.url)
        chosen = steps or [dice.choice(STEPS) for _ in range(kills)]
        for step, moment in chosen:
            if not self._live_until(step, moment, dice.choice((1, 1, 2))):
                # Each worker counts its own calls, so a life may take more batches than `call`.
                assert self.log, f"all was read before {step} {moment}, and nothing was killed"
                assert steps is None, f"it came to its end before {step} {moment}; {self.log}"
                return
        answer = self._finish()
        assert answer["ended"] == "idle", f"{answer}; {self.log}"

    def _live_until(self, step: str, moment: str, call: int) -> bool:
        """Run until the kill at this step; return False if nothing was left to read before that."""
        driver = self.drivers.take()
        driver.arm(step, moment, call)
        driver.begin(self.order)
        deadline = time.monotonic() + ARRIVAL_S
        while (pid := driver.look_at_gate()) is None:
            if (answer := driver.answer()) is not None:
                assert answer["ended"] == "idle", f"it failed before {step} {moment}: {answer}; {self.log}"
                driver.kill()
                self.drivers.bury(driver)
                return False
            assert time.monotonic() < deadline, f"nobody comes to {step} {moment}: {driver.console}"
            time.sleep(0.02)
        driver.kill()
        assert driver.process.returncode == -signal.SIGKILL
        self.log.append({"step": step, "moment": moment, "call": call, "pid": pid})
        self.drivers.bury(driver)
        return True

    def _finish(self) -> dict[str, Any]:
        driver = self.drivers.take(start_next=False)
        driver.begin(self.order)
        deadline = time.monotonic() + ARRIVAL_S
        while (answer := driver.answer()) is None:
            assert time.monotonic() < deadline, f"it does not end: {driver.console}; {self.log}"
            time.sleep(0.02)
        self.drivers.put_back(driver)
        return answer


def dump_tables(database: OwnDatabase) -> Dump:
    """Return all rows of all tables, without the columns that record wall-clock time."""
    quote = GRAMMARS[parse_place(database.url).dialect].quote
    dump: Dump = {}
    for table, schema in TABLES.items():
        left_out = OF_THE_WALL.get(table.name, ())
        columns = [f"{quote}{name}{quote}" for name in schema.names if name not in left_out]
        rows = database.run(f"SELECT {', '.join(columns)} FROM {table.name}")
        dump[table.name] = sorted(
            (tuple(bytes(cell) if isinstance(cell, memoryview) else cell for cell in row) for row in rows),
            key=repr,
        )
    return dump


def compare(found: Dump, undisturbed: Dump, log: list[dict[str, Any]]) -> int:
    """Compare row by row and return how many rows were the same."""
    for table, rows in undisturbed.items():
        wrong = [row for row in found[table] if row not in rows][:3]
        missing = [row for row in rows if row not in found[table]][:3]
        assert found[table] == rows, f"{table}: {wrong} instead of {missing}; {log}"
    return sum(map(len, undisturbed.values()))
