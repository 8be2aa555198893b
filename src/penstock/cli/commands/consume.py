"""Show the messages of topics: new ones, or all from any position.

penstock consume test                                  new messages, until Ctrl-C
penstock consume test --from-beginning --max-messages 10
penstock consume --pattern 'visits-.*' --group reports   continues where the group stopped, and commits
penstock consume test --partition 1 --offset 22 --print key,offset
penstock consume test --from-time 10m --timeout-ms 2000
penstock consume test --offset earliest --timeout-ms 5000 --json > messages     for `penstock produce --json`

With --group it joins that group: partitions are shared with the other members, and what was shown is
committed. Without a group or a position, it is the only member of a new group named console-consumer-NNNNN,
starts at the end and commits nothing. A group whose position has been deleted from the log continues with
what is left, and reports how many offsets are gone. With --partition, --offset, --last or --from-time it is
not a member of any group. Every compression can be read.

Its own messages go to stderr, with the time and the group, or else the topics. Control characters are shown
as escapes; --raw writes the bytes of the values as they are.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from penstock.cli.messages.message_lines import COLUMNS, write_json, write_line, write_raw
from penstock.cli.shared.escapes import read_escaped_text
from penstock.cli.shared.kafka_arguments import (
    add_connection_arguments,
    add_json_argument,
    connect,
    parse_partition_number,
)
from penstock.cli.shared.terminal import complain_dated, count
from penstock.core.errors import OptionError
from penstock.core.loggers import in_stream

if TYPE_CHECKING:
    from penstock.core.client.client_settings import ClientSettings
    from penstock.core.model import Position
    from penstock.core.planning.partition_selection import Selection
    from penstock.kafka.console.topic_tailing import ConsumedRecord

_WAIT_MS = 200
_MOST_AT_ONCE = 5_000
_TERMINATED = 128 + signal.SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="one or more, unless there is a --pattern")
    parser.add_argument(
        "--pattern",
        default=None,
        metavar="REGEX",
        help="read all topics whose whole name matches; as a member of a group, those created later, too",
    )
    parser.add_argument(
        "--from-beginning",
        action="store_true",
        help="begin at the oldest message; with --group, only where the group has committed nothing",
    )
    parser.add_argument("--group", default=None, help="join this group, and commit what was shown")
    parser.add_argument(
        "--partition",
        type=parse_partition_number,
        action="append",
        default=[],
        metavar="N",
        help="only this partition; may be given several times",
    )
    parser.add_argument(
        "--offset", default=None, metavar="WHERE", help="begin at this offset, `earliest` or `latest`"
    )
    parser.add_argument(
        "--last", type=int, default=None, metavar="N", help="begin N offsets before the end of each partition"
    )
    parser.add_argument(
        "--from-time",
        default=None,
        metavar="WHEN",
        help="begin at a time: 10m for ten minutes ago, 2026-01-31T12:00:00Z, or milliseconds since 1970",
    )
    parser.add_argument(
        "--max-messages", type=int, default=None, metavar="N", help="end after this many messages"
    )
    parser.add_argument(
        "--timeout-ms",
        type=int,
        default=None,
        metavar="MS",
        help="end when no message came for this long (default: go on until Ctrl-C)",
    )
    parser.add_argument(
        "--print",
        default="",
        metavar="WHAT",
        help=f"what to show before each value, separated by commas: {', '.join(COLUMNS)}",
    )
    parser.add_argument(
        "--separator",
        default=r"\t",
        metavar="TEXT",
        help=r"between what is shown (default: '\t', a tab); \n, \r, \0, \\ and \xHH work, too",
    )
    parser.add_argument(
        "--raw", action="store_true", help="write the bytes of each value as they are, and a newline"
    )
    add_json_argument(parser, "one JSON object per line, which `penstock produce --json` reads")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    show = _choose_writer(arguments)
    selection = _select(arguments)
    position = _read_position(arguments)
    settings = connect(arguments)
    with ExitStack() as stack:
        stack.enter_context(_leaving_on_sigterm())
        stack.enter_context(in_stream(arguments.group or arguments.pattern or ",".join(arguments.topics)))
        if position is not None:
            feed: _Feed = _Assigned(settings, selection, position, arguments)
        else:
            feed = stack.enter_context(_Member(settings, selection, arguments))
        shown = 0
        try:
            for record in take_records(feed, arguments):
                shown += 1
                show(record)
        finally:
            complain_dated(f"{count(shown, 'message')} shown.")
    return 0


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C: a group waits for a killed member until its session expires."""

    def leave(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what was asked for -----------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> None:
    starts = [
        name
        for name, given in (
            ("--from-beginning", arguments.from_beginning),
            ("--offset", arguments.offset is not None),
            ("--last", arguments.last is not None),
            ("--from-time", arguments.from_time is not None),
        )
        if given
    ]
    assigned = [each for each in starts if each != "--from-beginning"] + ["--partition"] * bool(
        arguments.partition
    )
    wrong = None
    if bool(arguments.topics) == bool(arguments.pattern):
        wrong = "Name topics, or a --pattern: one of the two."
    elif assigned and arguments.group:
        wrong = "A --group gives out partitions and positions itself: leave out " + ", ".join(assigned) + "."
    elif arguments.group == "":
        wrong = "--group is empty; name a group, or leave it out."
    elif arguments.partition and len(arguments.topics) != 1:
        wrong = "--partition needs exactly one topic."
    elif len(starts) > 1:
        wrong = f"{' and '.join(starts)} are two starts; give one."
    elif arguments.raw and (arguments.json or arguments.print):
        wrong = "--raw writes values only, so --json and --print do not go with it."
    elif any(number is not None and number < 1 for number in (arguments.max_messages, arguments.timeout_ms)):
        wrong = "--max-messages and --timeout-ms must be 1 or greater."
    if wrong:
        raise OptionError("OPTIONS_DISAGREE", wrong, hint="`penstock consume --help` shows all options.")


def _choose_writer(arguments: argparse.Namespace) -> Callable[[ConsumedRecord], None]:
    if arguments.json:
        return write_json
    if arguments.raw:
        return write_raw
    columns = [name.strip() for name in arguments.print.split(",") if name.strip()]
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise OptionError(
            "COLUMN_UNKNOWN",
            f"--print names {', '.join(unknown)}.",
            hint=f"There are {', '.join(COLUMNS)}.",
            facts={"unknown": unknown},
        )
    separator = read_escaped_text("--separator", arguments.separator)
    return lambda record: write_line(record, columns, separator)


def _select(arguments: argparse.Namespace) -> Selection:
    from penstock.core.model import TopicPartition
    from penstock.core.planning.partition_selection import SelectPartitions, SelectPattern, SelectTopics
    from penstock.core.planning.topic_pattern import TopicPattern

    if arguments.pattern is not None:
        return SelectPattern(TopicPattern(arguments.pattern, option="--pattern"))
    if arguments.partition:
        numbers = sorted(set(arguments.partition))
        return SelectPartitions(tuple(TopicPartition(arguments.topics[0], number) for number in numbers))
    return SelectTopics(tuple(dict.fromkeys(arguments.topics)))


def _read_position(arguments: argparse.Namespace) -> Position | None:
    """Return where an assigned read begins; None leaves that to a group."""
    from penstock.cli.shared.start_positions import parse_last, parse_offset, parse_start_time
    from penstock.core.model import Earliest, Latest

    if arguments.offset is not None:
        return parse_offset("--offset", arguments.offset)
    if arguments.last is not None:
        return parse_last("--last", arguments.last)
    if arguments.from_time is not None:
        now_ms = time.time_ns() // 1_000_000
        return parse_start_time("--from-time", arguments.from_time, now_ms=now_ms)
    if arguments.partition:
        return Earliest() if arguments.from_beginning else Latest()
    return None


# --- where the records come from --------------------------------------------------------------------------


class _Feed(Protocol):
    def look(self, most: int | None) -> list[ConsumedRecord]:
        """Return the records that have come, `most` at most, after a short wait."""

    def acknowledge(self) -> None:
        """Note that all records of the last look were shown."""

    @property
    def is_joining(self) -> bool:
        """Return whether a group is about to give partitions: `--timeout-ms` does not count that time."""


class _Assigned:
    """Reads partitions by name, without a group."""

    def __init__(
        self,
        settings: ClientSettings,
        selection: Selection,
        position: Position,
        arguments: argparse.Namespace,
    ) -> None:
        from penstock.cli.shared.compilation_progress import compile_decoding
        from penstock.core.planning.partition_selection import name_topics, select_partitions
        from penstock.kafka.console.topic_tailing import find_starts, follow
        from penstock.kafka.reading.kafka_log_view import KafkaLogView

        view = KafkaLogView(settings)
        named = name_topics(selection)
        topics = view.topics() if named is None else view.describe(named)
        selected = select_partitions(selection, topics)
        if selected.absent or not selected.partitions:
            absent = ", ".join(map(str, selected.absent)) or f"a topic like {arguments.pattern}"
            raise OptionError(
                "NOTHING_TO_READ",
                f"There is no {absent}.",
                hint="`penstock topics list` and `penstock topics describe` show what there is.",
                facts={"absent": absent},
            )
        now_ms = time.time_ns() // 1_000_000
        starts = find_starts(view, selected.partitions, position, now_ms=now_ms)
        compile_decoding()
        self._follower = follow(settings, starts)
        complain_dated(
            "Reading " + ", ".join(f"{each} from {offset}" for each, offset in sorted(starts.items()))
        )

    def look(self, most: int | None) -> list[ConsumedRecord]:
        found = self._follower.take(min(_MOST_AT_ONCE, most or _MOST_AT_ONCE))
        if not found:
            time.sleep(_WAIT_MS / 1000)
        return found

    def acknowledge(self) -> None:
        """Do nothing: no position is stored."""

    @property
    def is_joining(self) -> bool:
        return False


class _Member:
    """Reads as a member of a group; it commits only for a group that was named."""

    def __init__(self, settings: ClientSettings, selection: Selection, arguments: argparse.Namespace) -> None:
        from penstock.cli.shared.compilation_progress import compile_decoding
        from penstock.kafka.console.group_member import GroupMember

        # Its client logs every move of a coordinator; what matters is raised, and printed once.
        logging.getLogger("kafka").addHandler(logging.NullHandler())
        self._commits = arguments.group is not None
        group = arguments.group or f"console-consumer-{secrets.randbelow(100_000):05d}"
        compile_decoding()  # before it joins: a member that compiles for a minute delays its group
        self._member = GroupMember(settings, group, selection, from_beginning=arguments.from_beginning)
        self._told: frozenset[object] | None = None

    def look(self, most: int | None) -> list[ConsumedRecord]:
        found = self._member.poll(_WAIT_MS, most)
        if self._member.assigned != self._told and (self._member.assigned or self._told is not None):
            self._told = self._member.assigned
            given = ", ".join(map(str, sorted(self._member.assigned))) or "no partition: others have them"
            complain_dated(f"Reading {given} (group {self._member.group})")
        while self._member.news:
            complain_dated(self._member.news.pop(0))
        return found

    def acknowledge(self) -> None:
        if self._commits:
            self._member.commit()

    @property
    def is_joining(self) -> bool:
        return self._member.is_joining

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._member.close()


def take_records(feed: _Feed, arguments: argparse.Namespace) -> Iterator[ConsumedRecord]:
    """Yield records until there are enough, or none came for too long."""
    left = arguments.max_messages
    patience_s = None if arguments.timeout_ms is None else arguments.timeout_ms / 1000
    last_s = time.monotonic()
    while True:
        found = feed.look(left)
        yield from found
        sys.stdout.flush()
        feed.acknowledge()
        if found:
            last_s = time.monotonic()
            left = None if left is None else left - len(found)
            if left == 0:
                return
        elif feed.is_joining:
            last_s = time.monotonic()
        elif patience_s is not None and time.monotonic() - last_s >= patience_s:
            return
