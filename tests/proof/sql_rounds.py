"""Random faults at random steps of publishing, on real databases: each row once, at every moment.

    python -m tests.proof.sql_rounds --rounds 70 --seed 1 --write

A round is a fresh table and a stream of a thousand rows and more. Some lives of a writer run, each with a
fault at a step that the seed chose: it is killed, or it stands still there while the database is killed and
started again, the connection is cut, the answer to the step is cut, another writer takes over, or somebody
holds its lock. A last life without a fault finishes. While they run, rows and offsets are counted in one
statement, again and again.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.database import LocalDatabase
from penstock.testing.proxy import FaultProxy
from tests.crash.sql_lives import Plan, begin_life, check_rows, count_moment, watch
from tests.proof.recording import record
from tests.sql.databases import OwnDatabase, make_database, make_file_database
from tests.sql.sinks import lead_through, make_sink

KINDS = ("sqlite", "postgresql", "mariadb")
FAULTS = {
    "sqlite": ("kill", "successor", "lock"),
    "postgresql": ("kill", "kill", "successor", "lock", "server", "cut", "cut-answer"),
    "mariadb": ("kill", "kill", "successor", "lock", "server", "cut", "cut-answer"),
}
#: Taking over, and two batches.
STEPS = 18


@dataclass
class Place:
    """Where a round happens, and what can be done to it."""

    database: OwnDatabase
    url: str
    server: LocalDatabase | None = None
    proxy: FaultProxy | None = None


@dataclass
class Round:
    """What happened in a round: for each life its fault, the step it had come to, and the rows there were."""

    seed: int
    lives: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0


def run_round(seed: int, kind: str, place: Place) -> Round:
    dice = random.Random(seed)
    make_sink(place.database.url).open("s").close()
    result = Round(seed)
    until = (dice.randint(600, 900), dice.randint(500, 700))
    lives = dice.randint(2, 3)
    share = (until[0] // (lives + 1), until[1] // (lives + 1))
    for number in range(1, lives + 1):
        staged = kind != "sqlite" and dice.random() < 0.6
        goal = (share[0] * number, share[1] * number)
        sizes = (share[0] // 2, share[1] // 2)  # two batches at least: enough steps for the fault
        plan = Plan(goal, sizes, staged, dice.randint(1, STEPS), dice.choice(("before", "after")))
        result.lives.append(_live(place, plan, dice.choice(FAULTS[kind])))
    with begin_life(place.database.url, Plan(until, share, kind != "sqlite")) as last:
        watch(last, place.database)
        assert last.code == 0, last.steps
    result.rows = check_rows(place.database)
    assert result.rows == sum(until), f"{result.rows} rows of {sum(until)}"
    return result


def _live(place: Place, plan: Plan, fault: str) -> dict[str, Any]:
    rows_before = count_moment(place.database)[0]
    plan = replace(plan, number=signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    with ExitStack() as undo, begin_life(place.url, plan) as life:
        state = watch(life, place.database, "over" if fault == "kill" else "stands")
        steps = list(life.steps)
        if state == "stands":
            _strike(place, plan, fault, undo)
            life.go_on()
            if fault == "lock":
                undo.close()
            watch(life, place.database)
        check_rows(place.database)
        return {
            "fault": fault if state == "stands" or life.was_killed else "none: it had ended before",
            "step": f"{plan.when} {steps[-1]} ({len(steps)})",
            "staged": plan.staged,
            "ended": "killed" if life.was_killed else life.code,
            "rows_before": rows_before,
            "rows_after": count_moment(place.database)[0],
        }


def _strike(place: Place, plan: Plan, fault: str, undo: ExitStack) -> None:
    """What is done while the writer stands still."""
    if fault == "successor":
        with begin_life(place.database.url, replace(plan, step=None)) as other:
            watch(other, place.database)
    elif fault == "server":
        assert place.server is not None
        place.server.kill()
        place.server.start()
    elif fault == "cut":
        assert place.proxy is not None
        place.proxy.cut()
    elif fault == "cut-answer":
        assert place.proxy is not None
        place.proxy.cut_before_answer()
    elif fault == "lock":
        _hold(place, undo)


def _hold(place: Place, undo: ExitStack) -> None:
    """Take the stream's row from under it, if it is free, for as long as it takes to be noticed."""
    holder = undo.enter_context(closing(place.database.connect()))
    cursor = holder.cursor()
    is_file = "sqlite" in place.database.url
    is_postgres = "postgres" in place.database.url
    if is_file:
        cursor.execute("PRAGMA busy_timeout = 200")
    else:
        cursor.execute("SET lock_timeout = '200ms'" if is_postgres else "SET innodb_lock_wait_timeout = 1")
    try:
        cursor.execute("BEGIN IMMEDIATE" if is_file else "BEGIN")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'somebody' WHERE stream = 's'")
    except (
        Exception
    ) as error:  # the drivers share no class; the writer holds it already, which is a case, too
        if "lock" not in str(error).lower():
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    failed = False
    for kind in options.kinds:
        failed |= not run_campaign(kind, options.rounds, options.seed, options.write)
    return int(failed)


def run_campaign(kind: str, rounds: int, seed: int, write: bool) -> bool:
    started = time.monotonic()
    done: list[Round] = []
    trouble: list[dict[str, Any]] = []
    with ExitStack() as stack:
        server = None
        if kind != "sqlite":
            server = stack.enter_context(LocalPostgres() if kind == "postgresql" else LocalMariaDB())
        for number in range(rounds):
            try:
                done.append(_run_in_own_place(seed * 100_000 + number, kind, server))
            except AssertionError as error:
                trouble.append({"seed": seed * 100_000 + number, "error": str(error)[:2000]})
                sys.stderr.write(f"{kind} {seed * 100_000 + number}: {error}\n")
    lives = [life for each in done for life in each.lives]
    record(
        f"sql-rounds-{kind}",
        f"faults at random steps of publishing into {kind}",
        repeat=f"python -m tests.proof.sql_rounds --rounds {rounds} --seed {seed} --kinds {kind}",
        facts={
            "seed": seed,
            "seconds": round(time.monotonic() - started, 1),
            "rounds": len(done),
            "lives": len(lives),
            "rows": sum(each.rows for each in done),
            "faults": dict(sorted(Counter(life["fault"] for life in lives).items())),
            "steps": dict(sorted(Counter(life["step"].rpartition(" (")[0] for life in lives).items())),
            "ended": dict(sorted(Counter(str(life["ended"]) for life in lives).items())),
            "trouble": trouble,
            "log": [{"seed": each.seed, "rows": each.rows, "lives": each.lives} for each in done],
        },
        write=write,
    )
    return not trouble


def _run_in_own_place(seed: int, kind: str, server: LocalDatabase | None) -> Round:
    with ExitStack() as stack:
        if server is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            database = make_file_database(Path(folder))
            return run_round(seed, kind, Place(database, database.url))
        database = stack.enter_context(make_database(server))
        proxy = stack.enter_context(FaultProxy())
        return run_round(seed, kind, Place(database, lead_through(proxy, database.url), server, proxy))


if __name__ == "__main__":
    raise SystemExit(main())
