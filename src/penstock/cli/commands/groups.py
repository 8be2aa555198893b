"""Show consumer groups: their members, what they have committed, and how far they are behind.

penstock groups list
penstock groups describe reports
penstock groups offsets --group reports      the records of __consumer_offsets, as stored

To move a group without members: `penstock offsets rewind --at kafka://HOST:PORT/GROUP GROUP`.
`-` means "nothing": a partition without a commit has no current offset and no lag, which is not 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.cli.shared.kafka_arguments import add_connection_arguments, add_json_argument, connect_to_look
from penstock.cli.shared.moments import show_moment
from penstock.cli.shared.terminal import escape, say
from penstock.cli.shared.text_tables import align

if TYPE_CHECKING:
    from penstock.kafka.console.offset_records import StoredRecord
    from penstock.kafka.groups.group_overview import GroupDetails, GroupRow

JSON_VERSION = 1
_COLUMNS = (
    "topic",
    "partition",
    "current offset",
    "log end offset",
    "lag",
    "consumer id",
    "host",
    "client id",
)
_OFFSET_COLUMNS = ("group", "topic", "partition", "offset", "metadata", "committed", "at")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="list|describe|offsets", required=True)
    listing = verbs.add_parser("list", help="show all groups and their states")
    describe = verbs.add_parser("describe", help="show members, committed offsets and lag")
    describe.add_argument("groups", nargs="+", metavar="GROUP")
    offsets = verbs.add_parser("offsets", help="show the records of __consumer_offsets, older ones too")
    offsets.add_argument("--group", default=None, help="only this group's")
    offsets.add_argument("--all", action="store_true", help="records about members and assignments, too")
    for verb in (listing, describe, offsets):
        add_json_argument(verb, "JSON lines" if verb is offsets else "one JSON object")
        add_connection_arguments(verb)


def run(arguments: argparse.Namespace) -> int:
    return {"list": _list, "describe": _describe, "offsets": _offsets}[arguments.verb](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from penstock.kafka.groups.group_overview import list_groups

    found = list_groups(connect_to_look(arguments))
    if arguments.json:
        rows = [{"group": each.name, "state": each.state, "kind": each.kind} for each in found]
        say(json.dumps({"version": JSON_VERSION, "groups": rows}, indent=1))
    elif not found:
        say("There are no consumer groups.")
    else:
        for line in align(("group", "state"), [(each.name, each.state or "-") for each in found]):
            say(line)
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from penstock.kafka.groups.group_overview import describe_group

    settings = connect_to_look(arguments)
    found = [describe_group(settings, name) for name in arguments.groups]
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "groups": [_to_json(group) for group in found]}, indent=1))
        return 0
    for group in found:
        for line in _describe_one(group):
            say(line)
    return 0


def _describe_one(group: GroupDetails) -> Iterable[str]:
    count = f"{len(group.members)}" if group.members_known else f"not shown ({escape(group.kind)})"
    yield f"Group: {escape(group.name)}  State: {escape(group.state)}  Members: {count}"
    if group.rows:
        table = align(_COLUMNS, [_show_row(row) for row in group.rows], right={1, 2, 3, 4})
        yield from (f"  {line}" for line in table)


def _show_row(row: GroupRow) -> tuple[str, ...]:
    member = row.member
    return (
        "-" if row.partition is None else row.partition.topic,
        "-" if row.partition is None else f"{row.partition.partition}",
        _show_number(row.committed),
        _show_number(row.end),
        _show_number(row.lag),
        *(("-", "-", "-") if member is None else (member.consumer_id, member.host, member.client_id)),
    )


def _show_number(number: int | None) -> str:
    return "-" if number is None else f"{number}"


def _to_json(group: GroupDetails) -> dict[str, object]:
    return {
        "group": group.name,
        "state": group.state,
        "kind": group.kind,
        "members": len(group.members) if group.members_known else None,
        "partitions": [
            {
                "topic": None if row.partition is None else row.partition.topic,
                "partition": None if row.partition is None else row.partition.partition,
                "current_offset": row.committed,
                "log_end_offset": row.end,
                "lag": row.lag,
                "consumer_id": None if row.member is None else row.member.consumer_id,
                "host": None if row.member is None else row.member.host,
                "client_id": None if row.member is None else row.member.client_id,
            }
            for row in group.rows
        ],
    }


def _offsets(arguments: argparse.Namespace) -> int:
    from penstock.cli.shared.compilation_progress import compile_decoding
    from penstock.kafka.console.offset_records import OFFSET, read_offset_topic

    settings = connect_to_look(arguments)
    compile_decoding()
    found = read_offset_topic(settings, group=arguments.group)
    chosen = (each for each in found if arguments.all or each.record.kind == OFFSET)
    if arguments.json:
        for each in chosen:
            say(json.dumps(_record_to_json(each)))
        return 0
    rows = [_show_record(each) for each in chosen]
    if not rows:
        say("__consumer_offsets holds no such records.")
        return 0
    for line in align(_OFFSET_COLUMNS, rows, right={2, 3}):
        say(line)
    return 0


def _show_record(stored: StoredRecord) -> tuple[str, ...]:
    record = stored.record
    what = record.topic if record.topic is not None else f"({record.kind})"
    deleted = record.topic is not None and record.offset is None
    return (
        record.group,
        what,
        _show_number(record.partition),
        "deleted" if deleted else _show_number(record.offset),
        record.metadata or "-",
        show_moment(stored.timestamp_ms if record.commit_time_ms is None else record.commit_time_ms),
        f"{stored.log_partition}:{stored.log_offset}",
    )


def _record_to_json(stored: StoredRecord) -> dict[str, object]:
    record = stored.record
    return {
        "group": record.group,
        "kind": record.kind,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "metadata": record.metadata,
        "commit_time_ms": record.commit_time_ms,
        "log_partition": stored.log_partition,
        "log_offset": stored.log_offset,
        "timestamp_ms": stored.timestamp_ms,
    }
