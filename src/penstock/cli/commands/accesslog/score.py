"""Compare decisions with labels: recall, precision, benign clients hit, what was blocked, how fast.

penstock accesslog replay access.log --decisions found.csv
penstock accesslog score found.csv labels.csv access.log

Labels are `client,label,class` with attack, benign or ambiguous; ambiguous clients are left out. So are, with
a message, clients that are in none of the given logs: what they did cannot be known.
"""

from __future__ import annotations

import argparse

from penstock.apps.accesslog.defence.allow_list import is_local
from penstock.apps.accesslog.evaluation.decision_scoring import (
    count_visits,
    describe,
    read_decisions,
    read_labels,
    score,
)
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli.accesslog.database_arguments import add_proxy_argument
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.accesslog.log_format_argument import add_log_format_argument
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.core.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("decisions", metavar="OUT.csv", help="what `replay` wrote")
    parser.add_argument("labels", metavar="LABELS.csv", help="client,label,class")
    parser.add_argument("logs", metavar="LOG", nargs="+", help="the logs that were replayed")
    add_log_format_argument(parser, with_old_name=True)
    add_proxy_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    labels, found = read_labels(arguments.labels), read_decisions(arguments.decisions)
    proxies = tuple(arguments.trusted_proxy)
    look = FirstLook(make_parser(arguments.log_format, proxies), tell=None, is_whole=True)
    visits = count_visits(arguments.logs, arguments.log_format, proxies, look=look)
    known = [each for each in labels if each.client in visits]
    seen = [each for each in found if each.client in visits]
    if labels and not known:
        raise OptionError(
            "LOGS_OF_OTHERS",
            f"None of the {count(len(labels), 'labelled client')} is in the given logs.",
            hint="Name the logs that were replayed; say --log-format if their lines cannot be parsed.",
        )
    missing = ({each.client for each in labels} | {each.client for each in found}) - visits.keys()
    if missing:
        complain(f"{count(len(missing), 'client')} left out: in none of the given logs.")
    local = sum(each.label == "attack" and is_local(each.client) for each in known)
    local -= sum(is_local(each.client) for each in seen)
    if local > 0:
        complain(
            f"{count(local, 'labelled attacker')} not blocked with a local address (private, loopback, "
            "link-local): a replay judges these with --block-private."
        )
    for line in describe(score(seen, known, visits)):
        say(escape(line))
    return 0
