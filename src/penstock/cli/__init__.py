"""The `penstock` command, which finds the file of the requested command and runs it.

Rule: one file per command, imported only when it is needed, so `penstock --help` stays instant. A file has
`add_arguments(parser)` and `run(arguments) -> int`; to add a command, write the file and a line below. Our
own errors are printed unchanged, on stderr, with exit code 1; wrong usage is 2, Ctrl-C is 130. A command that
needs arguments and gets none prints its help, as `--help` does. That includes the help of its verbs, unless
there are too many to read (`HAS_MANY_VERBS`): then each verb prints its own.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence

import penstock
from penstock.cli.shared.kafka_arguments import TITLE as CONNECTION_TITLE
from penstock.cli.shared.progress_bar import end_bars
from penstock.cli.shared.terminal import complain, say
from penstock.core.errors import PenstockError

#: Arguments that begin with a minus sign but are not options: a number or a duration.
_LESS_THAN_NOTHING = re.compile(r"-(\d+(ms|s|m|h|d)?|\d*\.\d+)$", re.IGNORECASE)
#: Each command and what it does; its file is penstock/cli/commands/<command>.py.
COMMANDS = {
    "accesslog": "watch the load of web servers by their access logs, find attackers and block them",
    "audit": "check results in a database against the offsets they came from",
    "cluster": "start, stop and watch a real Kafka on this computer",
    "consume": "show the messages of topics, from now on or from anywhere",
    "demo": "a local Kafka, a million log lines, and Spark counting them",
    "groups": "list and describe consumer groups: members, committed offsets, lag",
    "loss": "show what a loss ledger has recorded as lost",
    "offsets": "show where streams stand, and move them: rewind, skip, copy, export, adopt",
    "produce": "send lines to a topic, each line a message",
    "python": "print the path of a Python that Spark starts half a second faster",
    "quickstart": "a Kafka node, a topic, three lines, and Spark counting their words",
    "topics": "list, create, describe, widen and delete topics",
    "warmup": "compile all kernels now, so that the first query or verb need not",
    "why": "say why a stream does not move, in one answer",
}

#: What users look for under another name.
_ELSEWHERE = {
    "lag": "`penstock groups describe` shows a group's lag, `penstock offsets show` where streams stand.",
    "offset": "`penstock offsets` shows where streams stand, and moves them.",
    "losses": "`penstock loss` shows what was lost.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; without this Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        end_bars()


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        say(_overview())
        return 0
    if given[0] in ("-V", "--version"):
        say(f"penstock {penstock.__version__}")
        return 0
    if given[0] not in COMMANDS:
        complain(
            f"[UNKNOWN_COMMAND] There is no command {given[0]!r}. {_suggest(given[0])}Run `penstock` to see "
            "all commands."
        )
        return 2
    command = importlib.import_module(f"penstock.cli.commands.{given[0]}")
    parser = argparse.ArgumentParser(prog=f"penstock {given[0]}", description=command.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_arguments(parser)
    _take_lengths_of_time(parser)
    has_many = getattr(command, "HAS_MANY_VERBS", False)
    described = parser.format_help().rstrip() if has_many else _describe_all(parser)
    if given[1:] in (["-h"], ["--help"]):
        say(described)
        return 0
    if len(given) == 1 and _needs_arguments(parser):
        complain(described)
        return 2
    try:
        return int(command.run(parser.parse_args(given[1:])))
    except SystemExit as leaving:  # argparse has already printed why
        return int(leaving.code or 0)
    except PenstockError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def _suggest(asked: str) -> str:
    """Return a sentence about what was probably meant, followed by a space, or an empty string."""
    close = difflib.get_close_matches(asked.lower(), COMMANDS, 1)
    told = _ELSEWHERE.get(asked.lower(), f"Did you mean `penstock {close[0]}`?" if close else "")
    return f"{told} " if told else ""


def _take_lengths_of_time(parser: argparse.ArgumentParser) -> None:
    """Accept `-10m` as the value of an option in all verbs, as argparse accepts `-10`."""
    parser._negative_number_matcher = _LESS_THAN_NOTHING
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _take_lengths_of_time(verb)


def _needs_arguments(parser: argparse.ArgumentParser) -> bool:
    return any(action.required or not action.option_strings for action in parser._actions)


def _describe_all(parser: argparse.ArgumentParser) -> str:
    """Return the help of a command and all its verbs. Options that they share come once, at the end."""
    verbs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    texts, shared = [parser.format_help()], ""
    for verb in (each for action in verbs for each in action.choices.values()):
        own, title, options = verb.format_help().partition(f"\n{CONNECTION_TITLE}:\n")
        texts.append(own)
        shared = shared or title.replace(":", ", for each of these:") + options
    return ("\n".join(texts) + shared).rstrip()


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in sorted(COMMANDS.items())]
    return "\n".join(
        [
            "usage: penstock COMMAND [options]    (penstock COMMAND --help shows its options)",
            "",
            "commands:",
            *lines,
            "",
            "  --version, --help",
        ]
    )
