"""Read access logs from a topic, count the load, find attackers and block them: the pipeline, until Ctrl-C.

penstock accesslog run --bootstrap-server b:9092 --topic lines --database results.db
penstock accesslog run --topic lines --database postgresql://me@db.example/stats --create-tables
penstock accesslog run --topic lines --database results.db --blocklist-dir lists --allow 10.0.0.0/8
penstock accesslog run --topic lines --database results.db --decisions-topic decisions

Lines, decisions and offsets are stored in one transaction for each batch: stopped or killed at any moment and
started again, it goes on where it was, and each line counts once. The terminal shows lines a second, the lag,
who was blocked and how long batches take; elsewhere that is a plain line every few seconds.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.cli.accesslog.display import Display
from penstock.cli.accesslog.places import add_gate_arguments, gather_allowed
from penstock.cli.accesslog.rule_choice import HELP, describe_rules, find_rules, load_rules
from penstock.cli.connection import add_connection_arguments, connect, gather_settings
from penstock.cli.spark_session import open_spark
from penstock.cli.terminal import complain, count, escape, say
from penstock.core.errors import BrokerError, PenstockError
from penstock.core.places import FilePlace, Place, parse_place
from penstock.core.references import resolve_reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.apps.accesslog.stream.pipeline import BatchNews
    from penstock.apps.accesslog.stream.settings import PipelineSettings
    from penstock.apps.accesslog.stream.stage import Tools

#: How long a broker that does not answer is asked before anything else is started.
_FIRST_ANSWER_MS = 15_000
#: Who wrote so recently may still be running.
_MAY_STILL_RUN_S = 15.0
#: From when on it is said why one has to wait.
_PATIENCE_S = 3.0
#: Where Spark runs in this process its first words are of no use to anybody.
_QUIET_SPARK = Path(__file__).with_name("spark-log4j2.properties")


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
    parser.add_argument("--rules", metavar="PATH", action="append", default=[], help=HELP)
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

    settings = read_settings(arguments)
    say(escape(describe_rules(arguments.rules, settings.tools.defence.ruleset)))
    demand_topic(arguments)
    prepare_tables(settings.place, arguments.create_tables)
    with ExitStack() as stack:
        outputs = (_open_blocklists, _open_decisions_topic, _open_webhook)
        after = [open_output(stack, arguments, settings) for open_output in outputs]
        prepare_kernels(settings.tools)
        say(f"Starting Spark ({escape(arguments.master)}) ...")
        spark = stack.enter_context(start_spark(arguments.master))
        pipeline = Pipeline(spark, settings)
        display = Display(pipeline)
        pipeline.add_listener(display.show)
        for act in after:
            if act is not None:
                pipeline.add_listener(act)
        for line in describe_standing(settings.place):
            say(line)
        say(f"Reading {escape(settings.topic)} into {escape(str(settings.place))}; Ctrl-C stops it.")
        outcome = pipeline.run(until_idle=arguments.until_idle)
        display.close(outcome.reason)
    return 0


def read_settings(arguments: argparse.Namespace) -> PipelineSettings:
    from penstock.apps.accesslog.stream.settings import PipelineSettings

    load_rules(arguments.rules)  # none is refused, whatever else there is to say
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
        rules=find_rules(arguments.rules),
    )


def demand_topic(arguments: argparse.Namespace) -> None:
    """A wrong broker or topic is told at once: before a database is made and Spark is started."""
    from penstock.kafka.admin import topic_exists

    client = connect(arguments)
    asked = replace(client, default_api_timeout_ms=min(client.default_api_timeout_ms, _FIRST_ANSWER_MS))
    if not topic_exists(asked, arguments.topic):
        raise BrokerError(
            "UNKNOWN_TOPIC",
            f"The brokers know no topic named {arguments.topic}.",
            hint=f"Correct the name (case matters), or run `penstock topics create {arguments.topic}`.",
            facts={"missing": [arguments.topic]},
        )


def prepare_tables(place: Place, asked: bool) -> None:
    """A file of one's own needs no second step; a server's database belongs to somebody."""
    from penstock.apps.accesslog.stream.tables import create_tables

    if asked or isinstance(place, FilePlace):
        create_tables(place)


def prepare_kernels(tools: Tools) -> None:
    """Compile them, or find them compiled; whoever has to wait is told why."""
    from penstock.apps.accesslog.stream.warming import warm_up

    words = ["Loading the kernels; the first time on a computer they are compiled: a minute or two ..."]
    patience = threading.Timer(_PATIENCE_S, say, words)
    patience.start()
    try:
        warm_up(tools)
    finally:
        patience.cancel()


def describe_standing(place: Place) -> Iterator[str]:
    """What an earlier run has left, and whether it may still be there."""
    from penstock.apps.accesslog.blocking.blocklists import read_bans
    from penstock.apps.accesslog.stream.liveness import read_last_batch_ms
    from penstock.stores.sql.sessions import Database

    now_s = time.time()
    last_ms, bans = Database(place).run(
        lambda session: (read_last_batch_ms(session), read_bans(session, now_us=int(now_s * 1e6)))
    )
    if last_ms is None:
        return
    blocked = f"; {count(len(bans), 'client')} blocked from before" if bans else ""
    yield f"Going on after the batch of {show_time(last_ms * 1000)}{blocked}."
    ago_s = now_s - last_ms / 1000
    if ago_s < _MAY_STILL_RUN_S:
        yield f"That was {max(ago_s, 0):.0f} s ago: if that run still goes, this one takes over and it ends."


@contextmanager
def start_spark(master: str) -> Iterator[SparkSession]:
    settings = {"spark.driver.memory": "2g"}
    if master.startswith("local"):
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        # The file sets the level, too: setting it by `spark.log.level` would be told on the screen.
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET_SPARK.as_uri()}"
    else:
        settings["spark.log.level"] = "ERROR"
    with open_spark(master, "penstock-accesslog", settings) as spark:
        yield spark


# --- what happens after a batch ---------------------------------------------------------------------------


def _open_blocklists(
    stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Callable[[BatchNews], None] | None:
    if arguments.blocklist_dir is None:
        return None
    from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter, demand_place

    demand_place(Path(arguments.blocklist_dir))
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
