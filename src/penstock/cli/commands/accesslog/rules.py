"""The rules of the defence: list them, show one, check files of your own.

penstock accesslog rules list
penstock accesslog rules list --class sql_injection
penstock accesslog rules show sqli.union-select
penstock accesslog rules check mine.yaml        loads it and runs the examples of its rules
"""

from __future__ import annotations

import argparse

from penstock.apps.accesslog.detection.rule_set import BehaviourRule, ContentRule, DetectionRule
from penstock.cli.accesslog.rule_choice import load_rules
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", metavar="list|show|check", required=True)
    listing = verbs.add_parser("list", help="show id, class, points and meaning of all rules")
    listing.add_argument("--class", dest="attack_class", metavar="CLASS", help="only those of one class")
    show = verbs.add_parser("show", help="show one rule with its examples")
    show.add_argument("id")
    check = verbs.add_parser("check", help="load files and run the examples of their rules")
    check.add_argument("files", metavar="FILE", nargs="*", help="files or folders (default: Penstock's own)")
    for verb in (listing, show):
        verb.add_argument("--rules", metavar="FILE", nargs="+", help="files in place of Penstock's own")


def run(arguments: argparse.Namespace) -> int:
    return {"list": _list, "show": _show, "check": _check}[arguments.what](arguments)


def _list(arguments: argparse.Namespace) -> int:
    rules = load_rules(arguments.rules or ()).rules
    chosen = [rule for rule in rules if arguments.attack_class in (None, rule.attack_class)]
    if not chosen:
        raise OptionError(
            "CLASS_UNKNOWN",
            f"No rule has the class {arguments.attack_class[:60]!r}.",
            hint=f"The classes are {', '.join(sorted({rule.attack_class for rule in rules}))}.",
        )
    head = ("rule", "class", "points", "mode", "what a hit means")
    rows = [(rule.id, rule.attack_class, str(rule.points), rule.mode, rule.what) for rule in chosen]
    for line in align(head, rows, right={2}):
        say(line)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    rule = load_rules(arguments.rules or ()).find(arguments.id)
    for line in _describe(rule):
        say(escape(line))
    return 0


def _describe(rule: DetectionRule) -> list[str]:
    lines = [f"{rule.id}: {rule.what}", f"  class {rule.attack_class}, {rule.points} points, {rule.mode}"]
    if isinstance(rule, BehaviourRule):
        over = (
            f"half-life {rule.half_life_us / 1e6:g} s" if rule.half_life_us else f"{rule.window_us / 1e6:g} s"
        )
        lines.append(f"  counts {', '.join(rule.count)}: more than {rule.limit} per {rule.per}, {over}")
        return lines
    return lines + _describe_content(rule)


def _describe_content(rule: ContentRule) -> list[str]:
    lines = [f"  looks at {', '.join(rule.look)}"] if rule.look else []
    for name, value in (("regex", rule.regex), ("except", rule.veto), ("unless", ", ".join(rule.unless))):
        lines += [f"  {name} {value}"] if value else []
    lines += [f"  hits   {each.request} ({each.status})" for each in rule.hits]
    lines += [f"  misses {each.request} ({each.status})" for each in rule.misses]
    return lines


def _check(arguments: argparse.Namespace) -> int:
    from penstock.apps.accesslog.detection.rule_examples import find_broken_examples

    ruleset = load_rules(arguments.files)
    broken = find_broken_examples(ruleset)
    for sentence in broken:
        complain(sentence)
    told = f"{count(len(ruleset.rules), 'rule')}, digest {ruleset.digest}"
    say(
        f"{told}; {count(len(broken), 'example')} not as promised."
        if broken
        else f"{told}; all examples hold."
    )
    return 1 if broken else 0
