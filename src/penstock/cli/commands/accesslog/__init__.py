"""Live load monitoring and attack defence on access logs.

There is a verb for each task; `penstock accesslog VERB --help` shows its options.
"""

from __future__ import annotations

import argparse
import importlib
from contextlib import AbstractContextManager, nullcontext

#: Each verb and what it does. Its file is <verb>.py beside this one, with `add_arguments` and `run`.
VERBS: dict[str, str] = {
    "blocklist": "write who is blocked now, for a firewall, a web server or a program",
    "classify": "judge single requests by their addresses: a CSV with a column `uri` in, verdicts out",
    "decisions": "show what was decided, about whom and why",
    "deadletters": "show lines that could not be parsed, and why",
    "demo": "the whole application on this computer, with simulated web servers",
    "replay": "run log files through the defence and write down whom it would have blocked",
    "report": "write what was seen and done as one HTML file, with charts",
    "rules": "list the rules of the defence, show one, check files of your own",
    "run": "read lines from a topic, count the load, find attackers and block them",
    "score": "compare decisions with labels: recall, precision, what was blocked, how fast",
    "serve": "serve the blocklist to enforcers on other servers, over HTTP",
    "ship": "follow log files into a topic, each line once",
    "simulate": "simulate traffic of several web servers, with labelled attacks in it",
    "unban": "let a client or a network go, for a grace time",
}

HAS_MANY_VERBS = True

#: Verbs whose file has another name: `run` is already the function that every command has.
FILES = {"run": "run_pipeline"}
#: Verbs that run kernels.
COMPILING = ("classify", "demo", "replay", "rules", "run", "score", "ship", "simulate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, what in VERBS.items():
        one = verbs.add_parser(verb, help=what, formatter_class=argparse.RawDescriptionHelpFormatter)
        module = importlib.import_module(f"penstock.cli.commands.accesslog.{FILES.get(verb, verb)}")
        one.description = module.__doc__
        module.add_arguments(one)


def run(arguments: argparse.Namespace) -> int:
    verb = FILES.get(arguments.verb, arguments.verb)
    module = importlib.import_module(f"penstock.cli.commands.accesslog.{verb}")
    with _showing_compilation(arguments.verb):
        return int(module.run(arguments))


def _showing_compilation(verb: str) -> AbstractContextManager[None]:
    """Return a context that shows a first compilation; it does nothing for verbs that need no compiler."""
    if verb not in COMPILING:
        return nullcontext()
    from penstock.cli.shared.compilation_progress import ACCESS_LOG, showing_compilation

    return showing_compilation(ACCESS_LOG if verb in ("demo", "run") else None)
