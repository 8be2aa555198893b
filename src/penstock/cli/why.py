"""One answer to the question: why does this stream not move?

penstock why visits --sink results.db --bootstrap-server b:9092
penstock why visits --offsets offsets/ --bootstrap-server b:9092 --watch 30s
penstock why nightly --offsets kafka://b:9092/nightly --isolation read_committed
penstock why visits --sink '${env:STATS}' --json

It compares where the stream stands with the log as it is now, and says the first cause that holds: brokers
that do not answer, a topic that is gone or another one, no leader, a position outside the log, no data, an
open transaction, two programs, a lock in the database, a quota. If data waits it looks twice (--watch).
Nothing is changed. Of a Structured Streaming query name the checkpoint: `penstock why 0 --offsets
checkpoint:folder`, where 0 is the number of the source.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

from penstock.cli.connection import add_connection_arguments, add_json_argument, connect
from penstock.cli.tables import align
from penstock.cli.terminal import escape, say
from penstock.core.errors import OffsetStoreError
from penstock.core.places import Place, parse_place
from penstock.core.references import resolve_reference
from penstock.core.stream_offsets import StreamPosition
from penstock.core.values import parse_duration_ms
from penstock.core.why import Answer, Facts, WriterNow, explain

JSON_VERSION = 1
#: How long brokers may take to answer.
_LOOK_TIMEOUT_MS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="the stream's name")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--offsets", metavar="STORE", help="where its offsets are, as for `penstock offsets`")
    place.add_argument("--sink", metavar="DATABASE", help="the database of its SqlSink")
    parser.add_argument(
        "--isolation",
        choices=["read_committed", "read_uncommitted"],
        default=None,
        help="how the stream reads (default: isolation.level of the settings, else read_uncommitted)",
    )
    parser.add_argument(
        "--watch",
        type=_parse_wait,
        default=5.0,
        metavar="TIME",
        help="if data waits: how long to look whether the position moves (default 5s; 0s: look once)",
    )
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.kafka.standing import look_at_standing
    from penstock.stores.offsets.addresses import open_offset_store

    sink = None if arguments.sink is None else parse_place(_resolve("--sink", arguments.sink))
    address = "" if arguments.offsets is None else _resolve("--offsets", arguments.offsets)
    if address.startswith("kafka://") and arguments.bootstrap_server is None:
        arguments.bootstrap_server = address.removeprefix("kafka://").partition("/")[0]
    client = connect(arguments)
    if arguments.isolation is not None:
        client = replace(client, isolation_level=arguments.isolation)
    if sink is not None:
        from penstock.stores.offsets.ledger import SinkOffsetStore

        load = SinkOffsetStore(sink).load
    else:
        load = open_offset_store(address, create=False, client=client).load
    before = _demand(load(arguments.stream), arguments.stream)
    facts = look_at_standing(client, arguments.stream, before, timeout_ms=_LOOK_TIMEOUT_MS)
    answer = explain(facts, now_ms=_now_ms())
    if answer.condition == "DATA_WAITS" and arguments.watch:
        first, begun = _look_at_writer(sink, arguments.stream), time.monotonic()
        after = before
        while after.offsets == before.offsets and (left := begun + arguments.watch - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            after = _demand(load(arguments.stream), arguments.stream)
        facts = replace(
            facts,
            moved=after.offsets != before.offsets,
            watched_s=arguments.watch,
            writer_before=first,
            writer=_look_at_writer(sink, arguments.stream),
        )
        answer = explain(facts, now_ms=_now_ms())
    _tell(facts, answer, arguments.json)
    return 0


def _tell(facts: Facts, answer: Answer, as_json: bool) -> None:
    if as_json:
        content = {
            "version": JSON_VERSION,
            "stream": facts.stream,
            "condition": answer.condition,
            "what": answer.what,
            "hint": answer.hint,
            "partitions": [
                {"topic": each.topic, "partition": each.partition, "lag": now.lag, **asdict(now)}
                for each, now in sorted(facts.partitions.items())
            ],
            "writer": None if facts.writer is None else asdict(facts.writer),
            "moved": facts.moved,
            "throttle_ms": facts.throttle_ms,
        }
        say(json.dumps(content, indent=1))
        return
    say(escape(str(answer)))
    if facts.partitions:
        rows = [
            (
                str(each),
                *("-" if n is None else str(n) for n in (now.position, now.earliest, now.end, now.log_end)),
            )
            for each, now in sorted(facts.partitions.items())
        ]
        head = ("partition", "stands at", "log begins", "can be read to", "log ends")
        for line in align(head, rows, right={1, 2, 3, 4}):
            say(line)


def _look_at_writer(sink: Place | None, stream: str) -> WriterNow | None:
    if sink is None:
        return None
    from penstock.stores.sql.writers import look_at_writer

    return look_at_writer(sink, stream)


def _demand(position: StreamPosition | None, stream: str) -> StreamPosition:
    if position is not None:
        return position
    raise OffsetStoreError(
        "STREAM_NOT_FOUND",
        f"There are no offsets of a stream {stream}: it has never stored any.",
        hint="Check the name and the place (`penstock offsets show`), and that the stream was ever started.",
        facts={"stream": stream},
    )


def _resolve(name: str, text: str) -> str:
    return resolve_reference(name, text, environ=os.environ, read_file=lambda path: Path(path).read_text())


def _parse_wait(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
