"""Faults in Spark rounds: direct streams into SQL sinks, with each record there exactly once at every moment.

    python -m tests.proof.spark_sql_rounds --rounds 30 --seed 1 --write

A campaign has one broker with one topic and its producer's ledger of acknowledged sends, one database, and a
crew of Spark drivers. Some rounds run on a standalone cluster of two workers. The others run on `local[2,4]`,
where the executor is the driver's own and a kill hits the Python worker of a running task instead. A round
writes the whole topic into a fresh table, with some faults one after another, each at a step that the seed
chose and that a process reached. While it runs, rows and offsets are counted in one statement, again and
again. At the end the table must match the producer's ledger. A fault that did not happen fails its round.
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
from penstock.testing.proxy import FaultProxy
from tests.crash.acknowledged import Sent, fill_topic
from tests.crash.sql.sql_crew import Crew, crew
from tests.crash.sql.sql_drill import FAULTS, FILE_FAULTS, Place, SqlDrill
from tests.proof.recording import record
from tests.spark.streaming import create_topic
from tests.sql.databases import make_database, make_file_database
from tests.sql.sinks import lead_through
from tests.support.servers.spark_standalone import LocalSpark

log = logging.getLogger(__name__)

KINDS = ("postgresql", "mariadb", "sqlite")
RECORDS = (1500, 1000, 800)
LOCAL = "local[2,4]"


@dataclass
class Campaign:
    """What was asked for, and the results."""

    kind: str
    seed: int
    rounds: int
    cluster_rounds: int
    done: list[dict[str, Any]] = field(default_factory=list)
    trouble: list[dict[str, Any]] = field(default_factory=list)


def run_campaign(campaign: Campaign, minutes: float) -> None:
    until = time.monotonic() + minutes * 60
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalKafka())
        create_topic(kafka.bootstrap, "t", len(RECORDS))
        sent = fill_topic(kafka.bootstrap, "t", RECORDS, campaign.seed)
        server: LocalDatabase | None = None
        if campaign.kind != "sqlite":
            server = stack.enter_context(LocalPostgres() if campaign.kind == "postgresql" else LocalMariaDB())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        on_cluster = campaign.cluster_rounds if server is not None else 0
        if on_cluster:
            # One core for an executor of each driver: one is at work, one ready to take over, others are
            # starting.
            with (
                LocalSpark(cores=4, memory_mb=4096) as cluster,
                crew(folder / "cluster", cluster.master_url) as drivers,
            ):
                _run_rounds(campaign, range(on_cluster), drivers, kafka, sent, server, until)
        with crew(folder / "local", LOCAL) as drivers:
            rest = range(on_cluster, campaign.rounds)
            _run_rounds(campaign, rest, drivers, kafka, sent, server, until)


def _run_rounds(
    campaign: Campaign,
    numbers: range,
    drivers: Crew,
    kafka: LocalKafka,
    sent: Sent,
    server: LocalDatabase | None,
    until: float,
) -> None:
    for number in numbers:
        if time.monotonic() > until:
            return
        seed = campaign.seed * 100_000 + number
        began = time.monotonic()
        with ExitStack() as stack:
            if server is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                database = make_file_database(Path(folder))
                place = Place(database, database.url, kafka, sent)
            else:
                database = stack.enter_context(make_database(server))
                proxy = stack.enter_context(FaultProxy())
                url = lead_through(proxy, database.url)
                place = Place(database, url, kafka, sent, server, proxy)
            drill = SqlDrill(seed, place, drivers)
            try:
                drill.run(
                    FILE_FAULTS if server is None else FAULTS, parallel=bool(server) and number % 2 == 0
                )
            except AssertionError as error:
                campaign.trouble.append({"seed": seed, "error": str(error)[:3000], "log": drill.log})
                log.error("%s %s: %s\n%s", campaign.kind, seed, error, drill.log)
                drivers.replace_all()
                continue
        campaign.done.append(
            {
                "seed": seed,
                "master": "standalone, two workers" if drivers.is_cluster else LOCAL,
                "strategy": drill.strategy,
                "rows": drill.rows,
                "snapshots": drill.snapshots,
                "seconds": round(time.monotonic() - began, 1),
                "faults": drill.log,
            }
        )
        log.info("%s %s: %s rows, %s s", campaign.kind, seed, drill.rows, campaign.done[-1]["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="for each database")
    parser.add_argument("--cluster-rounds", type=int, default=8, help="of these, on a standalone cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--minutes", type=float, default=600.0, help="for each; no round begins after that")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that nothing is left behind
    failed = False
    for kind in options.kinds:
        campaign = Campaign(kind, options.seed, options.rounds, options.cluster_rounds)
        started = time.monotonic()
        try:
            run_campaign(campaign, options.minutes)
        finally:  # what was proven before the machine failed stays proven
            _record(campaign, time.monotonic() - started, options.write)
        failed |= bool(campaign.trouble)
    return int(failed)


def _record(campaign: Campaign, seconds: float, write: bool) -> None:
    faults = [fault for each in campaign.done for fault in each["faults"]]
    record(
        f"spark-sql-rounds-{campaign.kind}",
        f"faults at steps of direct streams on Spark into {campaign.kind}, against the producer's ledger",
        repeat=f"python -m tests.proof.spark_sql_rounds --rounds {campaign.rounds} --seed {campaign.seed} "
        f"--cluster-rounds {campaign.cluster_rounds} --kinds {campaign.kind}",
        facts={
            "seed": campaign.seed,
            "seconds": round(seconds, 1),
            "rounds_asked": campaign.rounds,
            "rounds": len(campaign.done),
            "rounds_by_master": dict(Counter(each["master"] for each in campaign.done)),
            "records_acknowledged": sum(RECORDS),
            "rows": sum(each["rows"] for each in campaign.done),
            "snapshots": sum(each["snapshots"] for each in campaign.done),
            "faults": dict(sorted(Counter(each["fault"] for each in faults).items())),
            "steps": dict(sorted(Counter(each["step"] for each in faults).items())),
            "trouble": campaign.trouble,
            "log": campaign.done,
        },
        write=write,
    )


if __name__ == "__main__":
    raise SystemExit(main())
