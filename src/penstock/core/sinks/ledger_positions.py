"""The moves of a ledger from one position of a stream to the next, and the position in a ledger.

Rule: the ledger is compared with what the stream knew (`before`), not with where reading began: these differ
when losses were skipped, and a ledger at the later one was moved by another program. Every partition of a
batch is in the ledger, moved or not. So a batch in which nothing moves also leaves its token, and a batch
without an answer can be distinguished from one that never ran.

>>> one = TopicPartition("t", 0)
>>> end = StreamPosition({one: 9}, starts={one: 7})
>>> plan_ledger_moves(StreamPosition({one: 5}), end, {one: LedgerEntry(5)})[0].read_from
7
"""

from __future__ import annotations

from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.ledger_rules import Ledger, LedgerEntry, LedgerMove


def plan_ledger_moves(before: StreamPosition, end: StreamPosition, known: Ledger) -> tuple[LedgerMove, ...]:
    """Return the moves of a batch between these positions; `known` is the ledger that the stream last saw."""
    moved = [_plan(each, before, end, each in known) for each in sorted({*end.offsets, *end.gone})]
    left = sorted(set(known) - set(end.offsets) - set(end.gone))
    return (*moved, *(_forget(each, before, known[each]) for each in left))


def _plan(each: TopicPartition, before: StreamPosition, end: StreamPosition, is_known: bool) -> LedgerMove:
    stood = before.offsets.get(each, before.gone.get(each))
    is_gone = each not in end.offsets
    until = end.gone[each] if is_gone else end.offsets[each]
    # Unknown if a stream is only registered, and for new partitions in a batch of Spark's own connector.
    begin = None if is_gone else end.start_of(each, before)
    start = next(known for known in (stood, begin, until) if known is not None)
    return LedgerMove(
        each,
        start,
        until,
        end.topic_ids.get(each.topic),
        is_first=stood is None or not is_known,
        known_id=before.topic_ids.get(each.topic),
        read_from=None if begin in (None, start) else begin,
        leader_epoch=end.leader_epochs.get(each),
        is_gone=is_gone,
    )


def _forget(each: TopicPartition, before: StreamPosition, entry: LedgerEntry) -> LedgerMove:
    stood = before.offsets.get(each, before.gone.get(each, entry.offset))
    return LedgerMove(each, stood, stood, known_id=before.topic_ids.get(each.topic), is_forgotten=True)


def find_ledger_position(ledger: Ledger) -> StreamPosition | None:
    """Return how far the stream's results go, or None if it has published nothing."""
    if not ledger:
        return None
    return StreamPosition(
        offsets={each: entry.offset for each, entry in ledger.items() if not entry.is_gone},
        topic_ids={
            each.topic: entry.topic_id for each, entry in ledger.items() if entry.topic_id is not None
        },
        leader_epochs={
            each: entry.leader_epoch for each, entry in ledger.items() if entry.leader_epoch is not None
        },
        gone={each: entry.offset for each, entry in ledger.items() if entry.is_gone},
    )
