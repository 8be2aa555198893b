"""Formats one message as one line: for people, for programs, or as its bytes.

Rule: a line for people contains no control character, whatever the message contains; bytes that are not text
are shown as escapes. A line of JSON keeps every byte: what is not text is written as base64. Null is not the
empty text: it is shown as `null`, and as JSON's null.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli.shared.terminal import escape

if TYPE_CHECKING:
    from penstock.kafka.console.topic_tailing import ConsumedRecord

#: What may be printed before a value, by name.
COLUMNS: dict[str, Callable[[ConsumedRecord], str]] = {
    "topic": lambda record: record.topic,
    "partition": lambda record: f"{record.partition}",
    "offset": lambda record: f"{record.offset}",
    "timestamp": lambda record: show_time(record.timestamp_ms),
    "key": lambda record: show_bytes(record.key),
    "headers": lambda record: ",".join(
        f"{escape(name)}={show_bytes(value)}" for name, value in record.headers
    ),
}


def show_bytes(data: bytes | None) -> str:
    return "null" if data is None else escape(data.decode("utf-8", "backslashreplace"))


def show_time(time_ms: int) -> str:
    """Return a time in UTC with milliseconds; a time outside the calendar stays a number."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:23] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms}"


def write_line(record: ConsumedRecord, columns: Sequence[str], separator: str) -> None:
    cells = [COLUMNS[name](record) for name in columns]
    sys.stdout.write(separator.join([*cells, show_bytes(record.value)]) + "\n")


def write_raw(record: ConsumedRecord) -> None:
    sys.stdout.buffer.write((record.value or b"") + b"\n")


def write_json(record: ConsumedRecord) -> None:
    sys.stdout.write(format_json(record) + "\n")


def format_json(record: ConsumedRecord) -> str:
    """Return one line of JSON, which `message_input` can read."""
    content = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }
    return json.dumps(content)


def _to_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
