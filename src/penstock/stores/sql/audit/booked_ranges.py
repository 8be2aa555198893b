"""What the books say a table holds from an offset on, and what is booked out when those rows are deleted.

Rule: where a table holds what was booked, the rows found are booked out. Otherwise rows were lost, or added
by others. A batch wholly beyond the offset is booked out as it was booked, since its rows come back. Of a
batch that began before the offset, only the rows found beyond it are booked out, and rows it lacks below stay
missing for an audit. Where batches overlap, duplicates cannot be told apart, and the rows found are booked
out.

    going = digest_booked(session, target, "raw", accounts, ranges, changes, (TopicPartition("t", 0), 40))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock.core.audit.audit_report import NotedRange
from penstock.core.audit.tables_after_rewinds import FAR
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.sinks.offset_digests import OffsetDigest, sum_digests
from penstock.stores.sql.audit.provenance_digests import digest_range
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger.batch_accounts import DELETED, Account, make_books, parse_move_token
from penstock.stores.sql.sink.target_tables import Target


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a batch read of one partition, as far as its rows were not deleted since. `digest` covers all that
    it wrote; it is None if some of that was deleted."""

    range: OffsetRange
    digest: OffsetDigest | None


def digest_booked(
    session: Session,
    target: Target,
    table: str,
    accounts: Mapping[str, Sequence[Account]],
    ranges: Sequence[NotedRange],
    changes: Sequence[Change],
    start: tuple[TopicPartition, int],
) -> OffsetDigest:
    """Return the digest of the rows of one partition, from this offset on, that the table must hold.
    `accounts` are the stream's, by token; `changes` are its moves by hand, in order."""
    partition, offset = start
    beyond_all = OffsetRange(partition.topic, partition.partition, offset, FAR)
    mine = sum_digests(each.digests for some in accounts.values() for each in some if each.table == table)
    if mine.get(partition) == digest_range(session, target.quoted, replace(beyond_all, start=0)):
        return digest_range(session, target.quoted, beyond_all)
    pieces = _list_pieces(table, accounts, ranges, changes, partition)
    beyond = [each for each in pieces or () if each.range.until > offset]
    if pieces is None or any(one.range.until > other.range.start for one, other in pairwise(beyond)):
        return digest_range(session, target.quoted, beyond_all)
    booked = OffsetDigest()
    for each in beyond:
        if each.digest is not None and each.range.start >= offset:
            booked += each.digest
        else:
            there = replace(each.range, start=max(offset, each.range.start))
            booked += digest_range(session, target.quoted, there)
    return booked


def _list_pieces(
    table: str,
    accounts: Mapping[str, Sequence[Account]],
    ranges: Sequence[NotedRange],
    changes: Sequence[Change],
    partition: TopicPartition,
) -> list[_Piece] | None:
    """Return the pieces in order; None if it is not known what was deleted before."""
    book = next((each for each in make_books(accounts) if each.name == table), None)
    if book is None:
        return None
    since = max(book.emptied, default=0)
    cuts: dict[int, int] = {}
    for token, some in accounts.items():
        if any(each.table == table and each.mode == DELETED for each in some):
            generation = parse_move_token(token)
            if generation is None or generation - 2 >= len(changes):
                return None
            cuts[generation] = changes[generation - 2].after.offsets.get(partition, FAR)
    spans: dict[tuple[str, int], OffsetRange] = {}
    for each in ranges:
        if each.token in book.tokens and each.generation >= since and each.range.topic_partition == partition:
            known = spans.get((each.token, each.generation), each.range)
            start, until = min(known.start, each.range.start), max(known.until, each.range.until)
            spans[each.token, each.generation] = replace(known, start=start, until=until)
    pieces = []
    for (token, generation), span in spans.items():
        until = min([span.until, *(cut for later, cut in cuts.items() if later > generation)])
        mine = sum_digests(each.digests for each in accounts[token] if each.table == table)
        if until == span.until:
            pieces.append(_Piece(span, mine.get(partition, OffsetDigest())))
        elif until > span.start:
            pieces.append(_Piece(replace(span, until=until), None))
    return sorted(pieces, key=lambda each: each.range)
