"""Writes numbers, lists and moments for sentences.

Rule: a sentence about several things is in the plural, and so is its verb; the code that writes it chooses
both.

>>> join(["t-0", "t-1", "t-2"]), count(1, "offset"), choose(["t-0"], "is", "are")
('t-0, t-1 and t-2', '1 offset', 'is')
>>> shorten(["t-0", "t-1", "t-2"], 2), write_moment(0)
('t-0, t-1 and 1 more', '1970-01-01 00:00:00')
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from datetime import UTC, datetime


def count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def shorten(parts: Sequence[str], most: int, rest: str = "more") -> str:
    """Return `a, b`, or the first `most` and how many are left out: `a, b and 3 more`."""
    others = f" and {len(parts) - most} {rest}" if len(parts) > most else ""
    return ", ".join(parts[:most]) + others


def choose(things: Sized, of_one: str, of_several: str) -> str:
    """Return the words for one thing, or for several."""
    return of_one if len(things) == 1 else of_several


def write_moment(at_ms: int) -> str:
    """Return the time in UTC, as `2026-01-31 12:00:00`."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
