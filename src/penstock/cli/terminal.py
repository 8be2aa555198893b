"""What is printed, made safe: nothing from outside can move the cursor, colour the screen or forge a line.

Rule: every text that did not begin its life in this source code goes through `escape` on its way to the
terminal. A log line may hold what a stranger sent to a server, control sequences included.

>>> escape("red \\x1b[31m")
'red \\\\x1b[31m'
"""

from __future__ import annotations

import sys
import unicodedata

_BAR_CELLS = 30


def escape(text: str, *, keep_lines: bool = False) -> str:
    """Control, formatting and bidi characters shown as escapes; line breaks stay only when asked."""
    if text.isprintable():
        return text  # almost every text; the loop takes a microsecond for each character
    shown = []
    for character in text:
        if character == "\t" or (character == "\n" and keep_lines):
            shown.append(character)
        elif unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
            code = ord(character)
            shown.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
        else:
            shown.append(character)
    return "".join(shown)


def count(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def say(text: str = "") -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(escape(text, keep_lines=True), file=sys.stderr, flush=True)


class ProgressBar:
    """A bar on a terminal; elsewhere one line at the beginning and one at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = False

    def __call__(self, done: int, total: int | None, item: str) -> None:
        live = sys.stderr.isatty()
        finished = total is not None and done >= total and item == "complete"
        if live:
            filled = _BAR_CELLS * done // total if total else 0
            bar = "#" * filled + "-" * (_BAR_CELLS - filled)
            count = f"{done}/{total}" if total else str(done)
            line = f"\r{self._what} [{bar}] {count} {escape(item):<40.40}"
            print(line, end="\n" if finished else "", file=sys.stderr, flush=True)
        elif not self._begun or finished:
            print(f"{self._what}: {'done' if finished else 'begun'}", file=sys.stderr, flush=True)
        self._begun = True
