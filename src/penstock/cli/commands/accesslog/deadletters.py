"""Show lines that could not be parsed, where they stand in Kafka, and why.

penstock accesslog deadletters results.db
penstock accesslog deadletters results.db --limit 1000 --json

The latest come first. A line is a stranger's text, so control characters are shown and not obeyed. Only the
beginning of a long line is shown; --json shows all that was kept. If there are many, tell `run` how lines are
written (--log-format).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from penstock.apps.accesslog.stream.table_names import DEAD_LETTERS
from penstock.cli.accesslog.database_arguments import add_database_argument, add_limit_argument, find_database
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.errors import OffsetStoreError
from penstock.stores.sql.connections.sql_sessions import Database, Session

JSON_VERSION = 1
_COLUMNS = ("penstock_topic", "penstock_partition", "penstock_offset", "reason", "length", "line")
_SHOWN_LETTERS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    add_limit_argument(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    rows, total = Database(find_database(arguments)).run(lambda session: _read(session, arguments.limit))
    letters = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "reason": reason,
            "length": length,
            "line": bytes(line).decode("utf-8", "backslashreplace"),
        }
        for topic, partition, offset, reason, length, line in rows
    ]
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "letters": letters, "total": total}, indent=1))
        return 0
    if not letters:
        say("No dead letters: every line was parsed.")
        return 0
    shown = [
        [f"{each['partition']}@{each['offset']}", escape(each["reason"]), str(each["length"]),
         escape(each["line"])[:_SHOWN_LETTERS]]
        for each in letters
    ]  # fmt: skip
    for line in align(("record", "why", "bytes", "line"), shown, right={2}):
        say(line)
    if total > len(letters):
        complain(f"The last {len(letters)} of {count(total, 'dead letter')}: --limit shows more.")
    return 0


def _read(session: Session, limit: int) -> tuple[list[tuple[Any, ...]], int]:
    if not session.has_table(DEAD_LETTERS):
        raise OffsetStoreError(
            "DEAD_LETTERS_NOT_FOUND",
            f"There is no table {DEAD_LETTERS} at {session.place}.",
            hint="Check the place: it must be the database that `penstock accesslog run` writes to.",
            facts={"place": str(session.place), "table": DEAD_LETTERS},
        )
    name, mark = session.grammar.name, session.grammar.mark
    rows = session.execute(
        f"SELECT {', '.join(map(name, _COLUMNS))} FROM {name(DEAD_LETTERS)} "
        f"ORDER BY {name('penstock_offset')} DESC, {name('penstock_partition')} LIMIT {mark}",
        [limit],
    )
    [[total]] = session.execute(f"SELECT COUNT(*) FROM {name(DEAD_LETTERS)}")
    return rows, int(total)
