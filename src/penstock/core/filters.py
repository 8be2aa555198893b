"""Which rows a pushed filter lets a reader skip: partitions, offsets, and a lower bound of time.

Rule: narrow only where a row that is left out could never pass the filter; Spark still applies every
filter itself. Times are not monotonic in a log, so an upper bound of time ends nothing and is ignored; a
lower bound may skip everything before the first record that is young enough, because the broker finds
exactly that record.

>>> narrow([Comparison("offset", ">=", 10), Comparison("offset", "<", 20)])
Narrowing(partitions=None, from_offset=10, until_offset=20, since_ms=None)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.core.model import Narrowing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`, operator one of `= > >= < <= in` (for `in` the value is a tuple)."""

    column: str
    operator: str
    value: object


def narrow(comparisons: Iterable[Comparison]) -> Narrowing:
    """What all comparisons together allow to skip. One that is not understood narrows nothing."""
    partitions: frozenset[int] | None = None
    lows: list[int] = []
    highs: list[int] = []
    times: list[int] = []
    for each in comparisons:
        if each.column == "partition":
            values = _whole_numbers(each)
            if values is not None:
                partitions = values if partitions is None else partitions & values
        elif each.column == "offset":
            low, high = _interval(each)
            lows += low
            highs += high
        elif each.column == "timestamp" and each.operator in ("=", ">", ">="):
            times += _milliseconds(each.value)
    return Narrowing(partitions, max(lows, default=None), min(highs, default=None), max(times, default=None))


def _whole_numbers(each: Comparison) -> frozenset[int] | None:
    if each.operator == "=" and isinstance(each.value, int):
        return frozenset({each.value})
    if each.operator == "in" and isinstance(each.value, tuple):
        return frozenset(value for value in each.value if isinstance(value, int))
    return None


def _interval(each: Comparison) -> tuple[list[int], list[int]]:
    """The half-open interval of offsets that can pass, as ([first], [until]), either possibly empty."""
    value = each.value
    if each.operator == "in" and isinstance(value, tuple):
        numbers = [number for number in value if isinstance(number, int)]
        return ([min(numbers)], [max(numbers) + 1]) if numbers else ([], [])
    if not isinstance(value, int):
        return [], []
    match each.operator:
        case "=":
            return [value], [value + 1]
        case ">":
            return [value + 1], []
        case ">=":
            return [value], []
        case "<":
            return [], [value]
        case "<=":
            return [], [value + 1]
        case _:
            return [], []


def _milliseconds(value: object) -> list[int]:
    # A time without a zone would mean this machine's zone; leaving it out is always right.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return []
    delta = value - _EPOCH
    return [(delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000]
