"""What the books of a sink prove and what they do not: from facts to findings.

Rule: every finding names its evidence, and what could not be checked is reported as plainly as what was.
Ranges that abut prove little by themselves, because the ledger accepts nothing else. The proof that rows are
there once is that rows name their origin, and, strongest, a second reading of the log.

The books of a generation begin where the stream was moved to by hand (the first one's where it began to read)
and end where it was moved from next, or at the position that is stored now.

>>> noted = (NotedRange("a", 1, OffsetRange("t", 0, 2, 7)),)
>>> facts = StreamFacts("s", 1, {TopicPartition("t", 0): 9}, noted, (NotedBatch("a", 1, 5, 5),))
>>> [each.condition for each in check_tiling(facts, None).findings]
['POSITION_ELSEWHERE']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.sinks.offset_digests import Digests, HeldOffsets

#: The kinds of evidence for a finding.
LEDGER = "the ledger"
MESSAGES = "row counts in the tasks' messages"
PROVENANCE = "provenance columns"
DIGEST = "digests written at commit"
REREAD = "a second reading of the log"


#: Losses after which a log has the same offsets again, for other records.
LOGS_ANEW: Mapping[str, str] = {
    "TOPIC_RECREATED": "the topic was recreated",
    "LOG_TRUNCATED": "the log was cut off by an unclean election",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that an audit found. `subject`: a stream, a table or a partition."""

    condition: str
    subject: str
    what: str
    evidence: str
    generation: int | None = None

    def __str__(self) -> str:
        which = "" if self.generation is None else f" (generation {self.generation})"
        return f"[{self.condition}] {self.subject}{which}: {self.what} Evidence: {self.evidence}."


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit: findings, checks that passed, notes, and what could not be checked."""

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report(
            self.findings + other.findings,
            self.checked + other.checked,
            self.notes + other.notes,
            self.unchecked + other.unchecked,
        )


@dataclass(slots=True)
class Notebook:
    """A report under construction."""

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def report(self) -> Report:
        return Report(tuple(self.findings), tuple(self.checked), tuple(self.notes), tuple(self.unchecked))


# --- facts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotedBatch:
    """One publishing transaction (or `batches` merged ones): its rows, and the sum booked by table."""

    token: str
    generation: int
    rows: int
    booked: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class NotedRange:
    """Offsets that a batch names as the origin of its rows."""

    token: str
    generation: int
    range: OffsetRange


@dataclass(frozen=True, slots=True)
class TableBook:
    """What the ledger holds of one table of a stream. `tokens`: of the batches that put rows into it.

    `emptied`: the generations that began with the table empty, because a rewind had deleted all its rows.
    `allowed`: those that began with a person's word that records read again may count twice. `deleted`: those
    that began without the rows of what is read again, because a rewind had deleted them.
    """

    name: str
    mode: str
    tokens: frozenset[str]
    emptied: frozenset[int] = frozenset()
    keeps_provenance: bool = False
    allowed: frozenset[int] = frozenset()
    deleted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the ledger holds of one stream.

    `changes`: moves by hand, each of which opened a generation. `topic_ids`: those of the topics that it
    reads now, where known.
    """

    stream: str
    generation: int
    position: Mapping[TopicPartition, int]
    ranges: tuple[NotedRange, ...] = ()
    batches: tuple[NotedBatch, ...] = ()
    changes: tuple[Change, ...] = ()
    books: tuple[TableBook, ...] = ()
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Offsets whose rows differ from those that were published."""

    range: OffsetRange
    booked: int
    held: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The books of one table, and what it holds. None: unknown, or not applicable.

    `booked` rows and `digests` are sums over all `streams` that write it. `kept` is what it holds of each
    partition; `strays` what lies outside all noted ranges; `spoiled` where digests differ, as far as checked.
    """

    name: str
    held: int | None
    booked: int | None = None
    mode: str = ""
    streams: tuple[str, ...] = ()
    kept: Mapping[TopicPartition, HeldOffsets] | None = None
    digests: Digests | None = None
    strays: Mapping[TopicPartition, HeldOffsets] = field(default_factory=dict)
    spoiled: tuple[Spoiled, ...] = ()


@dataclass(frozen=True, slots=True)
class Reread:
    """One partition's noted ranges compared with the log; what lies in `read` was compared offset by offset.

    `awaited`: what a rewound stream has not read again yet. `unread`: how many of its records have no row;
    these are not among the `missing` ones. `of_other_log`: what was read of an earlier topic of the same
    name.
    """

    table: str
    partition: TopicPartition
    read: tuple[OffsetRange, ...] = ()
    aged_out: tuple[OffsetRange, ...] = ()
    beyond: tuple[OffsetRange, ...] = ()
    records: int = 0
    missing: int = 0
    first_missing: tuple[int, ...] = ()
    extra: int = 0
    first_extra: tuple[int, ...] = ()
    problem: str = ""
    awaited: tuple[OffsetRange, ...] = ()
    unread: int = 0
    of_other_log: tuple[OffsetRange, ...] = ()


# --- the ledger by itself -----------------------------------------------------------------------------------


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
            ends = None if move is None else {**move.gone, **move.offsets}
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
                f"{mine[0].start} to {at} (evidence: {LEDGER} alone, which takes nothing else)."
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
    """Walk along the ranges; return where they end."""
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
        what = f"ranges are noted of a batch {token} that is not."
        book.findings.append(Finding("BOOKS_DISAGREE", facts.stream, what, LEDGER))
