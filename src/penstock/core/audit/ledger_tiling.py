"""Checks whether the ranges that a stream's ledger notes abut, from where the stream began to its position.

Rule: ranges that abut prove little on their own, because the ledger accepts nothing else. Rows that name
their origin prove that they are there once; a second reading of the log proves it best.

The books of a generation begin where the stream was moved to by hand (or, for the first generation, where it
began to read). They end where it was moved from next, or at the position that is stored now.

>>> from penstock.core.audit.audit_report import NotedBatch, NotedRange
>>> noted = (NotedRange("a", 1, OffsetRange("t", 0, 2, 7)),)
>>> facts = StreamFacts("s", 1, {TopicPartition("t", 0): 9}, noted, (NotedBatch("a", 1, 5, 5),))
>>> [each.condition for each in check_tiling(facts, None).findings]
['POSITION_ELSEWHERE']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.core.audit.audit_report import LEDGER, LOGS_ANEW, Finding, Notebook, Report, StreamFacts
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition


def check_tiling(facts: StreamFacts, losses: Sequence[Loss] | None) -> Report:
    """Check that the ranges of each generation abut, from where it began to where it ended."""
    book = Notebook()
    knows_moves = len(facts.changes) == facts.generation - 1
    if not knows_moves:
        book.unchecked.append(
            f"{facts.stream}: where its generations began and ended; it is in generation {facts.generation}, "
            f"and {len(facts.changes)} moves by hand are recorded."
        )
    for generation in range(1, facts.generation + 1):
        begins: Mapping[TopicPartition, int] = {}
        ends: Mapping[TopicPartition, int] | None = facts.position
        if knows_moves and generation > 1:
            begins = facts.changes[generation - 2].after.offsets
        if generation < facts.generation:
            move = facts.changes[generation - 1].before if knows_moves else None
            ends = None if move is None else move.stands
        _tile(book, facts, generation, begins, ends, losses)
    _compare_books(book, facts)
    return book.report()


def _tile(
    book: Notebook,
    facts: StreamFacts,
    generation: int,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None,
    losses: Sequence[Loss] | None,
) -> None:
    pieces: dict[TopicPartition, list[OffsetRange]] = {each: [] for each in ends or ()}
    for noted in facts.ranges:
        if noted.generation == generation:
            pieces.setdefault(noted.range.topic_partition, []).append(noted.range)
    for partition, mine in sorted(pieces.items()):
        lost = [each for each in losses or () if TopicPartition(each.topic, each.partition) == partition]
        again = next((why for each in lost if (why := LOGS_ANEW.get(each.condition))), None)
        if again is not None:
            book.unchecked.append(
                f"{partition}: whether its ranges abut in generation {generation}: {again}, and offsets came "
                "again."
            )
            continue
        faults = len(book.findings)
        mine.sort(key=lambda each: (each.start, each.until))
        first = mine[0].start if mine else (ends or {}).get(partition, 0)
        at = _follow(book, facts, generation, mine, begins.get(partition, first), lost, losses is None)
        end = None if ends is None else ends.get(partition)
        if end is None:
            book.unchecked.append(
                f"{partition}: where generation {generation} ended; there are ranges of it and no position."
            )
        elif end != at:
            what = f"the position is {end}, and the noted ranges end at {at}."
            book.findings.append(
                Finding("POSITION_ELSEWHERE", f"{facts.stream} {partition}", what, LEDGER, generation)
            )
        if len(book.findings) == faults and mine:
            book.checked.append(
                f"{facts.stream} {partition}, generation {generation}: {len(mine)} noted ranges abut from "
                f"{mine[0].start} to {at} (evidence: {LEDGER} alone, which accepts nothing else)."
            )


def _follow(
    book: Notebook,
    facts: StreamFacts,
    generation: int,
    mine: Iterable[OffsetRange],
    at: int,
    lost: Sequence[Loss],
    is_ledger_unnamed: bool,
) -> int:
    """Walk along the ranges and return where they end."""
    for each in mine:
        subject = f"{facts.stream} {each.topic_partition}"
        if each.start > at:
            if _is_covered(at, each.start, lost):
                book.notes.append(f"{subject}: [{at}, {each.start}) was lost and stepped over (loss ledger).")
            else:
                advice = (
                    " Name the loss ledger (--losses), which may explain it." if is_ledger_unnamed else ""
                )
                what = f"no batch is noted for [{at}, {each.start}).{advice}"
                book.findings.append(Finding("RANGE_MISSING", subject, what, LEDGER, generation))
        elif min(at, each.until) > each.start:
            what = f"[{each.start}, {min(at, each.until)}) is noted twice."
            book.findings.append(Finding("RANGES_OVERLAP", subject, what, LEDGER, generation))
        at = max(at, each.until)
    return at


def _is_covered(start: int, until: int, lost: Sequence[Loss]) -> bool:
    for each in sorted(lost, key=lambda loss: loss.start):
        if each.start <= start < each.until:
            start = each.until
    return start >= until


def _compare_books(book: Notebook, facts: StreamFacts) -> None:
    """Compare batches, ranges and accounts: one transaction wrote those of each batch."""
    ranged, noted = {each.token for each in facts.ranges}, {each.token for each in facts.batches}
    for batch in facts.batches:
        which = f"the batch {batch.token}"
        if batch.rows and batch.token not in ranged:
            what = f"{which} has {batch.rows} rows and no range that they came from."
            book.findings.append(Finding("RANGE_MISSING", facts.stream, what, LEDGER, batch.generation))
        if batch.rows != batch.booked:
            what = f"{which} has {batch.rows} rows, and {batch.booked} are booked by table."
            book.findings.append(Finding("BOOKS_DISAGREE", facts.stream, what, LEDGER, batch.generation))
    for token in sorted(ranged - noted):
        what = f"ranges are noted for a batch {token}, but the batch itself is not noted."
        book.findings.append(Finding("BOOKS_DISAGREE", facts.stream, what, LEDGER))
