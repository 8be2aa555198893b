"""Reads the input of `penstock produce`: lines of text, or messages as JSON, one per line.

Rules: bytes of text pass unchanged. A message as JSON has the form that `penstock consume --json` writes, so
what was consumed can be produced again with the same key, value, headers, time and partition; null stays null
and empty stays empty. An unknown field is an error, and so is a message without `value`: a misspelt name
would otherwise become a null value, which deletes its key from a compacted topic. The first wrong line ends
the input: all lines before it are sent, none after it.

>>> read_message(b'{"key": null, "value": {"base64": "/w=="}}').value
b'\\xff'
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli.shared.terminal import complain
from penstock.core.errors import SinkError
from penstock.core.options.option_values import INT32_MAX, INT64_MAX, find_unit_mistake

if TYPE_CHECKING:
    import pyarrow as pa

#: Ignored: the topic is named on the command line, and the broker assigns the offset.
_PLACE = ("topic", "offset")
_FIELDS = ("key", "value", "headers", "timestamp_ms", "partition", *_PLACE)
#: Kafka's value for a record without a time.
_NO_TIME_MS = -1

MessageHeader = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send; a time or partition that is None is chosen when it is sent."""

    key: bytes | None
    value: bytes | None
    headers: tuple[MessageHeader, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class MessageDefaults:
    """What the command line says about every message; its headers come after those of the message."""

    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[MessageHeader, ...] = ()


class TextLines:
    """Reads each line as a value, or with a separator as a key and a value."""

    def __init__(self, fixed: MessageDefaults, separator: bytes | None, shown_separator: str | None) -> None:
        self._fixed, self._separator, self._shown = fixed, separator, shown_separator
        self._lines = 0

    def read(self, lines: pa.Array) -> tuple[pa.RecordBatch, SinkError | None]:
        """Return the records of the lines before the first wrong one, and what is wrong with that one."""
        from penstock.kafka.console.line_records import find_keyless, make_records

        wrong = None if self._separator is None else find_keyless(lines, self._separator)
        good = lines if wrong is None else lines.slice(0, wrong)
        records = make_records(
            good,
            separator=self._separator,
            partition=self._fixed.partition,
            timestamp_ms=self._fixed.timestamp_ms,
            headers=self._fixed.headers,
        )
        self._lines += len(good)
        if wrong is None:
            return records, None
        return records, SinkError(
            "KEY_SEPARATOR_MISSING",
            f"Line {self._lines + 1} has no `{self._shown}`, so it has no key.",
            hint="Nothing from this line on was sent. Correct it, or leave out --key-separator.",
            facts={"line": self._lines + 1},
        )


class JsonLines:
    """Reads each line as a message that `penstock consume --json` writes; blank lines are skipped."""

    def __init__(self, fixed: MessageDefaults) -> None:
        self._fixed = fixed
        self._lines = 0
        self._has_warned = False

    def read(self, lines: pa.Array) -> tuple[pa.RecordBatch, SinkError | None]:
        """Return the records of the lines before the first wrong one, and what is wrong with that one."""
        messages: list[Message] = []
        wrong = None
        for line in lines.to_pylist():
            self._lines += 1
            if not line.strip():
                continue
            try:
                messages.append(read_message(line))
            except ValueError as error:
                wrong = SinkError(
                    "MESSAGE_INVALID",
                    f"Line {self._lines} is not a message: {error}.",
                    hint="Nothing from this line on was sent. Write it as `penstock consume --json` does, or "
                    "leave out --json to send lines of text.",
                    facts={"line": self._lines},
                )
                break
            if self._fixed.timestamp_ms is None:
                self._look_at_time(messages[-1].timestamp_ms)
        return _make_records(messages, self._fixed), wrong

    def _look_at_time(self, time_ms: int | None) -> None:
        """Warn once of a time in another unit; do not refuse it, since a copy keeps the original's time."""
        if self._has_warned or time_ms is None or time_ms == _NO_TIME_MS:
            return
        mistake = find_unit_mistake(time_ms)
        if mistake is not None:
            self._has_warned = True
            complain(f"Warning: `timestamp_ms` of line {self._lines} is {time_ms}: {mistake}.")


def read_message(line: bytes) -> Message:
    """Return the message in a line; raise a `ValueError` with a clause about what is wrong with it."""
    try:
        given = json.loads(line, object_pairs_hook=_gather)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON at character {error.pos + 1}") from None
    if not isinstance(given, dict):
        raise ValueError("it is not a JSON object, such as " + '{"key": "k", "value": "v"}')
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise ValueError(f"`{unknown[0]}` is none of {', '.join(_FIELDS)}")
    if "value" not in given:
        raise ValueError("it has no `value`; write null for a message without one")
    return Message(
        _read_bytes("key", given.get("key")),
        _read_bytes("value", given["value"]),
        _read_headers(given.get("headers")),
        _read_number("timestamp_ms", given.get("timestamp_ms"), _NO_TIME_MS, INT64_MAX),
        _read_number("partition", given.get("partition"), 0, INT32_MAX),
    )


def _gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    gathered: dict[str, Any] = {}
    for name, value in pairs:
        if name in gathered:
            raise ValueError(f"`{name}` is given twice")
        gathered[name] = value
    return gathered


def _read_bytes(name: str, given: object) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"`{name}` holds half of a character; write its bytes as base64") from None
    if isinstance(given, dict) and given.keys() == {"base64"} and isinstance(given["base64"], str):
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"the base64 of `{name}` is damaged") from None
    raise ValueError(f"`{name}` is not a text, null, or bytes such as " + '{"base64": "/w=="}')


def _read_headers(given: object) -> tuple[MessageHeader, ...]:
    if given is None:
        return ()
    is_list = isinstance(given, list) and all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in given
    )
    if not is_list:
        raise ValueError('`headers` is not a list of names and values such as [["h", "v"]]')
    assert isinstance(given, list)
    found = tuple((name, _read_bytes(f"header {name}", value)) for name, value in given)
    for name, _ in found:
        _read_bytes("headers", name)
    return found


def _read_number(name: str, given: object, least: int, most: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ValueError(f"`{name}` is not a whole number, {max(0, least)} or greater")
    return given


def _make_records(messages: Sequence[Message], fixed: MessageDefaults) -> pa.RecordBatch:
    import pyarrow as pa

    from penstock.kafka.records.record_schema import HEADERS

    def choose(said: int | None, values: Iterable[int | None]) -> list[int | None]:
        return [said if said is not None else each for each in values]

    headers = [
        [{"key": name, "value": value} for name, value in (*each.headers, *fixed.headers)]
        for each in messages
    ]
    times = choose(fixed.timestamp_ms, (each.timestamp_ms for each in messages))
    partitions = choose(fixed.partition, (each.partition for each in messages))
    return pa.record_batch(
        {
            "key": pa.array([each.key for each in messages], pa.large_binary()),
            "value": pa.array([each.value for each in messages], pa.large_binary()),
            "headers": pa.array(headers, HEADERS),
            "timestamp": pa.array(times, pa.int64()),
            "partition": pa.array(partitions, pa.int32()),
        }
    )
