"""Run log files through the defence and write down whom it would have blocked, when and why.

penstock accesslog replay /var/log/apache2/access.log* --decisions found.csv
zcat old.log.gz | penstock accesslog replay - --decisions found.csv --rules my-rules/

The decisions are those that a running pipeline makes of the same lines (it spares 127.0.0.1 and its like;
a file is taken for the log of the server it is named after: web1.log, web1.log.2.gz). `request_index` is the
place of the line that caused a decision among the client's lines in the given files; the first row of a
client is its detection, later ones are longer bans. Files may be compressed with gzip; `-` is the
standard input.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from penstock.apps.accesslog.defence.bans import DefenceSettings
from penstock.apps.accesslog.defence.replay import replay
from penstock.cli.accesslog.rule_choice import HELP, describe_rules, load_rules
from penstock.cli.terminal import complain, count
from penstock.core.errors import OptionError

COLUMNS = ("client", "decided_at", "request_index", "rule", "class", "action")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="log files, also .gz; - is the standard input")
    parser.add_argument(
        "--decisions", metavar="OUT.csv", required=True, help="where to write; - is the output"
    )
    parser.add_argument("--format", metavar="F", default="auto", help="how lines are written (default: auto)")
    parser.add_argument("--rules", metavar="PATH", action="append", default=[], help=HELP)
    parser.add_argument("--allow", metavar="CIDR", action="append", default=[], help="never block these")
    parser.add_argument(
        "--trusted-proxy", metavar="CIDR", action="append", default=[], help="proxies that tell the client"
    )
    parser.add_argument(
        "--all-actions", action="store_true", help="also what was allowed, or in its time of grace"
    )


def run(arguments: argparse.Namespace) -> int:
    if list(arguments.logs).count("-") > 1:
        raise OptionError(
            "OPTIONS_EXCLUDE", "The standard input can be read only once.", hint="Give `-` once."
        )
    ruleset = load_rules(arguments.rules)
    if arguments.rules:
        complain(describe_rules(arguments.rules, ruleset))
    settings = DefenceSettings(
        ruleset, allow=tuple(arguments.allow), trusted_proxies=tuple(arguments.trusted_proxy)
    )
    replayed = replay(arguments.logs, settings, log_format=arguments.format)
    counted = replayed.counters
    parsed, bad = counted.get("lines", 0), counted.get("bad", 0)
    if bad and not parsed:
        raise OptionError(
            "NOTHING_PARSED",
            f"0 of {count(bad, 'line')} could be parsed (--format {arguments.format}).",
            hint="Say how lines are written with --format: common, combined, or what your LogFormat says.",
            facts={"lines": bad, "format": arguments.format},
        )
    shown = ("block", "simulate", "allowed", "grace") if arguments.all_actions else ("block", "simulate")
    rows = [row for row in replayed.rows if row["action"] in shown]
    write_decisions(arguments.decisions, rows)
    told = f"{parsed + bad:,} lines, {bad:,} of them not parsed, {counted.get('late', 0):,} out of order"
    clients = {row["client"] for row in rows if row["action"] == "block"}
    complain(f"{told}; {count(len(rows), 'decision')} about {count(len(clients), 'client')}.")
    return 0


def write_decisions(path: str, rows: Iterable[dict[str, Any]]) -> None:
    """Decisions as CSV into a file, or to the output."""
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
