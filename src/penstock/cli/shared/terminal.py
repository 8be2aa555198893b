"""Prints text safely: no input can move the cursor, colour the screen or forge a line.

Rule: every text that does not come from this source code goes through `escape` on its way to the terminal. A
log line may contain what a stranger sent to a server, including control sequences.

>>> escape("red \\x1b[31m")
'red \\\\x1b[31m'
"""

from __future__ import annotations

import sys
import time

from penstock.cli.shared import progress_bar
from penstock.core.loggers import date_line, escape
from penstock.core.prose import count

__all__ = ["SafeProgressBar", "complain", "complain_dated", "count", "escape", "say"]


def say(text: str = "") -> None:
    progress_bar.hide_bars()
    print(text, flush=True)


def complain(text: str) -> None:
    progress_bar.hide_bars()
    if sys.stderr is not None:  # closed with `2>&-`; `print` would use the standard output instead
        print(escape(text, keep_lines=True), file=sys.stderr, flush=True)


def complain_dated(text: str) -> None:
    """Complain, with the time and the name of the stream, for commands that run for days."""
    complain(date_line(text, time.time()))


class SafeProgressBar(progress_bar.ProgressBar):
    """A progress bar whose items may come from outside."""

    def __init__(self, what: str) -> None:
        super().__init__(what, escape=escape)
