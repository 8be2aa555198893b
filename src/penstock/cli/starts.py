"""Positions as a person writes them on the command line: `22`, `earliest`, `10m`, a time with its zone.

Rule: no negative numbers: to some a -1 is the last record, to Kafka it is the end of the log. Who wants the
last records says `--last`.

>>> parse_offset("--offset", "22")
At(offset=22)
"""

from __future__ import annotations

import re

from penstock.core.errors import OptionError
from penstock.core.model import Ago, At, Earliest, Latest, Position, RecordsBeforeEnd, Since
from penstock.core.values import INT64_MAX, parse_duration_ms, parse_time_ms


def parse_offset(option: str, text: str) -> Position:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Earliest() if word == "earliest" else Latest()
    if re.fullmatch("[0-9]{1,19}", word) and int(word) <= INT64_MAX:
        return At(int(word))
    raise _invalid(
        option, text, "a number from 0 on, `earliest` or `latest`; for the last records say --last"
    )


def parse_last(option: str, records: int) -> Position:
    if records < 1:
        raise _invalid(option, str(records), "a number of records from 1 on")
    return RecordsBeforeEnd(records)


def parse_moment(option: str, text: str) -> Position:
    try:
        return Ago(parse_duration_ms(text))
    except ValueError:
        pass
    try:
        return Since(parse_time_ms(text))
    except ValueError as error:
        raise _invalid(option, text, f"a length of time (10m), or {error}") from None


def _invalid(option: str, text: str, expected: str) -> OptionError:
    return OptionError(
        "START_INVALID",
        f"{option} is {text!r}; expected {expected}.",
        hint="Correct it; the command without arguments shows all options.",
        facts={"option": option},
    )
