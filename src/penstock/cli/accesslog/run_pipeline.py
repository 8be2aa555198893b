"""Read access logs from a topic, count the load, find attackers and block them: the pipeline, until Ctrl-C.

penstock accesslog run --bootstrap-server b:9092 --topic lines --database results.db
penstock accesslog run --topic lines --database postgresql://me@db.example/stats --create-tables
penstock accesslog run --topic lines --database results.db --blocklist-dir lists --allow 10.0.0.0/8
penstock accesslog run --topic lines --database results.db --decisions-topic decisions

Lines, decisions and offsets are stored in one transaction for each batch: stopped or killed at any moment and
started again, it goes on where it was, and each line counts once. The terminal shows lines a second, the lag,
how long batches take and who was blocked; elsewhere that is a plain line every few seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.accesslog.places import add_gate_arguments, gather_allowed
from penstock.cli.connection import add_connection_arguments, connect, gather_settings
from penstock.cli.terminal import complain, count, escape, say
from penstock.core.errors import PenstockError
from penstock.core.places import FilePlace, Place, parse_place
from penstock.core.references import resolve_reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
    from penstock.apps.accesslog.stream.settings import PipelineSettings

#: How often a plain line is written where there is no terminal.
PLAIN_EVERY_S = 5.0
_TOP_ATTACKERS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="whose lines are read")
    parser.add_argument(
        "--database",
        required=True,
        metavar="PLACE",
        help="a file or an address; ${env:NAME} hides a password",
    )
    parser.add_argument("--create-tables", action="store_true", help="make the tables in a server's database")
    parser.add_argument("--name", default="accesslog", help="the stream's name (default: accesslog)")
    parser.add_argument(
        "--log-format", metavar="F", default="auto", help="how lines are written (default: auto)"
    )
    parser.add_argument("--interval", default="1s", metavar="TIME", help="of batches (default: 1s)")
    parser.add_argument("--lateness", default="1s", metavar="TIME", help="lines wait so long for others (1s)")
    parser.add_argument(
        "--idle-after", default="5s", metavar="TIME", help="a silent partition is not waited for then (5s)"
    )
    parser.add_argument("--start", choices=["earliest", "latest"], default="earliest", help="of a first run")
    parser.add_argument("--most-lines", type=int, default=2_000_000, help="in one batch (default 2,000,000)")
    parser.add_argument("--rules", metavar="PATH", action="append", default=[], help="rules instead of ours")
    parser.add_argument(
        "--webhook", metavar="URL", default=None, help="where alerts go; ${env:NAME} hides it"
    )
    parser.add_argument(
        "--blocklist-dir", metavar="DIR", default=None, help="keep blocklists here up to date"
    )
    parser.add_argument(
        "--blocklist-format", metavar="F", action="append", default=[], help="which (default: text and json)"
    )
    parser.add_argument(
        "--decisions-topic", metavar="TOPIC", default=None, help="send each decision there, its id as the key"
    )
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is left to do")
    parser.add_argument("--master", default="local[2]", help="Spark's master (default: local[2])")
    add_gate_arguments(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.apps.accesslog.stream.pipeline import Pipeline
    from penstock.apps.accesslog.stream.warming import warm_up

    settings = read_settings(arguments)
    prepare_tables(settings.place, arguments.create_tables)
    with ExitStack() as stack:
        outputs = (_open_blocklists, _open_decisions_topic, _open_webhook)
        after = [open_output(stack, arguments, settings) for open_output in outputs]
        say("Preparing: the first time on a computer this compiles for a minute ...")
        warm_up(settings.tools)
        say(f"Starting Spark ({escape(arguments.master)}) ...")
        spark = start_spark(arguments.master)
        stack.callback(spark.stop)
        pipeline = Pipeline(spark, settings)
        display = Display(pipeline)
        pipeline.add_listener(display.show)
        for act in after:
            if act is not None:
                pipeline.add_listener(act)
        say(f"Reading {escape(settings.topic)} into {escape(str(settings.place))}; Ctrl-C stops it.")
        outcome = pipeline.run(until_idle=arguments.until_idle)
        display.close(outcome.reason)
    return 0


def read_settings(arguments: argparse.Namespace) -> PipelineSettings:
    from penstock.apps.accesslog.stream.settings import PipelineSettings

    return PipelineSettings(
        arguments.topic,
        parse_place(_resolve("--database", arguments.database)),
        gather_settings(arguments),
        name=arguments.name,
        log_format=arguments.log_format,
        interval=arguments.interval,
        lateness=arguments.lateness,
        idle_after=arguments.idle_after,
        start=arguments.start,
        most_lines=arguments.most_lines,
        trusted_proxies=tuple(arguments.trusted_proxy),
        allow=tuple(gather_allowed(arguments)),
        trust_crawlers=not arguments.distrust_crawlers,
        rules=tuple(arguments.rules),
    )


def prepare_tables(place: Place, asked: bool) -> None:
    """A file of one's own needs no second step; a server's database belongs to somebody."""
    from penstock.apps.accesslog.stream.tables import create_tables

    if asked or isinstance(place, FilePlace):
        create_tables(place)


def start_spark(master: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName("penstock-accesslog")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


# --- what happens after a batch ---------------------------------------------------------------------------


def _open_blocklists(
    stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Callable[[BatchNews], None] | None:
    if arguments.blocklist_dir is None:
        return None
    from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter

    formats = tuple(arguments.blocklist_format) or ("text", "json")
    writer = BlocklistWriter(
        settings.place,
        arguments.blocklist_dir,
        formats,
        allow=settings.allow,
        trusted_proxies=settings.trusted_proxies,
        trust_crawlers=settings.trust_crawlers,
    )
    return lambda news: _try(lambda: writer.refresh(has_new_decisions=bool(news.decisions.num_rows)))


def _open_decisions_topic(
    stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Callable[[BatchNews], None] | None:
    """What a run before this one stored and did not send any more goes first; also after a failure."""
    if arguments.decisions_topic is None:
        return None
    from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic

    client = replace(connect(arguments), client_id="penstock-decisions")
    topic = stack.enter_context(closing(DecisionsTopic(settings.place, client, arguments.decisions_topic)))
    topic.demand_topic()
    topic.send()
    is_behind = False

    def send(news: BatchNews) -> None:
        nonlocal is_behind
        if is_behind:
            topic.send()
        elif news.decisions.num_rows:
            is_behind = True
            topic.send_these(news.decisions)
        is_behind = False

    return lambda news: _try(lambda: send(news))


def _open_webhook(
    stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Callable[[BatchNews], None] | None:
    if arguments.webhook is None:
        return None
    from penstock.apps.accesslog.monitoring.alerts import Webhook
    from penstock.apps.accesslog.monitoring.telling import AlertTeller

    webhook = Webhook(_resolve("--webhook", arguments.webhook))
    teller = stack.enter_context(closing(AlertTeller(settings.place, webhook)))
    teller.tell()
    return lambda news: _try(lambda: teller.tell(has_new_alerts=bool(news.alerts.num_rows)))


def _try(act: Callable[[], object]) -> None:
    """The results are stored; what follows them may fail and is tried again after the next batch."""
    try:
        act()
    except PenstockError as error:
        complain(str(error))


def _resolve(option: str, text: str) -> str:
    return resolve_reference(
        option, text, environ=os.environ, read_file=lambda path: Path(path).read_text(encoding="utf-8")
    )


# --- numbers ----------------------------------------------------------------------------------------------


class Display:
    """Live numbers: one line that changes at a terminal, a plain line now and then elsewhere."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._is_live = sys.stdout.isatty()
        self._since = self._shown = clock()
        self._fresh = self._lines = self._dead = self._late = self._blocked = self._subjects = 0
        self._too_late = 0
        self._attackers: dict[str, tuple[int, str]] = {}

    def show(self, news: BatchNews) -> None:
        self._fresh += news.lines
        self._lines += news.lines
        self._dead += news.dead
        self._late += news.late
        self._too_late = news.too_late
        self._subjects = news.subjects or self._subjects
        for decision in news.decisions.select(["client", "class", "action", "level", "rule"]).to_pylist():
            if decision["action"] == "block":
                self._blocked += 1
                self._attackers[decision["client"]] = (decision["level"], decision["class"])
                if self._is_live:
                    self._write_over(f"blocked {escape(decision['client'])}: {decision['rule']}\n")
        now = self._clock()
        if self._is_live or (self._fresh and now - self._shown >= PLAIN_EVERY_S):
            self._tell(news, now)

    def _tell(self, news: BatchNews, now: float) -> None:
        rate = self._fresh / max(now - self._since, 0.001)
        report = news.report
        took = report.planning_ms + report.processing_ms + report.storing_ms
        text = (
            f"{rate:,.0f} lines/s, lag {self._pipeline.measure_lag():,}, batch {took:,.0f} ms, "
            f"{self._lines:,} lines, {self._subjects:,} remembered, {self._blocked:,} blocked"
        )
        if self._too_late:
            text += f", {self._too_late:,} too late for the load"
        if self._attackers:
            text += f"; top: {self._name_attackers()}"
        if self._is_live:
            self._write_over(text)
        else:
            say(text)
        if now - self._since >= PLAIN_EVERY_S or not self._is_live:
            self._since, self._fresh = now, 0
        self._shown = now

    def _name_attackers(self) -> str:
        last_first = reversed(self._attackers.items())
        worst = sorted(last_first, key=lambda each: -each[1][0])[:_TOP_ATTACKERS]
        return ", ".join(f"{escape(client)} ({attack})" for client, (_, attack) in worst)

    def _write_over(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()

    def close(self, reason: str) -> None:
        if self._is_live:
            self._write_over("")
        say(
            f"Stopped ({reason}): {count(self._lines, 'line')}, {self._dead:,} of them dead letters, "
            f"{self._late:,} late; {count(self._blocked, 'block')}, "
            f"{count(len(self._attackers), 'client')} blocked."
        )
        if self._too_late:
            late = count(self._too_late, "line")
            say(f"{late} since the beginning came too late for the tables of the load; rules have seen them.")
