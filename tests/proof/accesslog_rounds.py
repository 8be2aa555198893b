"""Rounds of kills of the access-log pipeline, each compared with a run that was left alone.

    python -m tests.proof.accesslog_rounds --rounds 30 --seed 1

Each round has its own traffic, writes to SQLite, PostgreSQL or MariaDB in turn, and kills the driver with its
JVM at steps that its seed chooses. Afterwards every row of every table must equal what the undisturbed run
left, and the decisions must equal those of the engine in memory.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cluster import LocalKafka, LocalMariaDB, LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase
from tests.crash.accesslog.accesslog_lives import PROGRAM, Dump, LogOrder, LogRound, compare, dump_tables
from tests.crash.sql.sql_crew import Crew
from tests.proof.recording import record
from tests.spark.streaming import create_topic
from tests.sql.databases import make_database, make_file_database
from tests.support.accesslog.accesslog_traffic import (
    Traffic,
    decide_in_memory,
    make_traffic,
    send_traffic,
    warm_kernels,
)

log = logging.getLogger(__name__)

KINDS = ("sqlite", "postgresql", "mariadb")
MASTER = "local[2,4]"
KILLS = 4
#: Lines per batch, taken in turn; they are few, so that a round has many batches.
SIZES = (90, 140, 300)


@dataclass
class Campaign:
    """What was asked for, and the results."""

    seed: int
    rounds: int
    kills: int
    kinds: tuple[str, ...]
    done: list[dict[str, Any]] = field(default_factory=list)
    trouble: list[dict[str, Any]] = field(default_factory=list)


def run_campaign(campaign: Campaign, minutes: float) -> None:
    until = time.monotonic() + minutes * 60
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalKafka())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, LocalDatabase] = {}
        if "postgresql" in campaign.kinds:
            servers["postgresql"] = stack.enter_context(LocalPostgres())
        if "mariadb" in campaign.kinds:
            servers["mariadb"] = stack.enter_context(LocalMariaDB())
        warm_kernels()
        drivers = Crew(folder / "drivers", MASTER, PROGRAM)
        stack.callback(drivers.close)
        for number in range(campaign.rounds):
            if time.monotonic() > until:
                return
            kind = campaign.kinds[number % len(campaign.kinds)]
            _run_round(campaign, number, kind, servers.get(kind), kafka, drivers, folder)


def _run_round(
    campaign: Campaign,
    number: int,
    kind: str,
    server: LocalDatabase | None,
    kafka: LocalKafka,
    drivers: Crew,
    folder: Path,
) -> None:
    seed, began = campaign.seed * 100_000 + number, time.monotonic()
    traffic = make_traffic(seed, benign=500)
    topic, size = f"log-{seed}", SIZES[number % len(SIZES)]
    create_topic(kafka.bootstrap, topic, len(traffic))
    send_traffic(kafka.bootstrap, topic, traffic)

    def live(name: str, kills: int) -> tuple[Dump, LogRound]:
        home = folder / f"{seed}-{name}"
        home.mkdir()
        with ExitStack() as stack:
            database = make_file_database(home)
            if server is not None:
                database = stack.enter_context(make_database(server))
            order = LogOrder(kafka.bootstrap, topic, database.url, str(home), size)
            one = LogRound(seed, drivers, order)
            one.run(kills)
            return dump_tables(database), one

    try:
        undisturbed, _ = live("alone", 0)
        found, killed = live("killed", campaign.kills)
        rows = compare(found, undisturbed, killed.log)
        decisions = _check_decisions(undisturbed, traffic)
    except AssertionError as error:
        campaign.trouble.append({"seed": seed, "kind": kind, "error": str(error)[:3000]})
        log.error("%s %s: %s", kind, seed, error)
        drivers.replace_all()
        return
    campaign.done.append(
        {
            "seed": seed,
            "kind": kind,
            "lines": sum(map(len, traffic.values())),
            "lines_per_batch": size,
            "rows_compared": rows,
            "decisions": decisions,
            "seconds": round(time.monotonic() - began, 1),
            "kills": killed.log,
        }
    )
    log.info("%s %s: %d rows, %s s", kind, seed, rows, campaign.done[-1]["seconds"])


def _check_decisions(dump: Dump, traffic: Traffic) -> int:
    """Check that the decisions are those of the engine in memory, and return how many there are.

    They are compared by id, which names the subject, the rule and the line that caused the decision.
    """
    expected = sorted(each["decision_id"] for each in decide_in_memory(traffic))
    assert sorted(row[0] for row in dump["accesslog_decisions"]) == expected
    return len(expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kills", type=int, default=KILLS, help="in each round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--minutes", type=float, default=300.0, help="no round begins after that")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that nothing is left behind
    campaign = Campaign(options.seed, options.rounds, options.kills, tuple(options.kinds))
    started = time.monotonic()
    try:
        run_campaign(campaign, options.minutes)
    finally:  # what was proven before the machine failed stays proven
        _record(campaign, time.monotonic() - started, options.write)
    return int(bool(campaign.trouble))


def _record(campaign: Campaign, seconds: float, write: bool) -> None:
    kills = [kill for each in campaign.done for kill in each["kills"]]
    record(
        "accesslog-rounds",
        "kills at steps of the access-log pipeline, against runs that were left alone",
        repeat=f"python -m tests.proof.accesslog_rounds --rounds {campaign.rounds} --seed {campaign.seed} "
        f"--kills {campaign.kills} --kinds {' '.join(campaign.kinds)}",
        facts={
            "seed": campaign.seed,
            "seconds": round(seconds, 1),
            "rounds_asked": campaign.rounds,
            "rounds": len(campaign.done),
            "rounds_by_database": dict(Counter(each["kind"] for each in campaign.done)),
            "lines": sum(each["lines"] for each in campaign.done),
            "rows_compared": sum(each["rows_compared"] for each in campaign.done),
            "decisions": sum(each["decisions"] for each in campaign.done),
            "kills": len(kills),
            "steps": dict(sorted(Counter(f"{each['step']} {each['moment']}" for each in kills).items())),
            "trouble": campaign.trouble,
            "log": campaign.done,
        },
        write=write,
    )


if __name__ == "__main__":
    raise SystemExit(main())
