"""Judge single requests by their addresses: a CSV with a column `uri` in, verdicts out.

penstock accesslog classify requests.csv verdicts.csv
penstock accesslog classify requests.csv verdicts.csv --rules mine.yaml --points 10

Writes `uri,verdict,class,score`: attack or clean, the class with most points, and all points together.
"""

from __future__ import annotations

import argparse
import csv

from penstock.apps.accesslog.detection.rules import ATTACK_POINTS
from penstock.cli.accesslog.rule_choice import describe_rules, load_rules
from penstock.cli.terminal import complain, count, escape, say
from penstock.core.errors import OptionError

_AT_ONCE = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("given", metavar="IN.csv", help="has a column `uri`; others are left alone")
    parser.add_argument("written", metavar="OUT.csv", help="what is written: uri,verdict,class,score")
    parser.add_argument("--rules", metavar="FILE", nargs="+", help="rules to use in place of Penstock's own")
    parser.add_argument(
        "--points",
        type=int,
        default=ATTACK_POINTS,
        help=f"an attack from so many on (default {ATTACK_POINTS})",
    )


def run(arguments: argparse.Namespace) -> int:
    from penstock.apps.accesslog.detection.classification import classify

    ruleset = load_rules(arguments.rules or ())
    if arguments.rules:
        complain(describe_rules(arguments.rules, ruleset))
    uris = _read(arguments.given)
    attacks = 0
    with open(arguments.written, "w", encoding="utf-8", errors="surrogateescape", newline="") as written:
        rows = csv.writer(written)
        rows.writerow(["uri", "verdict", "class", "score"])
        for begin in range(0, len(uris), _AT_ONCE):
            part = uris[begin : begin + _AT_ONCE]
            for uri, judged in zip(part, classify(part, ruleset, least=arguments.points), strict=True):
                rows.writerow([uri, judged.verdict, judged.attack_class, judged.score])
                attacks += judged.verdict == "attack"
    say(f"{count(len(uris), 'request')}, {count(attacks, 'attack')}; written to {escape(arguments.written)}")
    return 0


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as given:
            rows = csv.DictReader(given)
            if "uri" not in (rows.fieldnames or ()):
                raise OptionError(
                    "COLUMN_MISSING", f"{path} has no column `uri`.", hint="Name it in the first line."
                )
            return [row["uri"] or "" for row in rows]
    except (OSError, csv.Error) as error:
        raise OptionError(
            "FILE_UNREADABLE", f"{path} cannot be read: {error}.", hint="Name a readable CSV file."
        ) from error
