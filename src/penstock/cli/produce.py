"""Send lines to a topic, each line a message.

penstock produce test                              type lines, each is sent at once; Ctrl-D ends
penstock produce test < lines.txt
penstock produce test --file big.log --compression zstd
penstock produce test --key-separator : --print    key:value lines, and where each message went

Every message is acknowledged by all in-sync replicas before it is counted. A message has no key unless there
is a separator; without a key it goes to any partition. Bytes are sent as they are.
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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from penstock.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    gather_settings,
    parse_pair,
    read_settings,
)
from penstock.cli.terminal import ProgressBar, complain, count, escape, say
from penstock.core.client_names import PRODUCER_ONLY
from penstock.core.errors import BrokerError, OptionError, SinkError
from penstock.core.values import parse_integer_from, parse_word

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.client import ClientSettings
    from penstock.kafka.writer import Writer

Value = TypeVar("Value")
JSON_VERSION = 1
_DELIVERY_TIMEOUT_MS = 120_000  # Java's default
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_BLOCK_BYTES = 4 << 20
#: How long a block may wait for more of a slow pipe before it is sent.
_LINGER_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--file", type=Path, default=None, help="read lines from here (default: stdin)")
    parser.add_argument(
        "--key-separator", default=None, metavar="TEXT", help="what stands before it in a line is the key"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="a header of every message"
    )
    parser.add_argument("--partition", type=int, default=None, help="send all to this partition")
    parser.add_argument("--compression", choices=CODECS, default=None, help="default none")
    parser.add_argument(
        "--acks", choices=("all", "-1"), default="all", help="wait for all in-sync replicas; there is no less"
    )
    parser.add_argument(
        "--print", action="store_true", help="send each line alone and say where it went: slower"
    )
    add_json_argument(parser, "a JSON object at the end; with --print, one for each line before it")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    texts = gather_settings(arguments)
    codec, delivery_timeout_ms = _take_producer_settings(texts, arguments)
    settings = read_settings(texts)
    from penstock.kafka.writer import Writer

    _check_topic(settings, arguments.topic)
    writer = Writer(settings, codec=CODECS.index(codec), delivery_timeout_ms=delivery_timeout_ms)
    with _open_input(arguments.file) as source:
        sending = _Sending(arguments, writer)
        try:
            for block in _read_blocks(source, arguments.file):
                sending.send(sending.cutter.cut(block))
            sending.send(sending.cutter.rest())
        except BaseException:
            complain(f"Acknowledged before it ended: {count(sending.acknowledged, 'message')}.")
            raise
    sending.sum_up()
    return 0


class _Sending:
    """One run: what was sent so far, and where it went."""

    def __init__(self, arguments: argparse.Namespace, writer: Writer) -> None:
        from penstock.kafka.lines import LineCutter

        self._arguments, self._writer = arguments, writer
        separator = arguments.key_separator
        if separator == "":
            raise OptionError(
                "SEPARATOR_EMPTY", "--key-separator is empty.", hint="Give at least one character."
            )
        self._separator = None if separator is None else os.fsencode(separator)
        self._headers = [parse_pair("--header", pair) for pair in arguments.header]
        self.cutter = LineCutter()
        self.acknowledged = 0
        self._lines = 0
        self._counts: dict[int, int] = {}

    def send(self, lines: pa.Array) -> None:
        """Send them; of lines with keys, those before the first that has none."""
        from penstock.kafka.lines import find_keyless

        keyless = None if self._separator is None else find_keyless(lines, self._separator)
        self._send_good(lines if keyless is None else lines.slice(0, keyless))
        if keyless is not None:
            raise SinkError(
                "KEY_SEPARATOR_MISSING",
                f"Line {self._lines + 1} has no {self._arguments.key_separator!r}, so it has no key.",
                hint="Nothing from this line on was sent. Correct it, or leave out --key-separator.",
                facts={"line": self._lines + 1},
            )

    def _send_good(self, lines: pa.Array) -> None:
        from penstock.kafka.lines import make_records

        if not len(lines):
            return
        records = make_records(
            lines,
            separator=self._separator,
            partition=self._arguments.partition,
            headers=[(name, os.fsencode(value)) for name, value in self._headers],
        )
        if self._arguments.print:
            for number in range(records.num_rows):
                self._write(records.slice(number, 1))
        else:
            self._write(records)
        self._lines += len(lines)

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
        if self._arguments.json:
            say(json.dumps({"partition": partition, "offset": offset}))
        else:
            say(f"partition: {partition}, offset: {'unknown' if offset is None else offset}")

    def sum_up(self) -> None:
        counts = dict(sorted(self._counts.items()))
        if self._arguments.json:
            total = {"version": JSON_VERSION, "acknowledged": self.acknowledged, "partitions": counts}
            say(json.dumps(total))
            return
        where = ", ".join(f"{number} in partition {partition}" for partition, number in counts.items())
        say(f"{count(self.acknowledged, 'message')} acknowledged{': ' if where else ''}{where}.")


def _take_producer_settings(texts: dict[str, str], arguments: argparse.Namespace) -> tuple[str, int]:
    """Settings that only a producer has leave `texts`: the codec and the time limit; `acks` must be all."""
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
    from penstock.core.options import invalid

    text = texts.pop(name, None)
    try:
        return None if text is None else parse(text.strip())
    except ValueError as error:
        raise invalid(name, text or "", str(error)) from None


def _check_topic(settings: ClientSettings, topic: str) -> None:
    from penstock.kafka.admin import topic_exists

    if not topic_exists(settings, topic):
        raise BrokerError(
            "UNKNOWN_TOPIC",
            f"The brokers know no topic named {topic}.",
            hint=f"Correct the name (case matters), or run `penstock topics create {topic}`.",
            facts={"missing": [topic]},
        )


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
    """Whole blocks of a file; of a pipe or a terminal, what is there, soon after it is there."""
    total = path.stat().st_size if path is not None else 0
    bar = ProgressBar(f"Sending {escape(path.name)}") if path is not None and sys.stderr.isatty() else None
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
