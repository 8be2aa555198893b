"""Parses positions as users write them on the command line: `22`, `earliest`, `10m`, a time with its zone.

Rule: no negative numbers: to some readers -1 is the last record, to Kafka it is the end of the log. For the
last records there is `--last`.

>>> parse_offset("--offset", "22")
At(offset=22)
"""

from __future__ import annotations

import re

from penstock.cli.shared.moments import find_moment
from penstock.core.errors import OptionError
from penstock.core.model import At, Earliest, Latest, Position, RecordsBeforeEnd, Since
from penstock.core.options.option_values import INT64_MAX, find_length_ago


def parse_offset(option: str, text: str) -> Position:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Earliest() if word == "earliest" else Latest()
    if re.fullmatch("[0-9]{1,19}", word) and int(word) <= INT64_MAX:
        return At(int(word))
    other = "a time say --from-time" if find_length_ago(text) else "the last records say --last"
    raise _invalid(option, text, f"a number, 0 or greater, `earliest` or `latest`; for {other}")


def parse_last(option: str, records: int) -> Position:
    if records < 1:
        raise _invalid(option, str(records), "a number of records, 1 or greater")
    return RecordsBeforeEnd(records)


def parse_start_time(option: str, text: str, *, now_ms: int) -> Position:
    try:
        return Since(find_moment(text, now_ms=now_ms))
    except ValueError as error:
        raise _invalid(option, text, str(error)) from None


def _invalid(option: str, text: str, expected: str) -> OptionError:
    return OptionError(
        "START_INVALID",
        f"{option} is `{text}`; expected {expected}.",
        hint="Correct it; --help shows all options.",
        facts={"option": option},
    )
