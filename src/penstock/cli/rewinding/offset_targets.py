"""The options that say where `penstock offsets` moves a stream, and what they mean in the log."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.cli.shared.kafka_arguments import connect, connect_to_look, parse_pair
from penstock.cli.shared.moments import parse_moment
from penstock.cli.shared.terminal import complain
from penstock.core.errors import OptionError
from penstock.core.model import At, Earliest, Latest, Since, TopicPartition, TopicView, is_another
from penstock.core.offsets.offset_store_contract import OffsetStore
from penstock.core.offsets.rewinds import (
    ByRecords,
    LogBounds,
    RewindTarget,
    ToOffsets,
    explain_other_logs,
    explain_unknown,
)
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.option_values import INT64_MAX, parse_integer
from penstock.core.prose import choose, join

if TYPE_CHECKING:
    from penstock.core.client.client_settings import ClientSettings
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

_BY_HELP = {
    "rewind": "back by this many records, 0 or more",
    "skip": "ahead by this many records, 0 or more",
    "plan": "ahead by this many records; -N goes back",
}
#: A verb's direction, the verb for the other direction, and that direction. `plan` takes both: -5 is back.
_WAYS = {"rewind": ("back", "skip", "ahead"), "skip": ("ahead", "rewind", "back")}


def add_target_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--to-time",
        type=parse_moment,
        metavar="WHEN",
        help="the first record at or after this time: 2026-01-31T12:00:00Z, or 2h, 1d for so long ago",
    )
    asked.add_argument("--to-offset", type=_parse_offset, metavar="N", help="this offset in every partition")
    asked.add_argument(
        "--offset",
        action="append",
        metavar="TOPIC-PARTITION=N",
        help="the offset of one partition; may be given several times",
    )
    asked.add_argument("--by", type=_parse_count, metavar="N", help=_BY_HELP[verb])
    asked.add_argument("--to-start", action="store_true", help="the beginning of the log")
    asked.add_argument("--to-end", action="store_true", help="the end of the log")
    asked.add_argument(
        "--to-batch", type=_parse_offset, metavar="N", help="where batch N of a checkpoint ended"
    )
    parser.add_argument(
        "--only", action="append", default=None, metavar="TOPIC[-PARTITION]", help="leave the others alone"
    )


def choose_target(arguments: argparse.Namespace, store: OffsetStore) -> RewindTarget:
    if arguments.to_time is not None:
        return Since(arguments.to_time)
    if arguments.to_offset is not None:
        return At(arguments.to_offset)
    if arguments.offset:
        return ToOffsets(_read_offsets(arguments.offset))
    if arguments.by is not None:
        _refuse_second_direction(arguments.verb, arguments.by)
        return ByRecords(-arguments.by if arguments.verb == "rewind" else arguments.by)
    if arguments.to_batch is not None:
        return ToOffsets(_load_batch(store, arguments).offsets)
    return Earliest() if arguments.to_start else Latest()


def _read_offsets(given: Sequence[str]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for name, number in (parse_pair("--offset", each) for each in given):
        each = parse_partition(name)
        if each in offsets:
            raise OptionError(
                "OPTIONS_DISAGREE",
                f"--offset names {each} more than once.",
                hint="Give one offset for each partition.",
                facts={"partition": str(each)},
            )
        offsets[each] = _read_number("--offset", number)
    return offsets


def _refuse_second_direction(verb: str, records: int) -> None:
    """Refuse a minus sign: beside the verb it may mean the other direction, or the same one again."""
    if records >= 0 or verb not in _WAYS:
        return
    way, other, other_way = _WAYS[verb]
    raise OptionError(
        "OPTION_INVALID",
        f"--by is {records}, and a {verb} already goes {way}.",
        hint=f"Write --by {-records} to go {way}; `penstock offsets {other} --by {-records}` goes "
        f"{other_way}.",
        facts={"verb": verb, "by": records},
    )


def refuse_left_alone(
    target: RewindTarget, only: Collection[TopicPartition] | None, asked: Sequence[str]
) -> None:
    """Refuse an offset for a partition that --only leaves unchanged."""
    if not asked or only is None or not isinstance(target, ToOffsets):
        return
    apart = [str(each) for each in sorted(target.offsets) if each not in only]
    if apart:
        raise OptionError(
            "OPTIONS_DISAGREE",
            f"--offset names {join(apart)}, and --only leaves {choose(apart, 'it', 'them')} alone.",
            hint="Leave --only out: with --offset, partitions that are not named stay as they are.",
            facts={"partitions": apart},
        )


def _load_batch(store: OffsetStore, arguments: argparse.Namespace) -> StreamPosition:
    position, now = store.load_batch(arguments.stream, arguments.to_batch), store.load(arguments.stream)
    known = {} if now is None else now.offsets
    return StreamPosition({each: n for each, n in position.offsets.items() if each in known})


def look_at_log(
    arguments: argparse.Namespace,
    position: StreamPosition,
    partitions: Sequence[TopicPartition],
    target: RewindTarget | None = None,
    *,
    is_needed: bool,
) -> tuple[LogBounds | None, dict[str, TopicView]]:
    """Return the bounds of these partitions' logs, and the recreated topics, which have other logs.

    The bounds include what a time means in the logs. They are None if there are no brokers to ask. The local
    cluster, used where no brokers are named, may be unrelated to the stream: unless the log `is_needed`, a
    cluster with other topics is not asked, and none of its topics counts as recreated.
    """
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

    client = connect_briefly(arguments) if is_needed else find_client(arguments)
    if client is None:
        return None, {}
    view = KafkaLogView(client)
    topics = sorted({each.topic for each in partitions})
    there = view.describe(topics)
    missing = [topic for topic in topics if topic not in there]
    anew = {topic: each for topic, each in there.items() if _is_other(position, topic, each)}
    if (missing or anew) and not is_named(arguments):
        if not is_needed:
            complain(tell_others(sorted({*missing, *anew})))
            return None, {}
        if not missing:
            why = " No brokers were named: this is the local cluster, which may not be the stream's."
            raise explain_other_logs(sorted(anew), why)
    if missing:
        raise OptionError(
            "TOPIC_NOT_FOUND",
            f"The brokers have no topic {', '.join(missing)}, in which the stream stands.",
            hint="Name the brokers that the stream reads from (--bootstrap-server). If the topic was "
            "deleted, leave it out: --only moves the others alone, and an exported position can be edited.",
            facts={"topics": missing},
        )
    known = [
        each for each in partitions if each.topic not in anew or each.partition in anew[each.topic].partitions
    ]
    times = dict.fromkeys(known, target.time_ms) if isinstance(target, Since) else {}
    found = view.at_time(times) if times else {}
    return LogBounds(view.earliest(known), view.latest(known), found), anew


def connect_briefly(arguments: argparse.Namespace) -> ClientSettings:
    """Return the settings of the brokers to ask; without --yes, which only looks, the time limit is short."""
    return connect(arguments) if getattr(arguments, "yes", False) else connect_to_look(arguments)


def is_named(arguments: argparse.Namespace) -> bool:
    """Return whether the command names the brokers."""
    return bool(arguments.bootstrap_server or arguments.command_config or arguments.set)


def find_client(arguments: argparse.Namespace) -> ClientSettings | None:
    """Return the brokers that were named, else those of the local cluster; None if there is none."""
    if is_named(arguments):
        return connect_briefly(arguments)
    try:
        return connect_briefly(arguments)
    except OptionError as error:
        if error.condition != "NO_BOOTSTRAP_SERVER":
            raise
        return None


def find_others(view: KafkaLogView, position: StreamPosition, topics: Collection[str]) -> list[str]:
    """Return the topics that the brokers lack, or have under an id other than the one the stream has read."""
    there = view.describe(topics)
    return sorted(topic for topic in topics if topic not in there or _is_other(position, topic, there[topic]))


def tell_others(topics: Sequence[str]) -> str:
    """Return the sentence about a local cluster whose topics are not those of the stream."""
    return (
        f"The local cluster has no topic {', '.join(topics)}, or another one of that name than the stream "
        "has read; its log was not looked at. Name the stream's brokers with --bootstrap-server."
    )


def _is_other(position: StreamPosition, topic: str, view: TopicView) -> bool:
    return is_another(position.topic_ids.get(topic), view.topic_id)


def parse_only(names: Sequence[str] | None, position: StreamPosition) -> Collection[TopicPartition] | None:
    """Return the partitions that are meant; a topic's name means all of its partitions."""
    if names is None:
        return None
    found: set[TopicPartition] = set()
    for name in names:
        whole = {each for each in position.offsets if each.topic == name}
        found |= whole or {_demand_partition(name, position)}
    return found


def _demand_partition(name: str, position: StreamPosition) -> TopicPartition:
    """Return the named partition, or raise an error that lists the partitions of the stream."""
    try:
        return parse_partition(name)
    except OptionError:
        raise explain_unknown([name], position) from None


def parse_partition(text: str) -> TopicPartition:
    topic, dash, number = text.rpartition("-")
    if dash and topic and number.isascii() and number.isdigit():
        return TopicPartition(topic, int(number))
    raise OptionError(
        "PARTITION_INVALID",
        f"{text!r} does not name a partition.",
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
