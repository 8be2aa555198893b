"""Random faults at random steps of publishing, on a real broker and real databases: each record once.

    python -m tests.proof.sql_rounds --rounds 70 --seed 1 --write

A campaign has one broker, one topic of more than a thousand records, and their producer's ledger of
acknowledged sends. A round writes the whole topic into a fresh table. Several lives of a writer run, each
with a fault at a step that the seed chose, which may also be reading. The writer is killed there, or it is
stopped while the database or the broker is killed or restarted, the connection is cut, the answer to the step
is cut, another writer takes over, or somebody holds its lock. A last life without a fault finishes. While
they run, rows and offsets are counted in one statement, again and again. At the end the table must match the
ledger.

With `--few-rights`, the owner creates the tables and all lives run as a user with the rights that the guide
on delivery names. In every other round these are only the rights on rows, and no life stages; in the others
they also include those for staging.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.cluster import LocalKafka, LocalMariaDB, LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.core.options.direct_options import DirectOptions
from penstock.kafka.records.record_warmup import ensure_compiled
from penstock.testing.proxy import FaultProxy
from tests.crash.acknowledged import Sent, fill_topic
from tests.crash.sql.sql_lives import (
    Life,
    Plan,
    begin_life,
    check_sent,
    count_moment,
    hold_writer_row,
    prepare_rows,
    read_from,
    watch,
)
from tests.proof.recording import record
from tests.spark.streaming import create_topic
from tests.sql.databases import OwnDatabase, make_database, make_file_database
from tests.sql.roles import make_role
from tests.sql.sinks import lead_through

KINDS = ("sqlite", "postgresql", "mariadb")
#: How often each fault is chosen; a broker's start takes longest, and it affects only reading.
_ANYWHERE = (*["kill"] * 8, *["successor"] * 4, *["lock"] * 4, "broker", "broker-away")
_SERVER = (*_ANYWHERE, *["server"] * 2, "server-restart", *["cut"] * 4, *["cut-answer"] * 4)
FAULTS = {"sqlite": _ANYWHERE, "postgresql": _SERVER, "mariadb": _SERVER}
#: Taking over (six steps) and two batches: reading, and a publish (six).
STEPS = 20
RECORDS = (800, 600)


@dataclass
class Place:
    """Where a round happens, and what can be done to it.

    `url` may lead through the proxy, `direct` never does; both are for writers. `database` is for observers.
    """

    database: OwnDatabase
    url: str
    direct: str
    kafka: LocalKafka
    sent: Sent
    source: DirectOptions
    server: LocalDatabase | None = None
    proxy: FaultProxy | None = None
    may_stage: bool = True


@dataclass
class Round:
    """The record of a round: for each life its fault, the step it had reached, and the number of rows."""

    seed: int
    lives: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0


def run_round(seed: int, kind: str, place: Place) -> Round:
    dice = random.Random(seed)
    result = Round(seed)
    until = (place.sent.ends[0], place.sent.ends[1])
    lives = dice.randint(2, 3)
    share = (until[0] // (lives + 1), until[1] // (lives + 1))
    for number in range(1, lives + 1):
        staged = kind != "sqlite" and dice.random() < 0.6 and place.may_stage
        goal = (share[0] * number - dice.randrange(20), share[1] * number - dice.randrange(20))
        # At least two batches, so that there are enough steps for the fault.
        sizes = (share[0] // 2 - dice.randrange(15), share[1] // 2 - dice.randrange(15))
        plan = Plan(goal, sizes, staged, dice.randint(1, STEPS), dice.choice(("before", "after")))
        plan = replace(plan, source=place.source)
        result.lives.append(_live(place, plan, dice.choice(FAULTS[kind])))
    is_staged = kind != "sqlite" and place.may_stage
    with begin_life(place.direct, Plan(until, share, is_staged, source=place.source)) as last:
        watch(last, place.database)
        assert last.code == 0, last.steps
    assert any(not life["fault"].startswith("none") for life in result.lives), "nothing happened"
    result.rows = check_sent(place.database, place.sent)
    assert result.rows == len(place.sent.rows), f"{result.rows} rows of {len(place.sent.rows)}"
    return result


def _live(place: Place, plan: Plan, fault: str) -> dict[str, Any]:
    rows_before = count_moment(place.database)[0]
    plan = replace(plan, number=signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    with ExitStack() as undo, begin_life(place.url, plan) as life:
        state = watch(life, place.database, "over" if fault == "kill" else "stands")
        steps = list(life.steps)
        if state == "stands":
            _strike(place, plan, fault, life, undo)
            watch(life, place.database)
        check_sent(place.database, place.sent)
        return {
            "fault": fault if state == "stands" or life.was_killed else "none: it had ended before",
            "step": f"{plan.when} {steps[-1]} ({len(steps)})",
            "staged": plan.staged,
            "ended": "killed" if life.was_killed else life.code,
            "rows_before": rows_before,
            "rows_after": count_moment(place.database)[0],
        }


def _strike(place: Place, plan: Plan, fault: str, life: Life, undo: ExitStack) -> None:
    """Let the fault happen while the writer is stopped, then let the writer continue."""
    broker = place.kafka.brokers[0]
    if fault == "successor":
        with begin_life(place.direct, replace(plan, step=None)) as other:
            watch(other, place.database)
    elif fault in ("server", "server-restart"):
        assert place.server is not None
        (place.server.kill if fault == "server" else place.server.stop)()
        place.server.start()
    elif fault == "broker":
        broker.kill()
        broker.start()
    elif fault == "broker-away":
        broker.kill()
    elif fault == "cut":
        assert place.proxy is not None
        place.proxy.cut()
    elif fault == "cut-answer":
        assert place.proxy is not None
        place.proxy.cut_before_answer()
    elif fault == "lock":
        hold_writer_row(place.database, undo)
    life.go_on()
    if fault == "broker-away":
        broker.start()
    elif fault == "lock":
        undo.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--minutes", type=float, default=600.0, help="for each; no round begins after that")
    parser.add_argument("--few-rights", action="store_true", help="lives run as a user with few rights")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.few_rights and "sqlite" in options.kinds:
        parser.error("SQLite has no users: give --kinds postgresql mariadb")
    ensure_compiled()  # once here, not in every fork
    failed = False
    for kind in options.kinds:
        campaign = Campaign(kind, options.rounds, options.seed, options.few_rights)
        failed |= not run_campaign(campaign, options.minutes, options.write)
    return int(failed)


@dataclass(frozen=True)
class Campaign:
    """What was asked for."""

    kind: str
    rounds: int
    seed: int
    few_rights: bool = False


def run_campaign(campaign: Campaign, minutes: float, write: bool) -> bool:
    kind, seed = campaign.kind, campaign.seed
    started = time.monotonic()
    done: list[Round] = []
    trouble: list[dict[str, Any]] = []
    try:
        with ExitStack() as stack:
            kafka = stack.enter_context(LocalKafka())
            create_topic(kafka.bootstrap, "t", len(RECORDS))
            sent = fill_topic(kafka.bootstrap, "t", RECORDS, seed)
            server = None
            if kind != "sqlite":
                server = stack.enter_context(LocalPostgres() if kind == "postgresql" else LocalMariaDB())
            for number in range(campaign.rounds):
                if time.monotonic() - started > minutes * 60:
                    break
                own = seed * 100_000 + number
                try:
                    done.append(_run_in_own_place(own, campaign, kafka, sent, server))
                except AssertionError as error:
                    trouble.append({"seed": own, "error": str(error)[:2000]})
                    sys.stderr.write(f"{kind} {own}: {error}\n")
    finally:  # what was proven before the machine failed stays proven
        _record(campaign, time.monotonic() - started, done, trouble, write)
    return not trouble


def _record(
    campaign: Campaign, seconds: float, done: list[Round], trouble: list[dict[str, Any]], write: bool
) -> None:
    kind, rounds, seed = campaign.kind, campaign.rounds, campaign.seed
    lives = [life for each in done for life in each.lives]
    few, flag = ("-few-rights", " --few-rights") if campaign.few_rights else ("", "")
    role = " by a user with few rights" if campaign.few_rights else ""
    record(
        f"sql-rounds{few}-{kind}",
        f"faults at steps of publishing into {kind}{role}, rows read from a broker, against the producer's "
        "ledger",
        repeat=f"python -m tests.proof.sql_rounds --rounds {rounds} --seed {seed} --kinds {kind}{flag}",
        facts={
            "seed": seed,
            "seconds": round(seconds, 1),
            "rounds_asked": rounds,
            "rounds": len(done),
            "records_acknowledged": sum(RECORDS),
            "lives": len(lives),
            "rows": sum(each.rows for each in done),
            "lives_that_stage": sum(life["staged"] for life in lives),
            "faults": dict(sorted(Counter(life["fault"] for life in lives).items())),
            "steps": dict(sorted(Counter(life["step"].rpartition(" (")[0] for life in lives).items())),
            "lives_ended": dict(sorted(Counter(str(life["ended"]) for life in lives).items())),
            "trouble": trouble,
            "log": [{"seed": each.seed, "rows": each.rows, "lives": each.lives} for each in done],
        },
        write=write,
    )


def _run_in_own_place(
    seed: int, campaign: Campaign, kafka: LocalKafka, sent: Sent, server: LocalDatabase | None
) -> Round:
    source, kind = read_from(kafka.bootstrap), campaign.kind
    with ExitStack() as stack:
        if server is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            database = make_file_database(Path(folder))
            prepare_rows(database)
            return run_round(seed, kind, Place(database, database.url, database.url, kafka, sent, source))
        database = stack.enter_context(make_database(server))
        prepare_rows(database)
        direct, may_stage = database.url, True
        if campaign.few_rights:
            role = stack.enter_context(make_role(database))
            role.grant_rows(numbers="append")
            direct, may_stage = role.url, bool(seed % 2)
            if may_stage:
                role.grant_staging()
        proxy = stack.enter_context(FaultProxy())
        url = lead_through(proxy, direct)
        return run_round(
            seed, kind, Place(database, url, direct, kafka, sent, source, server, proxy, may_stage)
        )


if __name__ == "__main__":
    raise SystemExit(main())
