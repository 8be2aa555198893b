"""Makes each logged event one line, whatever its texts hold.

Rule: every logger of ours comes from `get_logger`. A topic, a path, a broker's answer or a record may hold
line breaks and control sequences; written as they are, they would look like another event, or act on the
terminal of the log's reader. They are shown as escapes, and a traceback is folded into its event's line. Why
not in a handler or a formatter: those belong to the program that uses the library, which configures none.

The line of a Penstock error begins with its condition in brackets; the record has it as `condition` too, for
handlers that write fields instead of text. What is logged for a stream begins with its name, and the record
has it as `stream`. If a program configures no logging, Python writes warnings to stderr as they are. Only
then does the line begin with the time.

>>> escape("red \\x1b[31m")
'red \\\\x1b[31m'
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from penstock.core.errors import PenstockError

_STREAM: ContextVar[str] = ContextVar("penstock_stream", default="")


@contextmanager
def in_stream(name: str) -> Iterator[None]:
    """Mark what is logged inside as this stream's. Threads started inside do not inherit the mark."""
    before = _STREAM.get()
    _STREAM.set(name or before)
    try:
        yield
    finally:
        _STREAM.set(before)  # no token: a generator may be closed in another context


def find_stream() -> str:
    """Return the name of the stream that the running code works for, or "" if there is none."""
    return _STREAM.get()


def escape(text: str, *, keep_lines: bool = False) -> str:
    """Return the text with control, formatting and bidi characters as escapes; line breaks stay if asked."""
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


def date_line(text: str, now_s: float) -> str:
    """Return a line for a terminal that is read later: the time, the stream and the text."""
    return f"{_write_time(now_s)} {_name_stream(text)}"


def _name_stream(text: str) -> str:
    stream = _STREAM.get()
    return f"{escape(stream)}: {text}" if stream else text


def _write_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name, made to write each event as one line."""
    logger = logging.getLogger(name)
    logger.addFilter(_fold)  # one function: adding it again changes nothing
    return logger


def _fold(record: logging.LogRecord) -> bool:
    """Turn the event into one line before any handler sees it, and return True, so every event passes."""
    try:
        message = record.getMessage()
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return True  # message and arguments do not match: the handler reports that, as always
    error = record.exc_info[1] if record.exc_info else None
    values = record.args.values() if isinstance(record.args, dict) else record.args or ()
    told = [each for each in (*values, error) if isinstance(each, PenstockError)]
    record.condition = told[0].condition if told else None
    parts = [message]
    if error is not None:
        import traceback

        parts += [line.strip() for line in "".join(traceback.format_exception(error)).splitlines()]
    text = " | ".join(escape(part) for part in parts if part)
    record.stream = _STREAM.get() or None
    text = _name_stream(text)
    if not get_logger(record.name).hasHandlers():
        text = f"{_write_time(record.created)} {record.levelname} {text}"
    record.msg, record.args = text, None
    record.exc_info = record.exc_text = None
    return True
