r"""Send lines to a topic, each line a message.

penstock produce test                              type lines, each is sent at once; Ctrl-D ends
penstock produce test < lines.txt
penstock produce test --file big.log --compression zstd
penstock produce test --key-separator '\t' --print   lines with a key, a tab and a value; say where each went
penstock produce test --timestamp 2026-01-31T12:00:00Z --headers source=import,run=7
penstock consume old --from-beginning --timeout-ms 5000 --json | penstock produce new --json

Every message is acknowledged by all in-sync replicas before it is counted. A line of text has no key unless
there is a separator; without a key it goes to any partition. Bytes are sent unchanged.

With --json a line is {"key": "k", "value": "v", "headers": [["h", "v"]], "timestamp_ms": 1769860800000,
"partition": 0}, of which only `value` is required. null is null, and bytes that are not text are written as
{"base64": "/w=="}. This is what `penstock consume --json` writes; its `topic` and `offset` are ignored.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from penstock.cli.messages.message_input import JsonLines, MessageDefaults, TextLines
from penstock.cli.shared.escapes import read_escapes
from penstock.cli.shared.kafka_arguments import (
    LIMIT,
    LOOK_TIMEOUT_MS,
    add_connection_arguments,
    add_json_argument,
    demand_topic,
    gather_settings,
    parse_pair,
    parse_partition_number,
    read_settings,
)
from penstock.cli.shared.moments import parse_moment
from penstock.cli.shared.terminal import SafeProgressBar, complain, count, escape, say
from penstock.core.client.untranslated_settings import PRODUCER_ONLY
from penstock.core.errors import OptionError, PenstockError
from penstock.core.options.option_values import parse_integer_from, parse_word

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kafka.writing.plain_producer import Writer

Value = TypeVar("Value")
JSON_VERSION = 1
_DELIVERY_TIMEOUT_MS = 120_000  # Java's default
#: Maps the writer's conditions about columns, which lines do not have, to the option and the field.
_HINTS = {
    "PARTITION_OUT_OF_RANGE": (
        "--partition",
        "`partition` of these lines, or leave it out",
        ", or leave it out",
    ),
    "INVALID_TIMESTAMP": (
        "--timestamp",
        "`timestamp_ms` of these lines (milliseconds since 1970)",
        " (milliseconds since 1970)",
    ),
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_BLOCK_BYTES = 4 << 20
#: How long a block may wait for more of a slow pipe before it is sent.
_LINGER_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--file",
        type=Path,
        default=None,
        metavar="FILE",
        help="read lines from here (default: standard input)",
    )
    parser.add_argument(
        "--key-separator",
        default=None,
        metavar="TEXT",
        help=r"each line is a key, this, and a value; '\t' is a tab; \n, \r, \0, \\ and \xHH work, too",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every message; may be given several times",
    )
    parser.add_argument(
        "--headers",
        default=None,
        metavar="NAME=VALUE,...",
        help="several headers of every message; a value with a comma needs --header",
    )
    parser.add_argument(
        "--timestamp",
        type=parse_moment,
        default=None,
        metavar="WHEN",
        help="the time of every message: 2026-01-31T12:00:00Z, milliseconds since 1970, or 10m for ten "
        "minutes ago (default: when it is sent)",
    )
    parser.add_argument(
        "--partition",
        type=parse_partition_number,
        default=None,
        metavar="N",
        help="send all messages to this partition (default: the key decides)",
    )
    parser.add_argument(
        "--compression", choices=CODECS, default=None, help="how batches are compressed (default: none)"
    )
    parser.add_argument(
        "--acks",
        choices=("all", "-1"),
        default="all",
        help="all in-sync replicas acknowledge each message; nothing less is offered",
    )
    parser.add_argument(
        "--print", action="store_true", help="send each message alone and say where it went: slower"
    )
    add_json_argument(parser, "each line is a message as JSON, see above; reports are JSON, too")
    parser.add_argument(
        "--json-report",
        action="store_true",
        help="for programs: lines are text, and the report at the end is a JSON object; with --print, one "
        "more for each message",
    )
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    form = _choose_form(arguments)
    texts = gather_settings(arguments)
    codec, delivery_timeout_ms = _take_producer_settings(texts, arguments)
    settings = read_settings(texts)
    from penstock.kafka.writing.plain_producer import Writer

    first = settings if LIMIT in texts else replace(settings, default_api_timeout_ms=LOOK_TIMEOUT_MS)
    demand_topic(first, arguments.topic)  # nothing was sent yet, and a person waits for the first line
    writer = Writer(settings, codec=CODECS.index(codec), delivery_timeout_ms=delivery_timeout_ms)
    with _open_input(arguments.file) as source:
        sending = _Sending(arguments, writer, form)
        try:
            for block in _read_blocks(source, arguments.file):
                sending.send(sending.cutter.cut(block))
            sending.send(sending.cutter.rest())
        except BaseException as error:
            complain(f"Acknowledged before it ended: {count(sending.acknowledged, 'message')}.")
            if isinstance(error, PenstockError) and error.condition in _HINTS:
                raise _advise(error, arguments) from error
            raise
    sending.sum_up()
    return 0


def _advise(error: PenstockError, arguments: argparse.Namespace) -> PenstockError:
    """Return the error with advice in the terms of this command."""
    option, field, given = _HINTS[error.condition]
    hint = f"Correct {option}{given}" if getattr(arguments, option[2:]) is not None else f"Correct {field}"
    return type(error)(error.condition, error.what, hint=f"{hint}.", facts=error.facts)


def _choose_form(arguments: argparse.Namespace) -> TextLines | JsonLines:
    """Return the reader for the form that the options name."""
    listed = [] if arguments.headers is None else arguments.headers.split(",")
    pairs = [parse_pair("--headers", each) for each in listed]
    pairs += [parse_pair("--header", each) for each in arguments.header]
    headers = tuple((name, os.fsencode(value)) for name, value in pairs)
    fixed = MessageDefaults(arguments.partition, arguments.timestamp, headers)
    separator = arguments.key_separator
    if not arguments.json:
        meant = None if separator is None else read_escapes("--key-separator", separator)
        return TextLines(fixed, meant, separator)
    if separator is not None:
        raise OptionError(
            "OPTIONS_DISAGREE",
            "With --json a line names its key itself, so --key-separator does not go with it.",
            hint="Leave out one of the two.",
        )
    return JsonLines(fixed)


class _Sending:
    """One run: what was sent so far, and where it went."""

    def __init__(self, arguments: argparse.Namespace, writer: Writer, form: TextLines | JsonLines) -> None:
        from penstock.kafka.console.line_records import LineCutter

        self._arguments, self._writer, self._form = arguments, writer, form
        self._reports_json = arguments.json or arguments.json_report
        self.cutter = LineCutter()
        self.acknowledged = 0
        self._counts: dict[int, int] = {}

    def send(self, lines: pa.Array) -> None:
        """Send the lines, up to the first one that is wrong."""
        if not len(lines):
            return
        records, wrong = self._form.read(lines)
        if self._arguments.print:
            for number in range(records.num_rows):
                self._write(records.slice(number, 1))
        elif records.num_rows:
            self._write(records)
        if wrong is not None:
            raise wrong

    def _write(self, records: pa.RecordBatch) -> None:
        written = self._writer.write(self._arguments.topic, records)
        self.acknowledged += written.records
        for partition, number in written.counts.items():
            self._counts[partition] = self._counts.get(partition, 0) + number
            if self._arguments.print:
                # A repetition that the broker recognised may come back without its offset.
                first = written.offsets[partition][0] if partition in written.offsets else None
                self._say_place(partition, first)

    def _say_place(self, partition: int, offset: int | None) -> None:
        if self._reports_json:
            say(json.dumps({"partition": partition, "offset": offset}))
        else:
            say(f"partition: {partition}, offset: {'unknown' if offset is None else offset}")

    def sum_up(self) -> None:
        counts = dict(sorted(self._counts.items()))
        if self._reports_json:
            total = {"version": JSON_VERSION, "acknowledged": self.acknowledged, "partitions": counts}
            say(json.dumps(total))
            return
        where = ", ".join(f"{number} in partition {partition}" for partition, number in counts.items())
        say(f"{count(self.acknowledged, 'message')} acknowledged{': ' if where else ''}{where}.")


def _take_producer_settings(texts: dict[str, str], arguments: argparse.Namespace) -> tuple[str, int]:
    """Take producer-only settings out of `texts`: return the codec and the time limit. `acks` must be all."""
    codec = _take(texts, "compression.type", parse_word(*CODECS)) or "none"
    _take(texts, "acks", parse_word("all", "-1"))
    limit_ms = _take(texts, "delivery.timeout.ms", parse_integer_from(1)) or _DELIVERY_TIMEOUT_MS
    idle = sorted(texts.keys() & PRODUCER_ONLY)
    if idle:
        complain(f"Warning: Without effect here: {', '.join(idle)}.")
    for name in idle:
        del texts[name]
    return arguments.compression or codec, limit_ms


def _take(texts: dict[str, str], name: str, parse: Callable[[str], Value]) -> Value | None:
    from penstock.core.options.option_table import invalid

    text = texts.pop(name, None)
    try:
        return None if text is None else parse(text.strip())
    except ValueError as error:
        raise invalid(name, text or "", str(error)) from None


def _open_input(path: Path | None) -> BinaryIO:
    if path is None:
        if sys.stdin.isatty():
            complain("Type lines; each is sent when you press Enter. Ctrl-D ends.")
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise OptionError(
            "FILE_UNREADABLE",
            f"--file names {path}, which cannot be read: {error.strerror}.",
            hint="Check the path and its permissions.",
            facts={"path": str(path)},
        ) from error


def _read_blocks(source: BinaryIO, path: Path | None) -> Iterator[bytes]:
    """Yield whole blocks of a file; of a pipe or a terminal, what has arrived, soon after it arrives."""
    total = path.stat().st_size if path is not None else 0
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    bar = SafeProgressBar(f"Sending {escape(path.name)}") if path is not None and is_watched else None
    done = 0
    while block := _read_block(source, patient=not source.isatty()):
        yield block
        done += len(block)
        if bar is not None and total:
            bar(min(done, total), total, "complete" if done >= total else "")


def _read_block(source: BinaryIO, *, patient: bool) -> bytes:
    block = io.BytesIO()
    until = time.monotonic() + _LINGER_S
    piece = source.read(_BLOCK_BYTES)
    while piece:
        block.write(piece)
        waits_s = max(0.0, until - time.monotonic())
        if not patient or block.tell() >= _BLOCK_BYTES or not select.select([source], [], [], waits_s)[0]:
            break
        piece = source.read(_BLOCK_BYTES - block.tell())
    return block.getvalue()
