"""Parsers from text to values that all option tables share.

Rule: parsing is strict and the same everywhere. A blank text is an error, never "not set"; `inf`, `nan`,
signs in odd places and numbers outside their range are refused, because a wait of infinite length or a
negative size defeats the guard it was meant to set. Why not `int(text)` and `bool(text)`: Python accepts
`"1_000"`, `" 7 "` and any non-empty text, Spark does not, and a job that moves between the two must not
change.

A parser raises `ValueError` with a sentence about what is expected; the option table turns it into an
`OptionError` that names the option.

>>> parse_boolean("TRUE")
True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_text(text: str) -> str:
    """Return a text that is not blank, without the white space around it."""
    if not text.strip():
        raise ValueError("a value that is not blank")
    return text.strip()


def parse_boolean(text: str) -> bool:
    """Return the value of `true` or `false`, in any case; refuse anything else."""
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError("`true` or `false`")
    return word == "true"


def parse_integer(text: str, *, least: int, most: int) -> int:
    """Return a whole number in `[least, most]`, written in digits."""
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"a whole number from {least} to {most}")
    return int(text)


def parse_integer_from(least: int, most: int = INT32_MAX) -> Callable[[str], int]:
    """Return the parser for whole numbers from `least` to `most`.

    The default `most` is the largest Java `int`; as milliseconds it is 24 days, so every wait ends.
    """

    def parse(text: str) -> int:
        return parse_integer(text, least=least, most=most)

    return parse


def parse_cache_ms(text: str) -> int | None:
    """Return the milliseconds for which something may be kept, 1 or more, or None for -1, which is never."""
    try:
        return None if text == "-1" else parse_integer(text, least=1, most=INT64_MAX)
    except ValueError:
        raise ValueError(f"-1, or a whole number from 1 to {INT64_MAX}") from None


def parse_word(*words: str) -> Callable[[str], str]:
    """Return the parser for one of these words, in any case; it returns the word as written here."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError("one of " + ", ".join(f"`{word}`" for word in words))
        return known[text.lower()]

    return parse


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970, given in digits or as an ISO 8601 time that states its zone.

    A time without a zone is refused: it would mean a different moment on every machine, and one hour of every
    autumn would be ambiguous.
    """
    text = text.strip()
    if _INTEGER.fullmatch(text):
        # Negative times are Kafka's own signals (-1 latest, -2 earliest, ...), not moments.
        return parse_integer(text, least=0, most=INT64_MAX)
    expected = (
        "milliseconds since 1970 (0 or more), or an ISO 8601 time with a zone like 2026-01-31T12:00:00Z"
    )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(expected) from None
    if moment.tzinfo is None:
        raise ValueError(expected + "; this time states no zone")
    if moment.microsecond % 1000:
        raise ValueError(expected + "; Kafka's times are in milliseconds, and this one is finer")
    if moment < _EPOCH:
        raise ValueError(expected + "; this time is before 1970")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_duration_ms(text: str) -> int:
    """Return a length of time such as `30s`, `10m`, `2h`, `1d` in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise ValueError("a length of time such as `30s`, `10m`, `2h` or `1d`")
    return int(found[1]) * _UNITS_MS[found[2]]


_MISSIGNED = re.compile(r"[+-]?\s*([0-9]+)\s*(ms|s|m|h|d)")


def find_length_ago(text: str) -> str | None:
    """Return the length of time in a text that probably means "this long ago", such as `10m` in `+10m`."""
    found = _MISSIGNED.fullmatch(text.strip().lower())
    return found[1] + found[2] if found else None


#: Plausible times in milliseconds: a bare number outside lies before 1973 or after 5138. A time in seconds is
#: below this range, one in microseconds above it.
_MEANT_MS = range(10**11, 10**14)


def find_unit_mistake(time_ms: int) -> str | None:
    """Return what is odd about a bare number as milliseconds since 1970, or None if nothing is."""
    if time_ms in _MEANT_MS:
        return None
    if time_ms < _MEANT_MS.start:
        meant = f" (as seconds, it is {time_ms * 1000} ms)" if time_ms * 1000 in _MEANT_MS else ""
        return f"as milliseconds since 1970 it is too small to be meant{meant}"
    meant = f" (as microseconds, it is {time_ms // 1000} ms)" if time_ms // 1000 in _MEANT_MS else ""
    return f"as milliseconds since 1970 it is too large to be meant{meant}"


_SIZE = re.compile(r"([0-9]+)([kmgt]?)b?")
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size_bytes(text: str) -> int:
    """Return a number of bytes, 1 or more, given as `65536`, `512k`, `64m` or `1g`."""
    found = _SIZE.fullmatch(text.strip().lower())
    size = int(found[1]) * _SIZES[found[2]] if found else 0
    if not 0 < size <= INT64_MAX:
        raise ValueError("a size such as `65536`, `512k`, `64m` or `1g`")
    return size


def parse_delay_ms(text: str) -> int:
    """Return the milliseconds of a length of time such as `15m`, or, as in Spark, of a bare number."""
    if _INTEGER.fullmatch(text.strip()):
        return parse_integer(text.strip(), least=0, most=INT64_MAX)
    return parse_duration_ms(text)


def parse_span_ms(text: str) -> int:
    """Return the milliseconds as `parse_delay_ms` does, but refuse zero."""
    span_ms = parse_delay_ms(text)
    if span_ms == 0:
        raise ValueError("a length of time above 0, such as `500ms` or `1s`")
    return span_ms


def parse_rate(text: str) -> float:
    """Return a finite number, 0 or more, with or without a fraction."""
    if not re.fullmatch(r"[0-9]+([.][0-9]+)?", text) or float(text) > INT64_MAX:
        raise ValueError("a number of 0 or more, such as `100` or `0.5`")
    return float(text)


def parse_rate_above_zero(text: str) -> float:
    """Return a finite number above 0."""
    rate = parse_rate(text)
    if rate == 0:
        raise ValueError("a number above 0, such as `100` or `0.5`")
    return rate
