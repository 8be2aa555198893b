"""Records what was published when, and from which offsets: for audits and rewinds, and kept small.

Rule: it serves only to answer questions. It is written in the publishing transaction, so it is as accurate as
the results. Old batches are merged: adjacent ranges are joined and counts are added up. So after years there
is still only one row per partition and gap.

    for each in select_history(session, "visits").ranges: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.core.audit.audit_report import NotedRange
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.sinks.ledger_rules import LedgerBatch
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger.batch_accounts import merge_accounts
from penstock.stores.sql.ledger.ledger_tables import BATCHES, RANGES, delete_batches, read_generation

#: Batches that are kept one by one, and how many more there may be before the rest is merged.
KEPT_BATCHES = 1000
MERGE_EVERY = 1000

_BATCH = ("token", "generation", "epoch", "batch_name", "published_ms", "row_count", "batch_count")
_RANGE = ("token", "generation", "topic", "partition_id", "start_offset", "until_offset")


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """One transaction, or `batches` merged ones: the rows they wrote, and when the last one was published."""

    token: str
    generation: int
    epoch: int
    name: str
    published_ms: int
    rows: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class History:
    """All that is known about a stream's batches, the oldest first."""

    batches: tuple[PublishedBatch, ...]
    ranges: tuple[NotedRange, ...]


def note_batch(session: Session, batch: LedgerBatch, epoch: int, now_ms: int) -> None:
    """Insert the batch and the ranges that it read, in the transaction that publishes it."""
    generation = read_generation(session, batch.stream)
    rows = sum(stage.rows for stage in batch.stages)
    _insert_batches(
        session, batch.stream, [PublishedBatch(batch.token, generation, epoch, batch.name, now_ms, rows)]
    )
    ranges = [
        (each.partition, each.start if each.read_from is None else each.read_from, each.until)
        for each in batch.moves
        if each.until != each.start or each.read_from is not None
    ]
    if rows and not ranges:
        # These are results of records read before, such as waiting state: note the stream's position.
        ranges = [(each.partition, each.until, each.until) for each in batch.moves if not each.is_forgotten]
    _insert_ranges(
        session,
        batch.stream,
        [
            NotedRange(batch.token, generation, OffsetRange(each.topic, each.partition, start, until))
            for each, start, until in ranges
        ],
    )


def merge_history(session: Session, stream: str, keep: int) -> None:
    """Merge all but the newest `keep` batches, generation by generation."""
    history = select_history(session, stream)
    old = history.batches[: max(0, len(history.batches) - keep)]
    for generation in sorted({each.generation for each in old}):
        batches = [each for each in old if each.generation == generation]
        if len(batches) < 2:
            continue
        tokens = {each.token for each in batches}
        ranges = join_ranges(each.range for each in history.ranges if each.token in tokens)
        if len({(each.topic_partition, each.start) for each in ranges}) < len(ranges):
            # The stream has read the same offsets again, so these batches stay unmerged.
            continue
        last = batches[-1]
        merged = replace(
            last,
            rows=sum(each.rows for each in batches),
            batches=sum(each.batches for each in batches),
        )
        delete_batches(session, (BATCHES, RANGES), stream, tokens)
        _insert_batches(session, stream, [merged])
        _insert_ranges(session, stream, [NotedRange(last.token, generation, each) for each in ranges])
        merge_accounts(session, stream, tokens, into=last.token)


def join_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges in the order they were read, with adjacent ones joined."""
    joined: dict[TopicPartition, list[OffsetRange]] = {}
    for each in ranges:
        mine = joined.setdefault(each.topic_partition, [])
        if mine and mine[-1].until == each.start and each.until >= each.start:
            mine[-1] = replace(mine[-1], until=each.until)
        else:
            mine.append(each)
    return [each for some in joined.values() for each in some]


# --- rows -------------------------------------------------------------------------------------------------


def select_history(session: Session, stream: str) -> History:
    """Return what the ledger knows about a stream's batches, read in this transaction."""
    where = f"WHERE stream = {session.grammar.mark}"
    batches = [
        PublishedBatch(*row)
        for row in session.execute(f"SELECT {', '.join(_BATCH)} FROM {BATCHES} {where}", [stream])
    ]
    batches.sort(key=lambda each: (each.generation, each.epoch, each.published_ms))
    order = {each.token: number for number, each in enumerate(batches)}
    ranges = [
        NotedRange(token, generation, OffsetRange(topic, partition, start, until))
        for token, generation, topic, partition, start, until in session.execute(
            f"SELECT {', '.join(_RANGE)} FROM {RANGES} {where}", [stream]
        )
    ]
    ranges.sort(key=lambda each: (order.get(each.token, 0), each.range))
    return History(tuple(batches), tuple(ranges))


def _insert_batches(session: Session, stream: str, batches: Sequence[PublishedBatch]) -> None:
    session.execute_many(
        session.grammar.insert(BATCHES, ("stream", *_BATCH)),
        [
            (
                stream,
                *(each.token, each.generation, each.epoch, each.name, each.published_ms),
                *(each.rows, each.batches),
            )
            for each in batches
        ],
    )


def _insert_ranges(session: Session, stream: str, ranges: Sequence[NotedRange]) -> None:
    session.execute_many(
        session.grammar.insert(RANGES, ("stream", *_RANGE)),
        [
            (
                stream,
                *(each.token, each.generation, each.range.topic, each.range.partition),
                *(each.range.start, each.range.until),
            )
            for each in ranges
        ],
    )
