"""Run log files through the defence and write down whom it would have blocked, when and why.

penstock accesslog replay /var/log/apache2/access.log* --decisions found.csv
penstock accesslog replay access.log --decisions found.csv --allow-file /etc/penstock/allowed
zcat old.log.gz | penstock accesslog replay - --decisions found.csv --rules my-rules/

The decisions are those that a running pipeline makes from the same lines. A file counts as the log of the
server it is named after (web1.log, web1.log.2.gz). First, the command shows what the format makes of the
first line. Local addresses are spared, unless you say --block-private. `request_index` is the place of the
line that caused a decision among the client's lines in the given files. The first row of a client is its
detection. A later row is a new ban after the previous one has ended, another class of attack during a ban
(which does not prolong it), or a ban by a rule about many clients (`distributed.*`), which begins at that
moment and may end later than the current one. Files may be compressed with gzip; `-` is standard input.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from penstock.apps.accesslog.blocking.blocklists import can_be_listed
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.evaluation.log_replay import replay
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli.accesslog.database_arguments import (
    add_gate_arguments,
    add_unnamed_argument,
    describe_unlisted,
    gather_allowed,
)
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.accesslog.log_format_argument import add_log_format_argument
from penstock.cli.accesslog.rule_choice import HELP, describe_rules, load_rules
from penstock.cli.accesslog.spared_clients import Sparing
from penstock.cli.shared.terminal import complain, count
from penstock.core.errors import OptionError

COLUMNS = ("client", "decided_at", "request_index", "rule", "class", "action")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="log files, also .gz; - is standard input")
    parser.add_argument(
        "--decisions", metavar="OUT.csv", required=True, help="where to write; - is standard output"
    )
    add_log_format_argument(parser, with_old_name=True)
    parser.add_argument("--rules", metavar="PATH", action="append", default=[], help=HELP)
    parser.add_argument(
        "--all-actions", action="store_true", help="also decisions about allowed or unbanned clients"
    )
    add_gate_arguments(parser)
    add_unnamed_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if list(arguments.logs).count("-") > 1:
        raise OptionError("OPTIONS_EXCLUDE", "Standard input can be read only once.", hint="Give `-` once.")
    ruleset = load_rules(arguments.rules)
    if arguments.rules:
        complain(describe_rules(arguments.rules, ruleset))
    settings = DefenceSettings(
        ruleset,
        allow=tuple(gather_allowed(arguments)),
        trusted_proxies=tuple(arguments.trusted_proxy),
        trust_crawlers=not arguments.distrust_crawlers,
        block_private=arguments.block_private,
    )
    look = FirstLook(
        make_parser(arguments.log_format, settings.trusted_proxies),
        is_whole=True,
        spares=not arguments.block_unnamed_proxy,
    )

    def spare_unnamed() -> DefenceSettings:
        return replace(settings, allow=(*settings.allow, *look.fronts))

    replayed = replay(
        arguments.logs, settings, log_format=arguments.log_format, look=look, resettle=spare_unnamed
    )
    counted = replayed.counters
    parsed, bad = counted.get("lines", 0), counted.get("bad", 0)
    shown = ("block", "simulate", "allowed", "grace") if arguments.all_actions else ("block", "simulate")
    rows = [row for row in replayed.rows if row["action"] in shown]
    write_decisions(arguments.decisions, rows)
    told = f"{parsed + bad:,} lines, {bad:,} of them not parsed, {counted.get('late', 0):,} out of order"
    clients = {row["client"] for row in rows}
    complain(f"{told}; {count(len(rows), 'decision')} about {count(len(clients), 'client')}.")
    spared = dict.fromkeys(row["client"] for row in replayed.rows if row["action"] == "allowed")
    blocked = dict.fromkeys(row["client"] for row in rows if row["action"] == "block")
    if unlisted := [each for each in blocked if not can_be_listed(each)]:
        complain(describe_unlisted(unlisted))
    if spared:
        complain(Sparing.of(settings, look.fronts).describe(list(spared)))
    return 0


def write_decisions(path: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write decisions as CSV into a file, or to standard output."""
    if path == "-":
        _write(sys.stdout, rows)
        return
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            _write(file, rows)
    except OSError as error:
        raise OptionError(
            "FILE_UNWRITABLE", f"{path} cannot be written: {error.strerror}.", hint="Name another file."
        ) from error


def _write(file: IO[str], rows: Iterable[dict[str, Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_show_time(row[name]) if name == "decided_at" else row[name] for name in COLUMNS])


def _show_time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat().replace("+00:00", "Z")
