"""Say why a stream does not move.

penstock why visits --sink results.db --bootstrap-server b:9092
penstock why visits --offsets offsets/ --bootstrap-server b:9092 --watch 30s
penstock why nightly --offsets kafka://b:9092/nightly --isolation read_committed --json
penstock why visits --sink '${env:STATS}' --json

It compares the stream's position with the log as it is now, and reports the first cause it finds: brokers
that do not answer, a topic that was deleted or recreated, no leader, a position outside the log, no data, an
open transaction (whose, and which partitions it holds back), two programs, a lock in the database (and which
session to end), a move by hand (`penstock offsets`) that no program has applied yet, a quota. If data is
waiting it looks twice (--watch). Nothing is changed. For a Structured Streaming query name the checkpoint:
`penstock why 0 --offsets checkpoint:folder`, where 0 is the number of the source.

Exit code: 0 it moves, or nothing waits; 1 it is stuck, and the answer says why; 3 the brokers or the database
could not be reached; 4 unknown: the stream was not found, its position cannot be read (a wrong password, a
right that is missing, a damaged file, locked tables), it was not watched for long enough to tell (--watch
0s), or it has no position of some partitions of its topics that hold records: a stream that subscribes reads
them when it finds them, one that assigns partitions does not; 2 the command itself is wrong. Only 1 says
that the stream does not move.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

from penstock.cli.rewinding.position_watch import PositionWatch, list_visible_changes
from penstock.cli.shared.kafka_arguments import (
    LIMIT,
    add_connection_arguments,
    add_json_argument,
    gather_settings,
    read_settings,
)
from penstock.cli.shared.moments import parse_wait
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.terminal import complain, escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.diagnosis.lock_waits import BlockingSession, find_lasting
from penstock.core.diagnosis.manual_moves import HandMove
from penstock.core.diagnosis.standstill import (
    ISOLATIONS,
    Facts,
    Isolation,
    StandstillCause,
    State,
    WriterNow,
    explain,
)
from penstock.core.errors import OffsetStoreError, OptionError, PenstockError
from penstock.core.offsets.offset_store_contract import SEEK, OffsetStore
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.core.outages import CONDITIONS

JSON_VERSION = 3
EXIT_CODES: Mapping[State, int] = {"moving": 0, "idle": 0, "stuck": 1, "unreachable": 3, "unknown": 4}
_WRONG_QUESTION = 2
#: Conditions that may look different in a moment.
_WATCHED = ("DATA_WAITS", "OPEN_TRANSACTION", "PARTITIONS_UNREAD")
#: Used where the ledger cannot even be read: the error itself would send the reader here again.
_LEDGER_LOCKED = (
    " The tables of the stream's position are locked as a whole (LOCK TABLES, LOCK TABLE, ALTER TABLE), so "
    "why cannot read them, either. Look for the session in SHOW FULL PROCESSLIST, or in pg_stat_activity."
)
#: How long brokers may take to answer, unless the settings say so.
_LOOK_TIMEOUT_MS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="the stream's name")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--offsets", metavar="STORE", help="where its offsets are, as for `penstock offsets`")
    place.add_argument("--sink", metavar="DATABASE", help="the database of its SQL sink")
    parser.add_argument(
        "--isolation",
        choices=ISOLATIONS,
        default=None,
        help="how the stream reads; without it, and without isolation.level among the settings, an answer "
        "that depends on it says for which readers it holds",
    )
    parser.add_argument(
        "--watch",
        type=parse_wait,
        default=5.0,
        metavar="TIME",
        help="if data is waiting: how long to watch whether the position moves (default 5s; 0s: look once)",
    )
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        facts, answer = _look(arguments)
    except OptionError as error:
        complain(str(error))
        return _WRONG_QUESTION
    except PenstockError as error:
        is_locked = error.condition == "DATABASE_BUSY" and not _is_file(error.facts.get("place"))
        complain(f"{error}{_LEDGER_LOCKED}" if is_locked else str(error))
        return EXIT_CODES["unreachable" if error.condition in CONDITIONS else "unknown"]
    _tell(facts, answer, arguments.json)
    return EXIT_CODES[answer.state]


def _look(arguments: argparse.Namespace) -> tuple[Facts, StandstillCause]:
    from penstock.kafka.console.standstill_facts import look_at_standing
    from penstock.stores.offsets.offset_store_addresses import open_offset_store

    named = None if arguments.sink is None else resolve("--sink", arguments.sink)
    sink = None if named is None else parse_place(named.removeprefix("sink:"))
    address = "" if arguments.offsets is None else resolve("--offsets", arguments.offsets)
    if address.startswith("kafka://") and arguments.bootstrap_server is None:
        arguments.bootstrap_server = address.removeprefix("kafka://").partition("/")[0]
    settings = gather_settings(arguments)
    client = read_settings(settings)
    limit_ms = client.default_api_timeout_ms if LIMIT in settings else _LOOK_TIMEOUT_MS
    isolation = _read_isolation(arguments.isolation, settings.get("isolation.level"))
    store: OffsetStore
    if sink is not None:
        from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore

        store = SinkOffsetStore(sink)
    else:
        store = open_offset_store(address, create=False, client=client)

    def look(position: StreamPosition) -> Facts:
        seen = look_at_standing(client, arguments.stream, position, timeout_ms=limit_ms)
        hand, is_known = _find_hand(store, sink, arguments.stream, position)
        return replace(seen, isolation=isolation, hand=hand, is_hand_known=is_known)

    watch = PositionWatch(store, arguments.stream)
    facts = look(watch.stood)
    answer = explain(facts, now_ms=_now_ms())
    if answer.condition not in _WATCHED or not arguments.watch:
        return facts, answer
    first, others, begun = _look_at_writer(sink, arguments.stream), _list_open(store.place), time.monotonic()
    while not watch.has_moved and (left := begun + arguments.watch - time.monotonic()) > 0:
        time.sleep(min(1.0, left))
        if watch.look_again():  # moved by hand meanwhile: start over, maybe with another writer
            first = _look_at_writer(sink, arguments.stream)
    moved, is_elsewhere = watch.has_moved, watch.now.offsets != watch.stood.offsets
    if is_elsewhere or (answer.condition == "OPEN_TRANSACTION" and not facts.throttle_ms):
        facts = look(watch.now)  # the cause may be over by now, and then it blocks nothing
    last = _look_at_writer(sink, arguments.stream)
    if not moved and first is not None and last is not None and first.is_locked and last.is_locked:
        last = replace(last, blockers=_find_blockers(sink, arguments.stream))
    elif not moved:  # it may soon wait again for the session that holds what it needs
        facts = replace(facts, open_sessions=find_lasting(others, _list_open(store.place), arguments.watch))
    hand, is_known = _find_hand(store, sink, arguments.stream, watch.now)
    facts = replace(facts, hand=hand, is_hand_known=is_known)
    facts = replace(facts, moved=moved, watched_s=arguments.watch, writer_before=first, writer=last)
    return facts, explain(facts, now_ms=_now_ms())


def _is_file(place: object) -> bool:
    """Return whether this is an SQLite file, which has no sessions; the error says how to find its users."""
    return isinstance(place, str) and "://" not in place


def _tell(facts: Facts, answer: StandstillCause, as_json: bool) -> None:
    if as_json:
        content = {
            "version": JSON_VERSION,
            "stream": facts.stream,
            "condition": answer.condition,
            "what": answer.what,
            "hint": answer.hint,
            "state": answer.state,
            "isolation": facts.isolation,
            "lag": facts.lag,
            "lag_read_uncommitted": facts.find_lag("read_uncommitted"),
            "partitions": [
                {"topic": each.topic, "partition": each.partition, **asdict(now), **unheld}
                for some, unheld in ((facts.partitions, {}), (facts.others, {"position": None}))
                for each, now in sorted(some.items())
            ],
            "writer": None if facts.writer is None else asdict(facts.writer),
            "moved_by_hand": None if facts.hand is None else asdict(facts.hand),
            "open_sessions": None
            if facts.open_sessions is None
            else [asdict(each) for each in facts.open_sessions],
            "moved": facts.moved,
            "throttle_ms": facts.throttle_ms,
        }
        say(json.dumps(content, indent=1))
        return
    say(escape(str(answer)))
    if facts.partitions:
        both = {**facts.partitions, **facts.others}
        rows = [
            (
                str(each),
                *(
                    "-" if number is None else str(number)
                    for number in (
                        None if each in facts.others else now.position,
                        now.earliest,
                        now.stable_end,
                        now.log_end,
                    )
                ),
            )
            for each, now in sorted(both.items())
        ]
        head = ("partition", "stands at", "log begins", "committed up to", "log ends")
        for line in align(head, rows, right={1, 2, 3, 4}):
            say(line)


def _find_hand(
    store: OffsetStore, sink: Place | None, stream: str, position: StreamPosition
) -> tuple[HandMove | None, bool]:
    """Return the move by hand after which nothing was stored, and whether this user may see such moves."""
    if sink is not None:
        from penstock.stores.sql.ledger.writer_rows import find_hand_move

        try:
            return find_hand_move(sink, stream), True
        except OffsetStoreError as error:
            if error.condition != "DATABASE_REFUSED":
                raise
            return None, False
    changes = list_visible_changes(store, stream)
    if not changes or changes[-1].verb == SEEK:
        return None, changes is not None
    change = changes[-1]
    if any(position.offsets.get(each) != offset for each, offset in change.after.offsets.items()):
        return None, True
    return HandMove(change.who, change.verb, change.at_ms), True


def _look_at_writer(sink: Place | None, stream: str) -> WriterNow | None:
    if sink is None:
        return None
    from penstock.stores.sql.ledger.writer_rows import look_at_writer

    return look_at_writer(sink, stream)


def _list_open(database: Place | None) -> tuple[BlockingSession, ...] | None:
    if database is None:
        return None
    from penstock.stores.sql.ledger.blocking_sessions import find_open_sessions

    return find_open_sessions(database)


def _find_blockers(sink: Place | None, stream: str) -> tuple[BlockingSession, ...]:
    if sink is None:
        return ()
    from penstock.stores.sql.ledger.blocking_sessions import find_blockers

    return find_blockers(sink, stream)


def _read_isolation(asked: str | None, setting: str | None) -> Isolation | None:
    """Return the stream's isolation if it was stated, else None.

    Settings without it say nothing: they are the command's own, and their default is not the stream's.
    """
    for level in ISOLATIONS:
        if level == (asked or setting):
            return level
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
