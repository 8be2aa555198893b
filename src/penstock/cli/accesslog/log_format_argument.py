"""How the lines of a log are written, as an argument: one name for it in every verb that parses lines.

Rule: an argument that was renamed goes on working, and one line on stderr names the new one. A script that
breaks at night over a spelling helps nobody; two spellings without a word would stay for ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from penstock.cli.shared.terminal import complain

NAME = "--log-format"
#: What verbs that work on files called it before; `blocklist --format` is about lists, not logs.
OLD_NAME = "--format"


def add_log_format_argument(parser: argparse.ArgumentParser, *, with_old_name: bool = False) -> None:
    """Add `--log-format`, and on request the name that it had before."""
    told = (
        "how lines are written: auto (default), common, combined, vhost_combined, nginx, json or your "
        "server's own"
    )
    parser.add_argument(NAME, metavar="FORMAT", default="auto", help=told)
    if with_old_name:
        parser.add_argument(OLD_NAME, dest="log_format", action=_Renamed, help=argparse.SUPPRESS)


class _Renamed(argparse.Action):
    """Stores the format and says which name to use from now on."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        complain(f"{OLD_NAME} is now called {NAME}; the old name still works.")
        setattr(namespace, self.dest, values)
