"""Where streams stand, and moving them: in any offset store and in the checkpoints of Spark queries.

penstock offsets show --at offsets/ visits
penstock offsets plan --at postgresql://me@db.example/stats visits --to-time 2h --bootstrap-server b:9092
penstock offsets rewind --at shop.db visits --by 1000 --yes
penstock offsets skip --at kafka://b:9092/nightly nightly --to-end --yes
penstock offsets rewind --at checkpoint:checkpoints/visits 0 --to-batch 41 --yes
penstock offsets copy --from checkpoint:checkpoints/visits 0 --to shop.db --as visits --yes
penstock offsets export --at shop.db visits --file visits.json
penstock offsets import --at zookeeper://z:2181/shop visits --file visits.json --yes
penstock offsets adopt --at shop.db visits --topic orders --yes
penstock offsets rewind --at sink:postgresql://me@db.example/stats visits --by 1000 --delete-from visits --yes

Stop the stream first: one that runs keeps its position in memory and writes over yours. Without --yes nothing
is changed; what would be is shown. Every change is kept in the store with who made it and when
(`show --changes`). Instead of an address with a password write ${env:NAME} or ${file:/path}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.connection import add_connection_arguments, add_json_argument, connect
from penstock.cli.offset_changes import settle
from penstock.cli.offset_reports import change_to_json, say_json, say_position
from penstock.cli.offset_targets import add_target_arguments, choose_target, look_at_log, parse_only
from penstock.cli.terminal import escape, say
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offset_stores import OffsetStore, unknown_stream
from penstock.core.references import resolve_reference
from penstock.core.rewinds import (
    Direction,
    LogBounds,
    needs_log,
    plan_adoption,
    plan_moves,
    plan_replacement,
)
from penstock.core.stream_offsets import StreamPosition, read_position, write_position
from penstock.core.values import parse_duration_ms

if TYPE_CHECKING:
    from penstock.core.client import ClientSettings

_DIRECTIONS = {"rewind": Direction.BACK, "skip": Direction.AHEAD, "plan": Direction.EITHER}
_HELP = {
    "show": "show the streams of a store, or where one stands",
    "plan": "show where a rewind or a skip would lead, and change nothing",
    "rewind": "take a stream back",
    "skip": "take a stream ahead",
    "copy": "put one store's position into another",
    "export": "write a position as JSON",
    "import": "put a position from JSON into a store",
    "adopt": "go on in a topic that was restored or mirrored under the same name",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="|".join(_HELP), required=True)
    made = {name: verbs.add_parser(name, help=text) for name, text in _HELP.items()}
    for name, verb in made.items():
        verb.add_argument(
            "--from" if name == "copy" else "--at",
            dest="at",
            required=True,
            metavar="STORE",
            help="a folder, x.db, postgresql://, mysql://, kafka://hosts/group, zookeeper://hosts/folder, "
            "checkpoint:folder or sink:database",
        )
        verb.add_argument(
            "stream",
            metavar="STREAM",
            nargs="?" if name == "show" else None,
            help="the stream's name; of a checkpoint the source's number, from 0",
        )
        add_json_argument(verb)
        add_connection_arguments(verb)
    made["show"].add_argument("--changes", action="store_true", help="what was changed by hand, too")
    for name in ("plan", "rewind", "skip"):
        add_target_arguments(made[name])
    made["rewind"].add_argument(
        "--delete-from",
        action="append",
        metavar="TABLE",
        help="of a sink: delete the rows that will be read again from this table, which keeps provenance",
    )
    made["copy"].add_argument("--to", required=True, metavar="STORE", help="the store to write")
    made["copy"].add_argument("--as", dest="other", default=None, metavar="STREAM", help="its name there")
    for name in ("export", "import"):
        made[name].add_argument("--file", type=Path, default=None, help="instead of standard input or output")
    made["adopt"].add_argument("--topic", required=True, help="whose new id to accept")
    for name in ("rewind", "skip", "copy", "import", "adopt"):
        made[name].add_argument("--yes", action="store_true", help="do it")
        made[name].add_argument(
            "--watch",
            type=_parse_wait,
            default=2.0,
            metavar="TIME",
            help="look for so long whether the stream runs, before it is changed (default 2s)",
        )


def run(arguments: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "show": _show,
        "export": _export,
        "adopt": _adopt,
        "copy": _copy,
        "import": _import,
    }
    with ExitStack() as arguments.opened:
        return verbs.get(arguments.verb, _move)(arguments)


# --- looking ------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    store = _open(arguments, arguments.at)
    if arguments.stream is None:
        names = store.list_streams()
        if arguments.json:
            say_json(store=repr(store), streams=names)
            return 0
        for line in names or [f"No stream has offsets in {store!r}."]:
            say(escape(line))
        return 0
    position = _demand(store, arguments.stream)
    ends = _find_ends(arguments, position)
    changes = store.list_changes(arguments.stream) if arguments.changes else []
    if arguments.json:
        say_json(
            store=repr(store),
            stream=arguments.stream,
            position=write_position(position),
            ends={str(each): end for each, end in ends.items()},
            changes=[change_to_json(each) for each in changes],
        )
    else:
        say_position(position, ends, changes)
    return 0


def _find_ends(arguments: argparse.Namespace, position: StreamPosition) -> Mapping[TopicPartition, int]:
    client = _find_client(arguments)
    if client is None:
        return {}
    from penstock.kafka.control import KafkaLogView

    view = KafkaLogView(client)
    topics = view.describe(position.topics)
    there = [
        each
        for each in position.offsets
        if each.topic in topics and each.partition in topics[each.topic].partitions
    ]
    return view.latest(there)


def _export(arguments: argparse.Namespace) -> int:
    position = _demand(_open(arguments, arguments.at), arguments.stream)
    if arguments.file is None:
        say_json(stream=arguments.stream, position=write_position(position))
        return 0
    content = {"version": 1, "stream": arguments.stream, "position": write_position(position)}
    try:
        arguments.file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _file_unusable(arguments.file, error) from error
    if arguments.json:
        say_json(stream=arguments.stream, file=str(arguments.file))
    else:
        say(f"{escape(arguments.stream)} is exported to {escape(str(arguments.file))}.")
    return 0


# --- changing -----------------------------------------------------------------------------------------------


def _move(arguments: argparse.Namespace) -> int:
    store = _open(arguments, arguments.at)
    position = _demand(store, arguments.stream)
    target = choose_target(arguments, store)
    client = connect(arguments) if needs_log(target) else _find_client(arguments)
    only = parse_only(arguments.only, position)
    chosen = sorted(position.offsets if only is None else only)
    log = None if client is None else look_at_log(client, chosen, target)
    plan = plan_moves(position, target, _DIRECTIONS[arguments.verb], only=only, log=log)
    return settle(arguments, store, arguments.stream, plan)


def _adopt(arguments: argparse.Namespace) -> int:
    from penstock.kafka.control import KafkaLogView

    store = _open(arguments, arguments.at)
    position = _demand(store, arguments.stream)
    view = KafkaLogView(connect(arguments))
    topic = view.describe([arguments.topic]).get(arguments.topic)
    if topic is None:
        raise OptionError(
            "TOPIC_NOT_FOUND",
            f"There is no topic {arguments.topic} to adopt.",
            hint="Check the name and the brokers.",
            facts={"topic": arguments.topic},
        )
    mine = [
        each
        for each in position.offsets
        if each.topic == arguments.topic and each.partition in topic.partitions
    ]
    log = LogBounds(view.earliest(mine), view.latest(mine))
    return settle(arguments, store, arguments.stream, plan_adoption(position, arguments.topic, topic, log))


def _copy(arguments: argparse.Namespace) -> int:
    position = _demand(_open(arguments, arguments.at), arguments.stream)
    return _put(arguments, arguments.to, arguments.other or arguments.stream, position)


def _import(arguments: argparse.Namespace) -> int:
    try:
        text = sys.stdin.read() if arguments.file is None else arguments.file.read_text(encoding="utf-8")
        stored = json.loads(text)
    except (OSError, ValueError) as error:
        raise _file_unusable(arguments.file or Path("standard input"), error) from error
    is_ours = isinstance(stored, dict) and "position" in stored
    position = read_position(stored["position"] if is_ours else stored)
    return _put(arguments, arguments.at, arguments.stream, position)


def _put(arguments: argparse.Namespace, address: str, stream: str, position: StreamPosition) -> int:
    try:
        store = _open(arguments, address, create=arguments.yes)
    except OffsetStoreError as error:
        if arguments.yes or error.condition not in ("OFFSETS_NOT_FOUND", "DATABASE_NOT_FOUND"):
            raise
        from penstock.stores.offsets.memory import MemoryOffsetStore

        store = MemoryOffsetStore()  # only looked at: there is none yet, and nothing is in it
    return settle(arguments, store, stream, plan_replacement(store.load(stream), position))


# --- small things ------------------------------------------------------------------------------------------


def _open(arguments: argparse.Namespace, address: str, *, create: bool = False) -> OffsetStore:
    from penstock.stores.offsets.addresses import open_offset_store

    place = resolve_reference(
        "--at", address, environ=os.environ, read_file=lambda path: Path(path).read_text()
    )
    if place.startswith("kafka://") and arguments.bootstrap_server is None:
        arguments.bootstrap_server = place.removeprefix("kafka://").partition("/")[0]
    client = connect(arguments) if place.startswith("kafka://") else None
    store = open_offset_store(place, create=create, client=client)
    arguments.opened.callback(store.close)
    return store


def _find_client(arguments: argparse.Namespace) -> ClientSettings | None:
    """The brokers that were named; none of the local cluster's, which may have nothing to do with it."""
    named = arguments.bootstrap_server or arguments.command_config or arguments.set
    return connect(arguments) if named else None


def _demand(store: OffsetStore, stream: str) -> StreamPosition:
    position = store.load(stream)
    if position is not None:
        return position
    raise unknown_stream(repr(store), stream, store.list_streams())


def _parse_wait(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def _file_unusable(path: Path, error: Exception) -> OptionError:
    return OptionError(
        "FILE_UNUSABLE",
        f"{path} cannot be used: {type(error).__name__}: {error}.",
        hint="Name a file that `penstock offsets export` has written, or one you may write.",
        facts={"path": str(path)},
    )
