"""Hold decisions against labels: recall, precision, benign clients hit, what was blocked, how fast.

penstock accesslog replay access.log --decisions found.csv
penstock accesslog score found.csv labels.csv access.log

Labels are `client,label,class` with attack, benign or ambiguous; ambiguous clients are left out. So are those
who are in none of the given logs, which is said: what they did cannot be known.
"""

from __future__ import annotations

import argparse

from penstock.apps.accesslog.defence.scoring import count_visits, describe, read_decisions, read_labels, score
from penstock.cli.terminal import complain, count, escape, say
from penstock.core.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("decisions", metavar="OUT.csv", help="what `replay` wrote")
    parser.add_argument("labels", metavar="LABELS.csv", help="client,label,class")
    parser.add_argument("logs", metavar="LOG", nargs="+", help="the logs that were replayed")
    parser.add_argument("--format", metavar="F", default="auto", help="how lines are written (default: auto)")


def run(arguments: argparse.Namespace) -> int:
    labels, found = read_labels(arguments.labels), read_decisions(arguments.decisions)
    visits = count_visits(arguments.logs, arguments.format)
    known = [each for each in labels if each.client in visits]
    seen = [each for each in found if each.client in visits]
    if labels and not known:
        raise OptionError(
            "LOGS_OF_OTHERS",
            f"None of the {count(len(labels), 'labelled client')} is in the given logs.",
            hint="Name the logs that were replayed; --format if their lines cannot be parsed.",
        )
    missing = ({each.client for each in labels} | {each.client for each in found}) - visits.keys()
    if missing:
        complain(f"{count(len(missing), 'client')} left out: in none of the given logs.")
    for line in describe(score(seen, known, visits)):
        say(escape(line))
    return 0
