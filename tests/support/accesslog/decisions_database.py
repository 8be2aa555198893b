"""A database with decisions in it, as the pipeline leaves one, to test what is derived from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.apps.accesslog.stream.pipeline_tables import TABLES
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.direct import BatchReport
from penstock.sinks import SqlSink, create_tables
from penstock.stores.sql.connections.sql_sessions import Database, Session

SECOND_US = 1_000_000
#: The time at which tests look by default.
NOW_US = 1_900_000_000 * SECOND_US
COLUMNS = DECISIONS.names
_NEEDED = ("accesslog_decisions", "accesslog_orders")


def make_database(place: str | os.PathLike[str] | Place) -> Place:
    """Create the pipeline's tables of decisions and orders, without rows."""
    if isinstance(place, str | os.PathLike):
        place = parse_place(os.fspath(place))
    schemas = {table: schema for table, schema in TABLES.items() if table.name in _NEEDED}
    create_tables(SqlSink(place, *schemas), {table.name: schema for table, schema in schemas.items()})
    return place


def decide(place: Place, subject: str, **words: Any) -> str:
    """Add one decision and return its id."""
    decision = make_decision(subject, **words)
    add_decisions(place, [decision])
    return str(decision["decision_id"])


def make_decision(
    subject: str, *, seconds: int = 600, decided_at: int = NOW_US - 1, **words: Any
) -> dict[str, Any]:
    """Return a decision to block; by default the ban ends `seconds` after `NOW_US`."""
    return {
        "decision_id": f"d-{abs(hash((subject, seconds, decided_at, *words.items()))):x}",
        "subject": subject,
        "kind": "net" if "/" in subject else "client",
        "client": subject,
        "decided_at": decided_at,
        "rule": "sqli.union-select",
        "class": "sql_injection",
        "action": "block",
        "score": 10.0,
        "ban_seconds": seconds,
        "expires_at": NOW_US + seconds * SECOND_US,
        "level": 1,
        "server": "web1",
        "partition": 0,
        "offset": 17,
        "request_index": 3,
        "evidence": '[{"partition": 0, "offset": 17, "time": 1899999999000000, "request": "GET /?id=1"}]',
        **words,
    }


def add_decisions(place: Place, decisions: Sequence[dict[str, Any]]) -> None:
    """Add the decisions in one transaction, as a batch does."""

    def insert(session: Session) -> None:
        name = session.grammar.name
        session.execute_many(
            f"INSERT INTO {name('accesslog_decisions')} ({', '.join(map(name, COLUMNS))}) "
            f"VALUES ({session.grammar.marks(len(COLUMNS))})",
            [[each[column] for column in COLUMNS] for each in decisions],
        )

    Database(place).run(insert, writes=True)


def make_news(attempts: int = 1) -> BatchNews:
    """Return the news of a batch without decisions and alerts."""
    report = BatchReport(1, 0, (), StreamPosition({}), None, attempts=attempts)
    numbers: dict[str, Any] = {"dead": 0, "late": 0, "pending": 0, "subjects": 1, "watermark_us": None}
    tables = {"decisions": DECISIONS.empty_table(), "alerts": ALERT_ROWS.empty_table()}
    return BatchNews(report, lines=5, parsed=5, **numbers, **tables)
