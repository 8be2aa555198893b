"""Show what was lost: every range of offsets that a query had to pass over, from its loss ledger.

penstock loss --at losses.db
penstock loss --at '${env:LOSS_LEDGER}' --topic visits --since 1h
penstock loss --at postgresql://me@db.example/stats --json

A password on the command line can be seen by every user of this computer; put the whole address into a
variable or a file and write ${env:NAME} or ${file:/path} instead. Nothing is ever created at the place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence

from penstock.cli.shared.moments import parse_moment, show_moment
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.terminal import escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.losses.loss_ranges import TopicLoss, summarise_losses
from penstock.stores.loss_ledger import RecordedLoss, open_loss_ledger

JSON_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", required=True, metavar="PLACE", help="the path or address of the ledger")
    parser.add_argument("--topic", default=None, help="only this topic")
    parser.add_argument(
        "--since",
        type=parse_moment,
        default=None,
        metavar="WHEN",
        help="only what was seen since then: 1h, 2d, or a time such as 2026-01-31T12:00:00Z",
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    ledger = open_loss_ledger(resolve("--at", arguments.at), create=False)
    recorded = ledger.read(topic=arguments.topic, since_ms=arguments.since)
    summary = summarise_losses(each.loss for each in recorded)
    if arguments.json:
        say(_write_json(str(ledger.place), recorded, summary))
    elif not recorded:
        chosen = f" for topic {arguments.topic}" if arguments.topic is not None else ""
        chosen += f" since {show_moment(arguments.since)}" if arguments.since is not None else ""
        say(f"No losses recorded at {escape(str(ledger.place))}{escape(chosen)}.")
    else:
        for line in _write_tables(recorded, summary):
            say(line)
    return 0


def _write_tables(recorded: Sequence[RecordedLoss], summary: Mapping[str, TopicLoss]) -> Iterable[str]:
    sums = [
        (topic, f"{each.offsets}", f"{each.ranges}", f"{each.open_ends}") for topic, each in summary.items()
    ]
    yield from align(("topic", "offsets lost", "ranges", "without end"), sums, right={1, 2, 3})
    yield ""
    rows: list[tuple[str, ...]] = [
        (
            f"{each.loss.topic}-{each.loss.partition}",
            f"{each.loss.start}",
            f"{each.loss.until}" if each.loss.has_known_end else "?",
            f"{each.loss.size}" if each.loss.has_known_end else "?",
            show_moment(each.first_seen_ms),
            show_moment(each.last_seen_ms),
            f"{each.times}",
            each.stream or "-",
            each.loss.condition,
        )
        for each in recorded
    ]
    head: tuple[str, ...] = (
        *("partition", "from", "until", "lost", "first seen", "last seen", "times", "stream", "condition"),
    )
    if not any(each.stream for each in recorded):  # no stream was ever named
        head, *rows = ((*row[:7], *row[8:]) for row in (head, *rows))
    lines = iter(align(head, rows, right={1, 2, 3, 6}))
    yield next(lines)
    for line, each in zip(lines, recorded, strict=True):
        yield line
        if each.loss.detail:
            yield f"    {escape(each.loss.detail)}"


def _write_json(place: str, recorded: Sequence[RecordedLoss], summary: Mapping[str, TopicLoss]) -> str:
    content = {
        "version": JSON_VERSION,
        "place": place,
        "topics": [
            {"topic": topic, "offsets": each.offsets, "ranges": each.ranges, "open_ends": each.open_ends}
            for topic, each in summary.items()
        ],
        "losses": [
            {
                "topic": each.loss.topic,
                "partition": each.loss.partition,
                "start": each.loss.start,
                "until": each.loss.until if each.loss.has_known_end else None,
                "condition": each.loss.condition,
                "detail": each.loss.detail,
                "topic_id": None if each.loss.topic_id is None else each.loss.topic_id.hex(),
                "stream": each.stream,
                "first_seen_ms": each.first_seen_ms,
                "last_seen_ms": each.last_seen_ms,
                "times": each.times,
            }
            for each in recorded
        ],
    }
    return json.dumps(content, indent=1)  # ASCII only, so no control character reaches the terminal
