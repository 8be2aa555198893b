"""The whole application on this computer: a real Kafka, simulated web servers, Spark, a report at the end.

penstock accesslog demo
penstock accesslog demo --seconds 120 --rate 5000 --out here/

Web servers are simulated, with attacks of every class among ordinary visitors; each writes a log file, which
a shipper follows into Kafka. The pipeline reads the lines, counts the load and blocks attackers. At the end
the demo accounts for every line, compares the decisions with the simulator's truth and writes an HTML report.
At a terminal it runs until Ctrl-C, otherwise for --seconds. Nothing is left running; its files stay in the
folder (--out).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from penstock.cli.accesslog.blocked_count import BlockedCount
from penstock.cli.accesslog.demo_servers import Servers
from penstock.cli.accesslog.live_numbers import Display
from penstock.cli.accesslog.run_outputs import finish, list_troubles, make_blocklist_output
from penstock.cli.commands.accesslog.run_pipeline import prepare_kernels, start_spark
from penstock.cli.shared.terminal import SafeProgressBar, complain, escape, say
from penstock.cluster.processes.signals import unwinding_on_signals
from penstock.core.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.apps.accesslog.evaluation.decision_scoring import Found, Label, Score, Visits
    from penstock.apps.accesslog.reporting.report_data import Check, ReportData
    from penstock.apps.accesslog.stream.pipeline import Pipeline
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings

TOPIC, PARTITIONS = "access-log", 4
#: What a run leaves in its folder; another run replaces these and nothing else.
DATABASE, TRUTH, REPORT, LOGS, LISTS = "results.db", "truth.csv", "report.html", "logs", "blocklists"
_MARK = "made-by-the-demo.txt"
_FOR_EVER_S = 24 * 3600
#: A client with no more requests than this reveals little.
_FEW_REQUESTS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=2_000.0, help="lines per second of all servers (2000)")
    parser.add_argument("--seconds", type=int, default=None, help="duration (60; at a terminal until Ctrl-C)")
    parser.add_argument("--servers", type=int, default=3, help="number of web servers (default 3)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the simulation (default 7)")
    parser.add_argument(
        "--out", type=Path, default=Path("accesslog-demo"), metavar="DIR", help="folder for its files"
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        with unwinding_on_signals():
            return _run(arguments)
    except (KeyboardInterrupt, SystemExit):
        complain("Ended before there was anything to report, or before the report was written.")
        raise


def _run(arguments: argparse.Namespace) -> int:
    from penstock.cluster import LocalKafka

    folder = prepare_folder(arguments.out)
    attended = sys.stdin.isatty() and sys.stdout.isatty()
    seconds = arguments.seconds or (_FOR_EVER_S if attended else 60)
    say("Starting Kafka on this computer ...")
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalKafka(progress=SafeProgressBar("Fetching Kafka")))
        _create_topic(kafka.bootstrap)
        settings = _prepare(kafka.bootstrap, folder)
        say("Starting Spark (local[2]) ...")
        spark = stack.enter_context(start_spark("local[2]"))
        names = [f"web{number + 1}" for number in range(arguments.servers)]
        say(f"{len(names)} web servers, {arguments.rate:,.0f} lines/s, attacks of every class among them.")
        servers = Servers(kafka.bootstrap, TOPIC, folder / LOGS, folder / TRUTH, names)
        stack.callback(servers.end)
        servers.simulate(arguments.rate, seconds, arguments.seed)
        # From here on a signal stops the servers, and what was found is still reported.
        with servers.stopping_on_signals():
            servers.ship()
            if attended and not arguments.seconds:
                say("Ctrl-C ends it.")
            _run_pipeline(spark, settings, folder, servers)
        say("The servers have stopped; taking what is left ...")
        servers.ship_rest()
        is_behind = _run_pipeline(spark, settings, folder, None)
    return conclude(folder, settings) or is_behind


def prepare_folder(folder: Path) -> Path:
    """Create the folder, remove what an earlier demo has left there, with a message, and return the folder.

    A folder without this program's mark is not touched, whatever its files are called: a pipeline's real
    database may have the same name, because the guide uses that name.
    """
    mark = folder / _MARK
    if folder.exists() and not mark.is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OptionError(
            "FOLDER_NOT_EMPTY",
            f"{folder} exists, and no demo has created it.",
            hint="Name another folder with --out.",
            facts={"folder": str(folder)},
        )
    if mark.is_file():
        say(f"What an earlier demo has left in {escape(str(folder))}/ is replaced; --out names another.")
    for name in (LOGS, LISTS):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", TRUTH, REPORT):
        (folder / name).unlink(missing_ok=True)
    mark.write_text(
        "`penstock accesslog demo` has created this folder and replaces its own files the next time:\n"
        f"{LOGS}/, {LISTS}/, {DATABASE}, {TRUTH} and {REPORT}.\n",
        encoding="utf-8",
    )
    return folder


def _create_topic(bootstrap: str) -> None:
    from penstock.core.client.client_settings import ClientSettings
    from penstock.kafka.metadata.topic_admin import create_topic

    host, port = bootstrap.split(":")
    create_topic(
        ClientSettings(((host, int(port)),), client_id="penstock-demo"), TOPIC, partitions=PARTITIONS
    )


def _prepare(bootstrap: str, folder: Path) -> PipelineSettings:
    from penstock.apps.accesslog.simulation.traffic_simulation import LOG_FORMAT
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
    from penstock.apps.accesslog.stream.pipeline_tables import create_tables

    settings = PipelineSettings(
        TOPIC, folder / DATABASE, {"bootstrap.servers": bootstrap}, log_format=LOG_FORMAT
    )
    create_tables(settings.place)
    prepare_kernels(settings.tools)
    return settings


def _run_pipeline(
    spark: SparkSession, settings: PipelineSettings, folder: Path, servers: Servers | None
) -> int:
    """Run until the servers have stopped or a stop is requested; without servers, until nothing is left.

    Return 1 if the blocklists are not up to date at the end, else 0.
    """
    from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter
    from penstock.apps.accesslog.stream.pipeline import Pipeline

    pipeline = Pipeline(spark, settings)
    formats = ("text", "json", "nftables")
    lists = make_blocklist_output(BlocklistWriter(settings.place, folder / LISTS, settings.gate, formats))
    display = Display(pipeline, BlockedCount(settings), lambda: list_troubles([lists]))
    pipeline.add_listener(lists.follow)
    pipeline.add_listener(display.show)
    pipeline.stream.add_listener(display.watch)
    if servers is not None:
        threading.Thread(target=_stop_when_over, args=(servers, pipeline), daemon=True).start()
    with display.ticking():
        outcome = pipeline.run(until_idle=servers is None)
    display.close(outcome.reason)
    return finish([lists])


def _stop_when_over(servers: Servers, pipeline: Pipeline) -> None:
    servers.wait()
    pipeline.stop()


# --- the end ----------------------------------------------------------------------------------------------


def conclude(folder: Path, settings: PipelineSettings) -> int:
    """Show totals, the decisions' quality, the audit and the report; return 1 if a check fails, else 0."""
    from penstock.apps.accesslog.reporting.html_report import write_report
    from penstock.apps.accesslog.reporting.report_data import read_report
    from penstock.cli.commands.accesslog.report import save_page

    logs = sorted((folder / LOGS).glob("*.log"))
    checks = check_lines(settings, logs)
    say("\nEvery line accounted for:")
    for each in checks:
        say(f"  {'yes' if each.is_good else 'NO '}  {each.what}: {each.detail}")
    data = read_report(settings.place, made_at=datetime.now(UTC), title="Simulated web servers")
    if (folder / TRUTH).exists():
        data = _compare(data, folder / TRUTH, logs, settings)
    else:
        say(f"\nThe simulator left no truth (output: {folder / LOGS / 'simulate.txt'}), so nobody can say")
        say("how good the decisions are; the report has no such table.")
    save_page(folder / REPORT, write_report(replace(data, checks=checks)))
    say(f"\nReport: {folder / REPORT}\nResults: {folder / DATABASE}   Blocklists: {folder / LISTS}/")
    return 0 if all(each.is_good for each in checks) else 1


def _compare(data: ReportData, truth: Path, logs: Sequence[Path], settings: PipelineSettings) -> ReportData:
    """Show how good the decisions are, and return the report's data with these figures."""
    from penstock.apps.accesslog.evaluation.decision_scoring import (
        count_visits,
        describe_classes,
        read_labels,
        score,
    )
    from penstock.apps.accesslog.reporting.report_data import ReportedScore

    found, labels, visits = _read_found(settings), read_labels(truth), count_visits(logs)
    result = score(found, labels, visits)
    say("\nDecisions against the simulator's truth:")
    for line in (*describe_outcome(result, found, labels, visits), "", *describe_classes(result)):
        say(f"  {escape(line)}".rstrip())
    scores = [
        ReportedScore(
            name,
            one.clients,
            len(one.requests),
            _median(one.requests),
            _median(one.seconds),
            None,
        )
        for name, one in sorted(result.classes.items())
    ]
    return replace(data, scores=scores, benign_hit=result.benign_hit, blocked_share=result.blocked)


def describe_outcome(
    result: Score, found: Sequence[Found], labels: Sequence[Label], visits: Mapping[str, Visits]
) -> Iterator[str]:
    """Yield the figures, and why they are no better: some attackers look like ordinary visitors."""
    yield f"{result.found:,} of {result.attackers:,} attackers blocked ({result.recall:.1%})"
    yield f"{result.benign_hit:,} of {result.benign:,} honest clients blocked"
    yield f"{result.blocked:.1%} of the attackers' requests came after the decision to block them"
    known = {each.client for each in found}
    missed = [each for each in labels if each.label == "attack" and each.client not in known]
    if not missed:
        return
    few = sum(visits[each.client].requests <= _FEW_REQUESTS for each in missed if each.client in visits)
    by_class = Counter(each.attack for each in missed).most_common()
    yield ""
    yield f"Not blocked: {', '.join(f'{number:,} {name}' for name, number in by_class)}."
    yield f"{few:,} of these sent at most {_FEW_REQUESTS} requests. The simulator mixes in attackers"
    yield "that no log distinguishes from people: a distributed_scan cut into a few requests for each"
    yield "address, form_spam sent as people send forms, brute_force slower than somebody who forgot a"
    yield "password; and those that had just begun when the servers stopped."


def check_lines(settings: PipelineSettings, logs: Sequence[Path]) -> list[Check]:
    """Return the results of comparing the lines of the files, the counts, the load and the ledger."""
    from penstock.apps.accesslog.reporting.report_data import Check
    from penstock.stores.sql.connections.sql_sessions import Database

    written = sum(log.read_bytes().count(b"\n") for log in logs)
    (lines, parsed, dead), (letters,), (requests,), (too_late,) = Database(settings.place).run(
        lambda session: [
            tuple(int(each or 0) for each in session.execute(statement)[0])
            for statement in (
                "SELECT SUM(lines), SUM(parsed), SUM(dead) FROM accesslog_counts",
                "SELECT COUNT(*) FROM accesslog_dead_letters",
                "SELECT SUM(requests) FROM accesslog_seconds",
                "SELECT MAX(value) FROM accesslog_settings WHERE name = 'too_late'",
            )
        ]
    )
    audit = io.StringIO()
    with contextlib.redirect_stdout(audit):
        from penstock.cli import main

        code = main(["audit", str(settings.database)])
    words = audit.getvalue().rstrip().rpartition("\n")[2]
    return [
        Check("lines in the log files = lines from Kafka", written == lines, f"{written:,} and {lines:,}"),
        Check("parsed + dead letters = lines", parsed + dead == lines, f"{parsed:,} + {dead:,}"),
        Check("dead letters kept", letters == dead, f"{letters:,}"),
        Check(
            "requests in the load + too late for the load = parsed",
            requests + too_late == parsed,
            f"{requests:,} + {too_late:,}",
        ),
        Check("offsets and rows agree (penstock audit)", code == 0, words),
    ]


def _read_found(settings: PipelineSettings) -> list[Found]:
    """Return the first block of each client."""
    from penstock.apps.accesslog.evaluation.decision_scoring import Found, unify
    from penstock.stores.sql.connections.sql_sessions import Database

    rows = Database(settings.place).run(
        lambda session: session.execute(
            "SELECT client, request_index, decided_at FROM accesslog_decisions WHERE action = 'block' "
            "ORDER BY decided_at"
        )
    )
    first: dict[str, Found] = {}
    for client, index, decided_us in rows:
        name = unify(str(client))
        first.setdefault(name, Found(name, int(index), int(decided_us) / 1e6))
    return list(first.values())


def _median(numbers: Sequence[float]) -> float | None:
    return median(numbers) if numbers else None
