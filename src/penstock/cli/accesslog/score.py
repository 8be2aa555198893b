"""Hold decisions against labels: recall, precision, benign clients hit, what was blocked, how fast.

penstock accesslog replay access.log --decisions found.csv
penstock accesslog score found.csv labels.csv access.log

Labels are `client,label,class` with attack, benign or ambiguous; ambiguous clients are left out.
"""

from __future__ import annotations

import argparse

from penstock.apps.accesslog.defence.scoring import count_visits, describe, read_decisions, read_labels, score
from penstock.cli.terminal import escape, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("decisions", metavar="OUT.csv", help="what `replay` wrote")
    parser.add_argument("labels", metavar="LABELS.csv", help="client,label,class")
    parser.add_argument("logs", metavar="LOG", nargs="+", help="the logs that were replayed")
    parser.add_argument("--format", metavar="F", default="auto", help="how lines are written (default: auto)")


def run(arguments: argparse.Namespace) -> int:
    labels = read_labels(arguments.labels)
    result = score(
        read_decisions(arguments.decisions), labels, count_visits(arguments.logs, arguments.format)
    )
    for line in describe(result):
        say(escape(line))
    return 0
