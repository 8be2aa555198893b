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

Stop the stream first: one that runs keeps its position in memory and writes over yours. Without --yes nothing
is changed; what would be is shown. Every change is kept in the store with who made it and when
(`show --changes`). Instead of an address with a password write ${env:NAME} or ${file:/path}.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.connection import add_connection_arguments, add_json_argument, connect
from penstock.cli.offset_reports import change_to_json, plan_to_json, say_json, say_plan, say_position
from penstock.cli.offset_targets import add_target_arguments, choose_target, look_at_log, parse_only
from penstock.cli.terminal import escape, say
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offset_stores import Change, OffsetStore
from penstock.core.references import resolve_reference
from penstock.core.rewinds import (
    Direction,
    LogBounds,
    MovePlan,
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
        verb.add_argument("--from" if name == "copy" else "--at", dest="at", required=True, metavar="STORE")
        optional = {"nargs": "?", "default": None} if name == "show" else {}
        verb.add_argument("stream", metavar="STREAM", **optional)  # type: ignore[arg-type]
        add_json_argument(verb)
        add_connection_arguments(verb)
    made["show"].add_argument("--changes", action="store_true", help="what was changed by hand, too")
    for name in ("plan", "rewind", "skip"):
        add_target_arguments(made[name])
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
    return _settle(arguments, store, arguments.stream, plan)


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
    return _settle(arguments, store, arguments.stream, plan_adoption(position, arguments.topic, topic, log))


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
    return _settle(arguments, store, stream, plan_replacement(store.load(stream), position))


def _settle(arguments: argparse.Namespace, store: OffsetStore, stream: str, plan: MovePlan) -> int:
    """Show the plan; with --yes, and if the stream stands still, do it."""
    notes = [*plan.notes, *_warn(store)]
    is_wanted = getattr(arguments, "yes", False) and not plan.changes_nothing
    if is_wanted:
        _demand_stillness(store, stream, plan.before, arguments.watch)
        who = f"{_find_user()}@{socket.gethostname()}"
        now_ms = time.time_ns() // 1_000_000
        store.change(stream, Change(now_ms, who, arguments.verb, plan.before, plan.after))
    if arguments.json:
        head = {"verb": arguments.verb, "store": repr(store), "stream": stream, "applied": is_wanted}
        say_json(**head, notes=notes, **plan_to_json(plan))
    else:
        say_plan(arguments.verb, store, stream, plan, notes, is_wanted)
    return 0


def _warn(store: OffsetStore) -> list[str]:
    from penstock.stores.offsets.checkpoint import CheckpointOffsetStore

    if not isinstance(store, CheckpointOffsetStore):
        return []
    warnings = [
        f"Batch {each} was planned and is not done; it is planned anew." for each in store.list_planned()
    ]
    if store.keeps_state:
        warnings.append("The query keeps state, which stays as it is: rows that are read again count again.")
    return warnings


def _demand_stillness(
    store: OffsetStore, stream: str, position: StreamPosition | None, watch_s: float
) -> None:
    time.sleep(watch_s)
    if store.load(stream) != position:
        raise OffsetStoreError(
            "STREAM_IS_RUNNING",
            f"The stream {stream} has moved while it was looked at; nothing was changed.",
            hint="Stop it first: it keeps its position in memory and would write over yours.",
            facts={"stream": stream},
        )


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
    known = store.list_streams()
    raise OffsetStoreError(
        "STREAM_NOT_FOUND",
        f"{store!r} has no offsets of a stream {stream}.",
        hint=f"It has: {', '.join(known[:20])}." if known else "It has none at all.",
        facts={"stream": stream},
    )


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # one without a name, as in many containers


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
