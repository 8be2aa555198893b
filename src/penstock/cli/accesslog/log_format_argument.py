"""The argument that says how the lines of a log are written: one name for it in every verb.

Rule: a renamed argument keeps working, and one line on stderr gives the new name. A script that breaks at
night over a spelling helps nobody, and two spellings without a notice would stay forever.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from penstock.cli.shared.terminal import complain

NAME = "--log-format"
#: Its former name in verbs that work on files. `blocklist --format` chooses a format of lists, not of logs.
OLD_NAME = "--format"


def add_log_format_argument(parser: argparse.ArgumentParser, *, with_old_name: bool = False) -> None:
    """Add `--log-format`, and on request its former name."""
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
