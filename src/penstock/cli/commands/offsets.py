"""Show and move the positions of streams, in any offset store and in the checkpoints of Spark queries.

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
penstock offsets rewind --at sink:results.db visits --to-start --delete-from visits --rebuild totals --yes

Stop the stream first: a running one keeps its position in memory and overwrites yours. Without --yes the
change is only shown. Every change is recorded in the store with who made it and when (`show --changes`).
Instead of an address with a password write ${env:NAME} or ${file:/path}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.rewinding.offset_changes import ask_rows, show_and_apply
from penstock.cli.rewinding.offset_reports import (
    change_to_json,
    find_beyond,
    say_json,
    say_position,
    tell_beyond,
)
from penstock.cli.rewinding.offset_targets import (
    add_target_arguments,
    choose_target,
    connect_briefly,
    find_client,
    find_others,
    is_named,
    look_at_log,
    parse_only,
    refuse_left_alone,
    tell_others,
)
from penstock.cli.shared.kafka_arguments import add_connection_arguments, add_json_argument
from penstock.cli.shared.moments import parse_wait
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.terminal import complain, escape, say
from penstock.core.errors import BrokerError, OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import OffsetStore, unknown_stream
from penstock.core.offsets.rewinds import (
    LogBounds,
    RewindDirection,
    explain_other_logs,
    needs_log,
    plan_adoption,
    plan_replacement,
    plan_rewind,
    refuse_unknown,
)
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position

if TYPE_CHECKING:
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

_DIRECTIONS = {"rewind": RewindDirection.BACK, "skip": RewindDirection.AHEAD, "plan": RewindDirection.EITHER}
_HELP = {
    "show": "show the streams of a store, or where one stands",
    "plan": "show where a rewind or a skip would lead, and change nothing",
    "rewind": "take a stream back",
    "skip": "take a stream ahead",
    "copy": "put one store's position into another",
    "export": "write a position as JSON",
    "import": "put a position from JSON into a store",
    "adopt": "continue in a topic that was restored or mirrored under the same name",
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
            help="the stream's name; for a checkpoint, the source's number, counted from 0",
        )
        add_json_argument(verb)
        add_connection_arguments(verb)
    made["show"].add_argument("--changes", action="store_true", help="show also what was changed by hand")
    for name in ("plan", "rewind", "skip"):
        add_target_arguments(made[name], name)
    made["rewind"].add_argument(
        "--delete-from",
        action="append",
        metavar="TABLE",
        help="for a sink: delete the rows that will be read again from this table, which keeps provenance",
    )
    made["rewind"].add_argument(
        "--rebuild",
        action="append",
        metavar="TABLE",
        help="for a sink: empty this table, which must be filled again from its first record (--to-start)",
    )
    for name in ("rewind", "skip", "copy", "import", "adopt"):  # each can lead a stream back
        made[name].add_argument(
            "--sums-count-twice",
            action="store_true",
            help="for a sink: leave tables of sums (merge, state) as they are; what is read again counts "
            "twice",
        )
    made["copy"].add_argument("--to", required=True, metavar="STORE", help="the store to write")
    made["copy"].add_argument("--as", dest="other", default=None, metavar="STREAM", help="its name there")
    for name in ("export", "import"):
        made[name].add_argument("--file", type=Path, default=None, help="instead of standard input or output")
    made["adopt"].add_argument("--topic", required=True, help="the topic whose new id to accept")
    for name in ("rewind", "skip", "copy", "import", "adopt"):
        made[name].add_argument("--yes", action="store_true", help="do it")
        made[name].add_argument(
            "--watch",
            type=parse_wait,
            default=2.0,
            metavar="TIME",
            help="how long to check whether the stream runs before anything is said or changed (default 2s)",
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
            say_json(store=str(store), streams=names)
            return 0
        shown = [f"{store.label}{name}" for name in names]
        for line in shown or [f"No stream has offsets in {store}.", store.suggest_place()]:
            if line:
                say(escape(line))
        return 0
    position = _demand(store, arguments.stream)
    changes = store.list_changes(arguments.stream) if arguments.changes else []
    ends, others, unasked = _find_ends(arguments, position)
    if arguments.json:
        say_json(
            store=str(store),
            stream=arguments.stream,
            position=write_position(position),
            ends={str(each): end for each, end in ends.items()},
            changes=[change_to_json(each) for each in changes],
            beyond_end=[str(each) for each in find_beyond(position, ends)],
            ends_unknown=None if unasked is None else str(unasked),
        )
    else:
        say_position(position, ends, changes)
        if others and not is_named(arguments):
            complain(tell_others(others))
    if find_beyond(position, ends):
        complain(tell_beyond(position, ends))
        return 1 if is_named(arguments) else 0
    if unasked is None:
        return 0
    complain(
        "This is where the stream stands, according to the store. Where the logs end is not known: the "
        f"brokers could not be asked. {unasked}"
    )
    return 1 if is_named(arguments) else 0


def _find_ends(
    arguments: argparse.Namespace, position: StreamPosition
) -> tuple[Mapping[TopicPartition, int], list[str], BrokerError | None]:
    """Return where the logs end, the topics other than those the stream has read, and the brokers' error."""
    client = find_client(arguments)
    if client is None:
        return {}, [], None
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

    try:
        return *_ask_ends(KafkaLogView(client), position), None
    except BrokerError as error:
        return {}, [], error


def _ask_ends(view: KafkaLogView, position: StreamPosition) -> tuple[Mapping[TopicPartition, int], list[str]]:
    others = find_others(view, position, position.topics)
    topics = view.describe(set(position.topics) - set(others))
    there = [
        each
        for each in position.offsets
        if each.topic in topics and each.partition in topics[each.topic].partitions
    ]
    return view.latest(there), others


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
    ask_rows(arguments, store)  # refuse what this store cannot do before asking anything else
    position = _demand(store, arguments.stream)
    target = choose_target(arguments, store)
    only = parse_only(arguments.only, position)
    refuse_left_alone(target, only, arguments.offset or ())
    refuse_unknown(position, target, only)
    chosen = sorted(position.offsets if only is None else only)
    # An emptied table cannot be filled again from records that have aged out, or were cut off.
    is_rebuilt = bool(getattr(arguments, "rebuild", None))
    looked = sorted(position.offsets) if is_rebuilt else chosen
    log, anew = look_at_log(arguments, position, looked, target, is_needed=needs_log(target) or is_rebuilt)
    plan = plan_rewind(position, target, _DIRECTIONS[arguments.verb], only=only, log=log, anew=anew)
    return show_and_apply(arguments, store, arguments.stream, plan, log)


def _adopt(arguments: argparse.Namespace) -> int:
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

    store = _open(arguments, arguments.at)
    position = _demand(store, arguments.stream)
    view = KafkaLogView(connect_briefly(arguments))
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
    return show_and_apply(
        arguments, store, arguments.stream, plan_adoption(position, arguments.topic, topic, log)
    )


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
        is_made = not address.startswith("sink:")  # a ledger is made only by its sink
        missing = error.condition in ("OFFSETS_NOT_FOUND", "DATABASE_NOT_FOUND")
        if arguments.yes or not missing or not is_made:
            raise
        from penstock.stores.offsets.memory_store import MemoryOffsetStore

        store = MemoryOffsetStore()  # only read: the store does not exist yet, so it is empty
    log = _look_at_whole(arguments, position)
    return show_and_apply(arguments, store, stream, plan_replacement(store.load(stream), position, log))


def _look_at_whole(arguments: argparse.Namespace, position: StreamPosition) -> LogBounds | None:
    """Return where the logs of a position from elsewhere begin and end, if there are brokers to ask.

    Refuse a position in topics other than theirs: its offsets say nothing about these logs.
    """
    partitions = sorted(position.offsets)
    log, anew = look_at_log(arguments, position, partitions, is_needed=False)
    if anew:
        raise explain_other_logs(
            sorted(anew), " Offsets that were exported from one say nothing about the other."
        )
    return log


# --- small things ------------------------------------------------------------------------------------------


def _open(arguments: argparse.Namespace, address: str, *, create: bool = False) -> OffsetStore:
    from penstock.stores.offsets.offset_store_addresses import open_offset_store

    place = resolve("--at", address)
    if place.startswith("kafka://") and arguments.bootstrap_server is None:
        arguments.bootstrap_server = place.removeprefix("kafka://").partition("/")[0]
    client = connect_briefly(arguments) if place.startswith("kafka://") else None
    store = open_offset_store(place, create=create, client=client)
    arguments.opened.callback(store.close)
    return store


def _demand(store: OffsetStore, stream: str) -> StreamPosition:
    position = store.load(stream)
    if position is not None:
        return position
    raise unknown_stream(store, stream, store.list_streams(), store.suggest_place(stream))


def _file_unusable(path: Path, error: OSError | ValueError) -> OptionError:
    why = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
    return OptionError(
        "FILE_UNUSABLE",
        f"{path} cannot be used: {why}.",
        hint="Name a file that `penstock offsets export` has written, or one you may write.",
        facts={"path": str(path)},
    )
