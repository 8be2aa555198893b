"""The loss ledger: every range of offsets that was lost, kept where it outlives the query.

Rule: one loss is one row, no matter how often it is reported or by which program. The key is the range
(topic, partition, start, until). The wording is that of the first report; a repeated report changes only the
times and the count. A log line would disappear with its log, and a replayed batch would write it twice.

Drivers and workers write concurrently. In an SQLite file they take turns (`BEGIN IMMEDIATE`, no write-ahead
log: losses are rare, and the ledger stays a single file that can be copied and mailed). That file is on one
computer, so tasks on several computers need a server.

    ledger = open_loss_ledger("postgresql://me:password@db.example/stats")
    ledger.record([Loss("DATA_LOST", "t", 0, 5, 8)], seen_ms=now_ms, stream="visits")
    ledger.read(topic="t")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import OffsetStoreError
from penstock.core.losses.loss_ranges import Loss
from penstock.core.options.storage_addresses import GivenPlace, Place, as_place
from penstock.stores.sql.connections.database_outages import RECONNECT_TIMEOUT_S
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables, read_version

LEDGER_VERSION = 1
TABLE = "penstock_losses"
#: A detail is one sentence. A longer one is cut, because a column of MySQL has a limit.
DETAIL_LIMIT = 4000

_KEY = ("topic", "partition_id", "start_offset", "until_offset")
_WORDS = ("condition_name", "detail", "topic_id", "stream")
_COUNTS = ("first_seen_ms", "last_seen_ms", "times_seen")
_COLUMNS = (*_KEY, *_WORDS, *_COUNTS)


@dataclass(frozen=True, slots=True)
class RecordedLoss:
    """A loss as the ledger records it: when it was seen, how often, and which stream reported it first (empty
    for a query of Structured Streaming, whose name Spark does not pass to its source)."""

    loss: Loss
    first_seen_ms: int
    last_seen_ms: int
    times: int
    stream: str


@dataclass(frozen=True, slots=True)
class LossLedger:
    """A loss ledger at a place, opened by `open_loss_ledger`. It holds no connection and can be pickled."""

    place: Place

    def record(self, losses: Iterable[Loss], *, seen_ms: int, stream: str = "") -> int:
        """Record these losses, all or none; return how many are distinct. A repeated loss adds no row."""
        distinct: dict[tuple[str, int, int, int], Loss] = {}
        for loss in losses:
            distinct.setdefault(loss.key, loss)
        # All writers use the same order: two that lock rows in different orders would block each other.
        rows = [_write_row(distinct[key], seen_ms, stream) for key in sorted(distinct)]
        if rows:
            Database(self.place, RECONNECT_TIMEOUT_S).run(lambda session: _upsert(session, rows), writes=True)
        return len(rows)

    def read(self, *, topic: str | None = None, since_ms: int | None = None) -> list[RecordedLoss]:
        """Return the recorded losses, ordered by topic, partition and offset.

        `since_ms` keeps those reported at that time or later, whether for the first time or again.
        """
        return Database(self.place, RECONNECT_TIMEOUT_S).run(
            lambda session: _select(session, topic, since_ms)
        )


def open_loss_ledger(place: GivenPlace, *, create: bool = True, was_reached: bool = False) -> LossLedger:
    """Return the ledger at a path or address. Create it if it is missing; without `create` that is an error.

    `was_reached` says that this query has opened it before. The call then waits for a database that is away.
    """
    known = as_place(place)
    database = Database(known, RECONNECT_TIMEOUT_S if was_reached else 0.0)
    if create:
        database.run(lambda session: ensure_tables(session, _TABLES), writes=True)
    else:
        database.run(_demand_version)
    return LossLedger(known)


# --- tables -----------------------------------------------------------------------------------------------


def _demand_version(session: Session) -> None:
    if read_version(session, _TABLES) is None:
        raise OffsetStoreError(
            "LEDGER_NOT_FOUND",
            f"There is no loss ledger at {session.place}.",
            hint="Check the place: it must be the one the query names in `lossLedger`.",
            facts={"place": str(session.place)},
        )


def _make_tables(session: Session) -> None:
    name, text = session.grammar.name, session.grammar.key_text
    kinds = {"topic": text, **dict.fromkeys((*_KEY[1:], *_COUNTS), "BIGINT"), **dict.fromkeys(_WORDS, "TEXT")}
    columns = [f"{name(column)} {kinds[column]} NOT NULL" for column in _COLUMNS]
    key = ", ".join(map(name, _KEY))
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {name(TABLE)} ({', '.join(columns)}, PRIMARY KEY ({key}))"
        + session.grammar.table_end
    )


_TABLES = TableSet("losses", LEDGER_VERSION, _make_tables, "loss ledger", "LEDGER_TOO_NEW")


# --- rows -------------------------------------------------------------------------------------------------


def _write_row(loss: Loss, seen_ms: int, stream: str) -> tuple[object, ...]:
    words = (loss.condition, loss.detail, (loss.topic_id or b"").hex(), stream)
    return (*loss.key, *map(_clean, words), seen_ms, seen_ms, 1)


def _clean(text: str) -> str:
    """Return the text in a form every database accepts: no zero byte, no lone surrogate, not too long."""
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= DETAIL_LIMIT else text[: DETAIL_LIMIT - 1] + "…"


def _upsert(session: Session, rows: list[tuple[object, ...]]) -> None:
    ensure_tables(session, _TABLES)
    grammar, name = session.grammar, session.grammar.name
    old = "{}" if session.dialect == "mysql" else f"{name(TABLE)}.{{}}"
    first, last, times = map(name, _COUNTS)
    settings = (
        f"{first} = {grammar.least}({old.format(first)}, {grammar.new(first)})",
        f"{last} = {grammar.greatest}({old.format(last)}, {grammar.new(last)})",
        f"{times} = {old.format(times)} + {grammar.new(times)}",
    )
    insert = grammar.insert(name(TABLE), [*map(name, _COLUMNS)])
    session.execute_many(f"{insert} {grammar.upsert([*map(name, _KEY)], settings)}", rows)


def _select(session: Session, topic: str | None, since_ms: int | None) -> list[RecordedLoss]:
    _demand_version(session)
    name, mark = session.grammar.name, session.grammar.mark
    wanted = {f"{name('topic')} = {mark}": topic, f"{name('last_seen_ms')} >= {mark}": since_ms}
    filters = {filter_: value for filter_, value in wanted.items() if value is not None}
    where = f" WHERE {' AND '.join(filters)}" if filters else ""
    rows = session.execute(
        f"SELECT {', '.join(map(name, _COLUMNS))} FROM {name(TABLE)}{where}", list(filters.values())
    )
    # Sorted here, because databases sort letters differently.
    return sorted(map(_read_row, rows), key=lambda each: each.loss.key)


def _read_row(row: tuple[Any, ...]) -> RecordedLoss:
    topic, partition, start, until, condition, detail, topic_id, stream, first, last, times = row
    loss = Loss(
        condition, topic, partition, start, until, bytes.fromhex(topic_id) if topic_id else None, detail
    )
    return RecordedLoss(loss, first, last, times, stream)
