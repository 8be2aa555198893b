"""Offsets in a SQL database: SQLite, PostgreSQL, MariaDB or MySQL.

Rule: a position is replaced in one transaction, including the rows of partitions that have left it. Two
programs that save the same stream at once take turns at the stream's row, so neither sees half of the other's
save, and the second one compares with what the first one has written. There is one row per partition, not one
text per stream, so that plain SQL can read a stream's position beside the results.

`namespace` separates applications that share a database.

    store = SqlOffsetStore("postgresql://me@db.example/stats", namespace="shop")
    store.save("visits", position)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import (
    Change,
    OffsetStore,
    check_stream_name,
    refuse_going_back,
    refuse_moved,
)
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position
from penstock.core.options.storage_addresses import GivenPlace, as_place
from penstock.stores.sql.connections.database_outages import RECONNECT_TIMEOUT_S
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables, read_version
from penstock.stores.sql.ledger.ledger_tables import LEDGER, WRITERS, read_entries

VERSION = 1
STREAMS, OFFSETS, CHANGES = "penstock_streams", "penstock_offsets", "penstock_offset_changes"
_WHOSE = ("namespace", "stream")
_ROW = ("topic", "partition_no", "state", "next_offset", "topic_id", "leader_epoch")
_CHANGE = ("change_no", "at_ms", "who", "verb", "position_before", "position_after")
#: What a row holds: the position, the start of the last batch, or the position when the partition left.
_AT, _START, _GONE = "at", "start", "gone"


class SqlOffsetStore(OffsetStore):
    """The offset store in a SQL database. It holds no connection between calls. Without `create`, missing
    tables are an error."""

    def __init__(
        self,
        place: GivenPlace,
        *,
        namespace: str = "default",
        create: bool = True,
    ) -> None:
        self.place = as_place(place)
        self._namespace = check_stream_name(namespace)
        self._database = Database(self.place)
        if create:
            self._database.run(lambda session: ensure_tables(session, _TABLES), writes=True)
        else:
            self._database.run(self._demand_tables)
        # The database was reached. From now on, calls wait out its restarts and fail-overs.
        self._database = Database(self.place, RECONNECT_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"SqlOffsetStore({str(self.place)!r}, namespace={self._namespace!r})"

    def __str__(self) -> str:
        apart = "" if self._namespace == "default" else f" (namespace {self._namespace})"
        return f"the database {self.place}{apart}"

    def load(self, stream: str) -> StreamPosition | None:
        check_stream_name(stream)
        return self._database.run(lambda session: self._read(session, stream))

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        check_stream_name(stream)

        def save(session: Session) -> None:
            self._demand_tables(session)
            is_known, _ = self._lock(session, stream)
            if is_known and not may_go_back:
                refuse_going_back(stream, self._read_rows(session, stream), position)
            self._replace(session, stream, position)

        self._database.run(save, writes=True)

    def list_streams(self) -> list[str]:
        rows = self._database.run(lambda session: self._select(session, STREAMS, ["stream"]))
        return sorted(str(row[0]) for row in rows)

    def change(self, stream: str, change: Change) -> None:
        check_stream_name(stream)

        def make(session: Session) -> None:
            self._demand_tables(session)
            is_known, saves = self._lock(session, stream)
            refuse_moved(stream, self._read_rows(session, stream) if is_known else None, change)
            self._replace(session, stream, change.after)
            note_change(session, self._namespace, stream, saves, change)

        self._database.run(make, writes=True)

    def list_changes(self, stream: str, *, after: int = -1) -> list[Change]:
        """Return the changes by hand whose number is higher than `after`, the oldest first."""
        check_stream_name(stream)
        rows = self._database.run(lambda session: self._select(session, CHANGES, _CHANGE, stream))
        return [
            Change(
                int(at_ms),
                who,
                verb,
                None if json.loads(then) is None else read_position(json.loads(then)),
                read_position(json.loads(now)),
            )
            for number, at_ms, who, verb, then, now in sorted(rows)
            if int(number) > after
        ]

    def list_warnings(self, stream: str) -> list[str]:
        told = f"A sink here has results of {stream}, and they decide where it starts: move sink: instead."
        return [told] if self._database.run(lambda session: _has_results(session, stream)) else []

    def suggest_place(self, stream: str | None = None) -> str:
        is_sink = self._database.run(lambda session: _has_results(session, stream))
        return f"A sink keeps offsets there with its results: use sink:{self.place}." if is_sink else ""

    # --- inside a transaction -----------------------------------------------------------------------------

    def _demand_tables(self, session: Session) -> None:
        if read_version(session, _TABLES) is None:
            is_sink = read_version(session, LEDGER) is not None
            raise OffsetStoreError(
                "OFFSETS_NOT_FOUND",
                f"There are no tables for offsets at {self.place}.",
                hint=f"A sink keeps offsets there with its results: use sink:{self.place}."
                if is_sink
                else "Check the place: it must be the one that the stream names as its store.",
                facts={"place": str(self.place)},
            )

    def _read(self, session: Session, stream: str) -> StreamPosition | None:
        self._demand_tables(session)
        known = self._select(session, STREAMS, ["saves"], stream)
        return self._read_rows(session, stream) if known else None

    def _read_rows(self, session: Session, stream: str) -> StreamPosition:
        return _parse_rows(self._select(session, OFFSETS, _ROW, stream))

    def _lock(self, session: Session, stream: str) -> tuple[bool, int]:
        """Create the stream's row, or wait for its lock, which lasts until this transaction ends.

        Return whether the stream was known before, and how often it has been saved, including this time.
        """
        grammar, name = session.grammar, session.grammar.name
        bump = f"{name('saves')} = {name(STREAMS)}.{name('saves')} + 1"
        key = [*map(name, _WHOSE)]
        statement = f"{grammar.insert(name(STREAMS), [*key, name('saves')])} {grammar.upsert(key, [bump])}"
        session.execute(statement, [self._namespace, stream, 1])
        saves = int(self._select(session, STREAMS, ["saves"], stream)[0][0])
        return saves > 1, saves

    def _replace(self, session: Session, stream: str, position: StreamPosition) -> None:
        name, mark = session.grammar.name, session.grammar.mark
        where = " AND ".join(f"{name(column)} = {mark}" for column in _WHOSE)
        session.execute(f"DELETE FROM {name(OFFSETS)} WHERE {where}", [self._namespace, stream])
        _insert(session, OFFSETS, (self._namespace, stream), _ROW, _write_rows(position))

    def _select(
        self, session: Session, table: str, columns: Sequence[str], stream: str | None = None
    ) -> list[tuple[Any, ...]]:
        name, mark = session.grammar.name, session.grammar.mark
        wanted = {"namespace": self._namespace} | ({} if stream is None else {"stream": stream})
        where = " AND ".join(f"{name(column)} = {mark}" for column in wanted)
        return session.execute(
            f"SELECT {', '.join(map(name, columns))} FROM {name(table)} WHERE {where}", list(wanted.values())
        )


def _has_results(session: Session, stream: str | None) -> bool:
    """Return whether a sink in the same database has results, of this stream or of any."""
    if read_version(session, LEDGER) is None:
        return False
    if stream is None:
        return bool(session.execute(f"SELECT 1 FROM {WRITERS}"))
    return bool(read_entries(session, stream, locked=False))


def note_change(session: Session, namespace: str, stream: str, number: int, change: Change) -> None:
    """Record the change; `number` is unique within the stream, and rises."""
    before = None if change.before is None else write_position(change.before)
    words = (change.who, change.verb, json.dumps(before), json.dumps(write_position(change.after)))
    _insert(session, CHANGES, (namespace, stream), _CHANGE, [(number, change.at_ms, *words)])


def _insert(
    session: Session,
    table: str,
    whose: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> None:
    name = session.grammar.name
    if rows:
        session.execute_many(
            session.grammar.insert(name(table), [*map(name, (*_WHOSE, *columns))]),
            [(*whose, *row) for row in rows],
        )


def _write_rows(position: StreamPosition) -> list[tuple[object, ...]]:
    kinds: Mapping[str, Mapping[TopicPartition, int]] = {
        _AT: position.offsets,
        _START: position.starts,
        _GONE: position.gone,
    }
    ids = {topic: each.hex() for topic, each in position.topic_ids.items()}
    return [
        (each.topic, each.partition, kind, offset, ids.get(each.topic), position.leader_epochs.get(each))
        for kind, offsets in kinds.items()
        for each, offset in sorted(offsets.items())
    ]


def _parse_rows(rows: list[tuple[Any, ...]]) -> StreamPosition:
    found: dict[str, dict[TopicPartition, int]] = {_AT: {}, _START: {}, _GONE: {}}
    ids: dict[str, bytes] = {}
    epochs: dict[TopicPartition, int] = {}
    for topic, partition, kind, offset, topic_id, epoch in rows:
        each = TopicPartition(topic, int(partition))
        found[kind][each] = int(offset)
        if topic_id is not None:
            ids[topic] = bytes.fromhex(topic_id)
        if epoch is not None:
            epochs[each] = int(epoch)
    return StreamPosition(found[_AT], ids, epochs, found[_START], found[_GONE])


def _make_tables(session: Session) -> None:
    name, end = session.grammar.name, session.grammar.table_end
    # MySQL's TEXT holds at most 64 KiB, and a position of a few thousand partitions is longer.
    long_text = "MEDIUMTEXT" if session.dialect == "mysql" else "TEXT"
    kinds = {
        **{"namespace": "VARCHAR(200)", "stream": "VARCHAR(200)", "topic": "VARCHAR(249)"},
        **{"state": "VARCHAR(8)", "topic_id": "VARCHAR(32)"},
        **dict.fromkeys(("who", "verb", "position_before", "position_after"), long_text),
    }
    optional = {"topic_id", "leader_epoch"}
    for table, columns, key in (
        (STREAMS, ("saves",), ()),
        (OFFSETS, _ROW, _ROW[:3]),
        (CHANGES, _CHANGE, _CHANGE[:1]),
    ):
        lines = [
            f"{name(column)} {kinds.get(column, 'BIGINT')}{'' if column in optional else ' NOT NULL'}"
            for column in (*_WHOSE, *columns)
        ]
        lines.append(f"PRIMARY KEY ({', '.join(map(name, (*_WHOSE, *key)))})")
        session.execute(f"CREATE TABLE IF NOT EXISTS {name(table)} ({', '.join(lines)}){end}")


_TABLES = TableSet("offsets", VERSION, _make_tables, "offset store", "OFFSETS_TOO_NEW")
