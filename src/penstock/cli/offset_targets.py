"""Where `penstock offsets` is asked to move a stream: the options, and what they mean in the log."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.cli.connection import parse_pair
from penstock.cli.moments import parse_moment
from penstock.core.errors import OptionError
from penstock.core.model import At, Earliest, Latest, Since, TopicPartition
from penstock.core.offset_stores import OffsetStore
from penstock.core.rewinds import By, Each, LogBounds, Target
from penstock.core.stream_offsets import StreamPosition
from penstock.core.values import INT64_MAX, parse_integer

if TYPE_CHECKING:
    from penstock.core.client import ClientSettings


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--to-time",
        type=parse_moment,
        metavar="WHEN",
        help="the first record at or after 2026-01-31T12:00:00Z, or so long ago: 2h, 1d",
    )
    asked.add_argument("--to-offset", type=_parse_offset, metavar="N", help="this offset in every partition")
    asked.add_argument(
        "--offset", action="append", metavar="TOPIC-PARTITION=N", help="one partition's, as often as needed"
    )
    asked.add_argument("--by", type=_parse_count, metavar="N", help="so many records; back in a rewind")
    asked.add_argument("--to-start", action="store_true", help="the beginning of the log")
    asked.add_argument("--to-end", action="store_true", help="the end of the log")
    asked.add_argument(
        "--to-batch", type=_parse_offset, metavar="N", help="where batch N ended (of a checkpoint)"
    )
    parser.add_argument(
        "--only", action="append", default=None, metavar="TOPIC[-PARTITION]", help="leave the others alone"
    )


def choose_target(arguments: argparse.Namespace, store: OffsetStore) -> Target:
    if arguments.to_time is not None:
        return Since(arguments.to_time)
    if arguments.to_offset is not None:
        return At(arguments.to_offset)
    if arguments.offset:
        pairs = [parse_pair("--offset", each) for each in arguments.offset]
        return Each({parse_partition(name): _read_number("--offset", number) for name, number in pairs})
    if arguments.by is not None:
        return By(-abs(arguments.by) if arguments.verb == "rewind" else arguments.by)
    if arguments.to_batch is not None:
        return Each(_load_batch(store, arguments).offsets)
    return Earliest() if arguments.to_start else Latest()


def _load_batch(store: OffsetStore, arguments: argparse.Namespace) -> StreamPosition:
    from penstock.stores.offsets.checkpoint import CheckpointOffsetStore

    if isinstance(store, CheckpointOffsetStore):
        position = store.load_batch(arguments.stream, arguments.to_batch)
        now = store.load(arguments.stream)
        known = {} if now is None else now.offsets
        return StreamPosition({each: n for each, n in position.offsets.items() if each in known})
    raise OptionError(
        "NO_BATCHES_KEPT",
        f"{store!r} keeps the last position only, not the ends of batches.",
        hint="Only a checkpoint of Spark's has them; here move by time, offset or number of records.",
    )


def look_at_log(client: ClientSettings, partitions: Sequence[TopicPartition], target: Target) -> LogBounds:
    """The ends of these partitions, and what a time means in them."""
    from penstock.kafka.control import KafkaLogView

    view = KafkaLogView(client)
    times = dict.fromkeys(partitions, target.time_ms) if isinstance(target, Since) else {}
    found = view.at_time(times) if times else {}
    return LogBounds(view.earliest(partitions), view.latest(partitions), found)


def parse_only(names: Sequence[str] | None, position: StreamPosition) -> Collection[TopicPartition] | None:
    """The partitions that are meant; a topic's name means all of its own."""
    if names is None:
        return None
    found: set[TopicPartition] = set()
    for name in names:
        whole = {each for each in position.offsets if each.topic == name}
        found |= whole or {parse_partition(name)}
    return found


def parse_partition(text: str) -> TopicPartition:
    topic, dash, number = text.rpartition("-")
    if dash and topic and number.isascii() and number.isdigit():
        return TopicPartition(topic, int(number))
    raise OptionError(
        "PARTITION_INVALID",
        f"{text!r} names no partition.",
        hint="Write the topic, a dash and the partition's number: orders-0.",
        facts={"text": text},
    )


def _read_number(option: str, text: str) -> int:
    try:
        return parse_integer(text, least=0, most=INT64_MAX)
    except ValueError as error:
        raise OptionError(
            "OPTION_INVALID", f"{option} is given {text!r}.", hint=f"Give it {error}."
        ) from None


def _parse_offset(text: str) -> int:
    return _parse(text, 0)


def _parse_count(text: str) -> int:
    return _parse(text, -INT64_MAX)


def _parse(text: str, least: int) -> int:
    try:
        return parse_integer(text, least=least, most=INT64_MAX)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None
