"""Numbers and lists in sentences.

Rule: a sentence about several things is in the plural, and so is its verb; its writer chooses both.

>>> join(["t-0", "t-1", "t-2"]), count(1, "offset"), choose(["t-0"], "is", "are")
('t-0, t-1 and t-2', '1 offset', 'is')
"""

from __future__ import annotations

from collections.abc import Sequence, Sized


def count(number: int, noun: str) -> str:
    """Return `1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def choose(things: Sized, of_one: str, of_several: str) -> str:
    """Return the words for one thing, or for several."""
    return of_one if len(things) == 1 else of_several
