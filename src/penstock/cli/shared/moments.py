"""Parses moments and waits on the command line: a length of time before now (`2h`, or `-2h`), a time, a wait.

Rule: a number carries its unit. `60` is a minute to one reader and a time in 1970 to another, and a stream
that was sent to 1970 reads everything again; only `0` as a wait is the same in every unit.

>>> find_moment("-10m", now_ms=600_000)
0
"""

from __future__ import annotations

import argparse
import re
import time

from penstock.core.options.option_values import (
    find_length_ago,
    find_unit_mistake,
    parse_duration_ms,
    parse_time_ms,
)
from penstock.core.prose import write_moment

_BARE = re.compile(r"[0-9]+")


def find_moment(text: str, *, now_ms: int) -> int:
    """Return milliseconds since 1970, or raise a `ValueError` that says what is expected."""
    text = text.strip()
    length = text.removeprefix("-")
    try:
        if length == length.strip():  # the sign is next to the number, as everywhere
            return now_ms - parse_duration_ms(length)
    except ValueError:
        pass
    try:
        moment = parse_time_ms(text)
    except ValueError as error:
        ago = find_length_ago(text)
        advice = "" if ago is None else f"; for {ago} ago, write `-{ago}`"
        raise ValueError(f"a length of time ago (10m), or {error}{advice}") from None
    mistake = find_unit_mistake(moment) if _BARE.fullmatch(text) else None
    if mistake is not None:
        raise ValueError(
            f"a moment with its unit: for a length of time ago write {text}s, {text}m, {text}h or {text}d; "
            f"{mistake}. A time of which you are sure can be written like 1970-01-01T00:00:10Z"
        )
    return moment


def parse_moment(text: str) -> int:
    """Return milliseconds since 1970, for an argument of a command."""
    try:
        return find_moment(text, now_ms=time.time_ns() // 1_000_000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def show_moment(time_ms: int) -> str:
    """Return a moment in UTC, in whole seconds."""
    return write_moment(time_ms) + "Z"


def parse_wait(text: str) -> float:
    """Return seconds; `0` needs no unit."""
    if _BARE.fullmatch(text) and int(text) == 0:
        return 0.0
    if _BARE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} has no unit: write {text}s for seconds, {text}m for minutes"
        )
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None
