"""The sink's ledger: which writer a stream has, how far its results go, and what each batch was.

Rule: one row per stream says who may publish, one row per partition how far the results go. They are read and
written only inside the transaction that holds the stream's writer row, so two of them never mix. What was
published is noted too (batches, the ranges they came from, what went into each table) for audits and rewinds.

    ensure_tables(session, LEDGER)
    epoch = lock_writer(session, "visits")
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.model import TopicPartition
from penstock.core.sinks.ledger_rules import LedgerEntry
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.connections.versioned_tables import TableSet

LEDGER_VERSION = 1
WRITERS = "penstock_sink_writers"
POSITIONS = "penstock_sink_positions"
BATCHES = "penstock_sink_batches"
RANGES = "penstock_sink_ranges"
TABLES = "penstock_sink_tables"
DIGESTS = "penstock_sink_digests"

_ENTRY = ("next_offset", "topic_id", "token", "leader_epoch", "is_gone", "batch_name")
_KEY = ("stream", "topic", "partition_id")


def _make_tables(session: Session) -> None:
    grammar = session.grammar
    text, token = grammar.key_text, "TEXT" if grammar.key_text == "TEXT" else "VARCHAR(64)"
    short = "TEXT" if grammar.key_text == "TEXT" else "VARCHAR(127)"  # a key in MySQL has 3072 bytes
    for table, columns, key in (
        (WRITERS, f"stream {text}, epoch BIGINT, owner TEXT, generation BIGINT, taken_ms BIGINT", "stream"),
        (
            POSITIONS,
            f"stream {text}, topic {text}, partition_id BIGINT, next_offset BIGINT, topic_id TEXT, "
            f"token TEXT, leader_epoch BIGINT NULL, is_gone SMALLINT, batch_name TEXT",
            "stream, topic, partition_id",
        ),
        (
            BATCHES,
            f"stream {text}, token {token}, generation BIGINT, epoch BIGINT, batch_name TEXT, "
            "published_ms BIGINT, row_count BIGINT, batch_count BIGINT",
            "stream, token",
        ),
        (
            RANGES,
            f"stream {text}, token {token}, topic {text}, partition_id BIGINT, generation BIGINT, "
            "start_offset BIGINT, until_offset BIGINT",
            "stream, token, topic, partition_id, start_offset",
        ),
        (
            TABLES,
            f"stream {text}, token {token}, table_name {short}, write_mode TEXT, row_count BIGINT",
            "stream, token, table_name",
        ),
        (
            DIGESTS,
            f"stream {text}, token {token}, table_name {short}, topic {text}, partition_id BIGINT, "
            "row_count BIGINT, offset_sum BIGINT, offset_mix BIGINT",
            "stream, token, table_name, topic, partition_id",
        ),
    ):
        listed = ", ".join(
            column if column.endswith("NULL") else f"{column} NOT NULL" for column in columns.split(", ")
        )
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {table} ({listed}, PRIMARY KEY ({key})){grammar.table_end}"
        )


LEDGER = TableSet("sink", LEDGER_VERSION, _make_tables, "sink's ledger", "SINK_LEDGER_TOO_NEW")


def lock_writer(session: Session, stream: str) -> int:
    """Lock the stream's writer row until the transaction ends; return its epoch, 0 if it was just created."""
    mark, hold = session.grammar.mark, "" if session.dialect == "sqlite" else " FOR UPDATE"
    question = f"SELECT epoch FROM {WRITERS} WHERE stream = {mark}{hold}"
    found = session.execute(question, [stream])
    if not found:
        columns = ("stream", "epoch", "owner", "generation", "taken_ms")
        session.execute(session.grammar.insert_missing(WRITERS, columns), [stream, 0, "", 1, 0])
        found = session.execute(question, [stream])
    return int(found[0][0])


def raise_epoch(session: Session, stream: str, epoch: int, owner: str, now_ms: int) -> None:
    mark = session.grammar.mark
    session.execute(
        f"UPDATE {WRITERS} SET epoch = {mark}, owner = {mark}, taken_ms = {mark} WHERE stream = {mark}",
        [epoch, owner, now_ms, stream],
    )


def read_generation(session: Session, stream: str) -> int:
    """Return the generation under which the stream's batches are noted; each move by hand raises it."""
    mark = session.grammar.mark
    found = session.execute(f"SELECT generation FROM {WRITERS} WHERE stream = {mark}", [stream])
    return int(found[0][0])


def was_moved(session: Session, stream: str) -> bool:
    """Return whether the stream was ever moved by hand."""
    question = f"SELECT 1 FROM {WRITERS} WHERE stream = {session.grammar.mark} AND generation > 1"
    return bool(session.execute(question, [stream]))


def read_entries(session: Session, stream: str, *, locked: bool = True) -> dict[TopicPartition, LedgerEntry]:
    """Return all entries of the stream, by default locked until the transaction ends."""
    hold = " FOR UPDATE" if locked and session.dialect != "sqlite" else ""
    rows = session.execute(
        f"SELECT topic, partition_id, {', '.join(_ENTRY)} FROM {POSITIONS} "
        f"WHERE stream = {session.grammar.mark}{hold}",
        [stream],
    )
    return {
        TopicPartition(topic, int(partition)): LedgerEntry(
            int(offset), bytes.fromhex(topic_id) if topic_id else None, token, epoch, bool(is_gone), batch
        )
        for topic, partition, offset, topic_id, token, epoch, is_gone, batch in rows
    }


def write_entries(
    session: Session, stream: str, entries: tuple[tuple[TopicPartition, LedgerEntry], ...]
) -> None:
    grammar = session.grammar
    upsert = grammar.upsert(_KEY, [f"{each} = {grammar.new(each)}" for each in _ENTRY])
    session.execute_many(
        f"{grammar.insert(POSITIONS, (*_KEY, *_ENTRY))} {upsert}",
        [
            (
                stream,
                each.topic,
                each.partition,
                entry.offset,
                (entry.topic_id or b"").hex(),
                entry.token,
                entry.leader_epoch,
                int(entry.is_gone),
                entry.batch,
            )
            for each, entry in entries
        ],
    )


def delete_batches(session: Session, tables: Iterable[str], stream: str, tokens: Iterable[str]) -> None:
    """Delete the rows of these batches of the stream from these tables."""
    mark, rows = session.grammar.mark, [(stream, token) for token in tokens]
    for table in tables:
        session.execute_many(f"DELETE FROM {table} WHERE stream = {mark} AND token = {mark}", rows)


def delete_entries(session: Session, stream: str, forgotten: tuple[TopicPartition, ...]) -> None:
    mark = session.grammar.mark
    session.execute_many(
        f"DELETE FROM {POSITIONS} WHERE stream = {mark} AND topic = {mark} AND partition_id = {mark}",
        [(stream, each.topic, each.partition) for each in forgotten],
    )
