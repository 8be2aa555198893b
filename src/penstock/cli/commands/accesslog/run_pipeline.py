"""Read access logs from a topic, count the load, find attackers and block them: the pipeline, until Ctrl-C.

penstock accesslog run --bootstrap-server b:9092 --topic lines --database results.db
penstock accesslog run --topic lines --database postgresql://me@db.example/stats --create-tables
penstock accesslog run --topic lines --database results.db --blocklist-dir lists --allow 10.0.0.0/8
penstock accesslog run --topic lines --database results.db --decisions-topic decisions

Lines, decisions and offsets are stored in one transaction for each batch. If it is stopped or killed at any
moment and started again, it continues where it was, and each line counts once. The terminal shows lines per
second, the lag, who was blocked and how long batches take. Elsewhere that is a plain line every 10 seconds
while something changes or a batch is running, and one a minute while nothing does. SIGTERM and Ctrl-C let
the running batch finish and be stored; a second signal ends the command at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.cli.accesslog.blocked_count import BlockedCount
from penstock.cli.accesslog.database_arguments import add_gate_arguments, add_unnamed_argument, gather_allowed
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.accesslog.live_numbers import Display
from penstock.cli.accesslog.log_format_argument import add_log_format_argument
from penstock.cli.accesslog.rule_choice import HELP, describe_rules, find_rules, load_rules
from penstock.cli.accesslog.run_outputs import finish, list_troubles, open_outputs
from penstock.cli.accesslog.spared_clients import Sparing
from penstock.cli.shared.kafka_arguments import (
    add_connection_arguments,
    connect,
    demand_topic,
    gather_settings,
)
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.spark_session import open_spark
from penstock.cli.shared.terminal import complain_dated, count, escape, say
from penstock.core.loggers import in_stream
from penstock.core.options.storage_addresses import FilePlace, Place, parse_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.apps.accesslog.stream.line_stage import Tools
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
    from penstock.core.client.client_settings import ClientSettings

#: How long to wait for the brokers' first answer before anything else is started.
_FIRST_ANSWER_MS = 15_000
#: A run that wrote this recently may still be running.
_MAY_STILL_RUN_S = 15.0
#: Where Spark runs only for this command, nobody needs its start messages.
_QUIET_SPARK = Path(__file__).with_name("spark-log4j2.properties")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="the topic with the log lines")
    parser.add_argument(
        "--database",
        required=True,
        metavar="PLACE",
        help="a file or an address; ${env:NAME} hides a password",
    )
    parser.add_argument("--create-tables", action="store_true", help="create tables in a server's database")
    parser.add_argument("--name", default="accesslog", help="the stream's name (default: accesslog)")
    add_log_format_argument(parser)
    parser.add_argument("--interval", default="1s", metavar="TIME", help="time between batches (default: 1s)")
    parser.add_argument("--lateness", default="1s", metavar="TIME", help="wait for late lines (default: 1s)")
    parser.add_argument(
        "--idle-after", default="5s", metavar="TIME", help="wait for a silent partition (default: 5s)"
    )
    parser.add_argument(
        "--start", choices=["earliest", "latest"], default="earliest", help="where the first run begins"
    )
    parser.add_argument("--most-lines", type=int, default=2_000_000, help="most lines per batch (2,000,000)")
    parser.add_argument("--rules", metavar="PATH", action="append", default=[], help=HELP)
    parser.add_argument(
        "--webhook", metavar="URL", default=None, help="send alerts here; ${env:NAME} hides it"
    )
    parser.add_argument(
        "--blocklist-dir", metavar="DIR", default=None, help="keep the blocklists in this folder up to date"
    )
    parser.add_argument(
        "--blocklist-format", metavar="F", action="append", default=[], help="(default: text and json)"
    )
    parser.add_argument(
        "--decisions-topic", metavar="TOPIC", default=None, help="send each decision there, keyed by its id"
    )
    parser.add_argument(
        "--outage-timeout",
        default="15m",
        metavar="TIME",
        help="how long to wait for unreachable brokers or an unreachable database (default: 15m)",
    )
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is left to do")
    parser.add_argument("--master", default="local[2]", help="Spark's master (default: local[2])")
    add_gate_arguments(parser)
    add_unnamed_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    with in_stream(settings.name):
        return _run(arguments, settings)


def _run(arguments: argparse.Namespace, settings: PipelineSettings) -> int:
    from penstock.apps.accesslog.first_look.first_lines import LONGEST_HOLD_S
    from penstock.apps.accesslog.stream.pipeline import Pipeline

    say(escape(describe_rules(arguments.rules, settings.tools.defence.ruleset)))
    look = check_topic(
        reach_topic(arguments),
        settings,
        has_more=not arguments.until_idle,
        spares=not arguments.block_unnamed_proxy,
    )
    prepare_tables(settings.place, arguments.create_tables)
    with ExitStack() as stack:
        outputs = open_outputs(stack, arguments, settings)
        prepare_kernels(settings.tools)
        say(f"Starting Spark ({escape(arguments.master)}) ...")
        spark = stack.enter_context(start_spark(arguments.master))
        pipeline = Pipeline(spark, settings)
        if not look.is_done:
            pipeline.look_first(look, hold_s=0.0 if look.is_known else LONGEST_HOLD_S)
        pipeline.spare(lambda: look.fronts)
        blocked = BlockedCount(settings)
        display = Display(
            pipeline,
            blocked,
            lambda: list_troubles(outputs),
            describe_spared=lambda clients: Sparing.of(settings, look.fronts).describe(clients),
        )
        pipeline.stream.add_listener(display.watch)
        for each in outputs:
            pipeline.add_listener(each.follow)
        pipeline.add_listener(display.show)
        for line in describe_standing(settings.place, blocked):
            say(line)
        say(f"Reading {escape(settings.topic)} into {escape(str(settings.place))}; Ctrl-C stops it.")
        with display.ticking():
            outcome = pipeline.run(until_idle=arguments.until_idle)
        display.close(outcome.reason)
        return finish(outputs)


def read_settings(arguments: argparse.Namespace) -> PipelineSettings:
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings

    load_rules(arguments.rules)  # an empty choice is reported before anything else
    return PipelineSettings(
        arguments.topic,
        parse_place(resolve("--database", arguments.database)),
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
        block_private=arguments.block_private,
        rules=find_rules(arguments.rules),
        outage_timeout=arguments.outage_timeout,
    )


def reach_topic(arguments: argparse.Namespace) -> ClientSettings:
    """Return the client settings; a wrong broker or topic is an error before anything starts."""
    client = connect(arguments)
    asked = replace(client, default_api_timeout_ms=min(client.default_api_timeout_ms, _FIRST_ANSWER_MS))
    demand_topic(asked, arguments.topic)
    return client


def check_topic(
    client: ClientSettings, settings: PipelineSettings, *, has_more: bool, spares: bool = True
) -> FirstLook:
    """Say what the format makes of the newest lines, refuse a format that cannot be right, return the look.

    If there are few lines or none, the returned look continues with the first batches. `has_more` says that
    the command waits for more lines.
    """
    from penstock.apps.accesslog.first_look.first_lines import LONGEST_HOLD_S
    from penstock.apps.accesslog.first_look.line_samples import ENOUGH_LINES
    from penstock.apps.accesslog.first_look.topic_samples import read_newest, read_oldest
    from penstock.apps.accesslog.stream.pipeline_state import read_format

    is_known = read_format(settings.place) == settings.log_format
    parser = settings.tools.parser
    committed = replace(client, isolation_level="read_committed")
    look = FirstLook(
        parser,
        lambda line: say(escape(line)),
        is_known=is_known,
        has_more=has_more,
        spares=spares,
        read_earlier=lambda: read_oldest(committed, settings.topic),
        warn=complain_dated,
    )
    lines = read_newest(committed, settings.topic)
    if not look(lines) and has_more:
        has = f"{escape(settings.topic)} has {count(len(lines), 'line') if len(lines) else 'no line'} so far"
        waits = "" if is_known else f" Decisions wait for that, {LONGEST_HOLD_S:.0f} s at most."
        say(f"{has}: the first {ENOUGH_LINES} are looked at as they come.{waits}")
    return look


def prepare_tables(place: Place, asked: bool) -> None:
    """Create the tables on request, or in a file: a server's database belongs to somebody."""
    from penstock.apps.accesslog.stream.pipeline_tables import create_tables

    if asked or isinstance(place, FilePlace):
        create_tables(place)


def prepare_kernels(tools: Tools) -> None:
    """Compile the kernels, or find them compiled. The calling command shows the progress."""
    from penstock.apps.accesslog.stream.pipeline_warmup import warm_up

    warm_up(tools)


def describe_standing(place: Place, blocked: BlockedCount) -> Iterator[str]:
    """Yield sentences on what an earlier run has left, and whether it may still be running."""
    from penstock.apps.accesslog.stream.last_batch_time import read_last_batch
    from penstock.stores.sql.connections.sql_sessions import Database

    now_s = time.time()
    last_ms, number = Database(place).run(
        lambda session: (read_last_batch(session)[0], blocked.read(session))
    )
    if last_ms is None:
        return
    before = f"; {count(number, 'client')} blocked from before" if number else ""
    yield f"Going on after the batch of {show_time(last_ms * 1000)}{before}."
    ago_s = now_s - last_ms / 1000
    if ago_s < _MAY_STILL_RUN_S:
        yield (
            f"That was {max(ago_s, 0):.0f} s ago: if that run is still going, this one takes over and the "
            "other one ends."
        )


def start_spark(master: str) -> AbstractContextManager[SparkSession]:
    settings = {"spark.driver.memory": "2g"}
    if master.startswith("local"):
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        # The file sets the level, too: setting it by `spark.log.level` would print a message.
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_SPARK.as_uri()}"
    else:
        settings["spark.log.level"] = "ERROR"
    return open_spark(master, "penstock-accesslog", settings)
