"""Finds which records a sink's table holds, and which more than once: a rewound stream repeats records.

Rule: what a repeat does depends on how the table is written. `append` gets the rows a second time. `upsert`
replaces them, and is as before once the stream has caught up. `merge` and `state` add to what is there: their
rows count the records twice, nothing in a row shows it, and only rebuilding the table from its first record
repairs it.

A table holds the offsets of all batches that put rows into it since it was last emptied. Generations
distinguish repeats: within one generation, each offset comes once.

>>> book = TableBook("totals", "merge", frozenset({"a", "b"}))
>>> noted = [NotedRange("a", 1, OffsetRange("t", 0, 0, 9)), NotedRange("b", 2, OffsetRange("t", 0, 6, 12))]
>>> find_repeats(list_held(book, noted), ())
[(2, OffsetRange(topic='t', partition=0, start=6, until=9))]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core.audit.audit_report import (
    LEDGER,
    LOGS_ANEW,
    Finding,
    Notebook,
    NotedRange,
    Report,
    StreamFacts,
    TableBook,
)
from penstock.core.audit.replaced_logs import (
    find_adoption,
    is_other_log,
    list_adopted,
    list_current,
    list_lost,
)
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.prose import shorten, write_moment

#: Modes whose rows add up many records. `mixed` means several modes, at least one of which is one of these.
ADDING = frozenset({"merge", "state", "mixed"})
#: Modes that never add to an existing row.
_PLAIN = frozenset({"append", "upsert"})
#: Beyond the end of any log.
FAR = 2**63 - 1
#: The most ranges that a sentence names one by one.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What a rebuild of a table must read: each partition from one offset up to another.

    `lost` are partitions of which another log was read, too, whose records cannot be read again. `adopted`
    are partitions whose records were read from a topic before it was adopted: only a person's word says that
    they can be read again.
    """

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    lost: tuple[TopicPartition, ...] = ()
    adopted: tuple[TopicPartition, ...] = ()


def list_held(book: TableBook, ranges: Iterable[NotedRange]) -> list[NotedRange]:
    """Return the ranges whose records the table holds: those of batches since it was last emptied."""
    since = max(book.emptied, default=0)
    return [
        each for each in ranges if each.generation >= since and each.token in book.tokens and each.range.size
    ]


def find_repeats(
    held: Sequence[NotedRange], changes: Sequence[Change], *, trusts_adoption: bool = True
) -> list[tuple[int, OffsetRange]]:
    """Return the ranges that a generation read again, each with the number of that generation.

    `changes` holds all moves by hand in order, or none if they are not known. With `trusts_adoption`, an
    adopted topic has the same records, as its adopter said; without it, the topic counts as another log.
    """
    found: list[tuple[int, OffsetRange]] = []
    for generation in sorted({each.generation for each in held}):
        opened = changes[generation - 2] if 2 <= generation <= len(changes) + 1 else None
        if opened is not None and opened.verb == "adopt":
            continue  # a mirror that ended earlier: other records are written there now
        before = []
        for each in held:
            between = changes[each.generation - 1 : generation - 1]
            is_other = is_other_log(each.range.topic, between)
            if not trusts_adoption and find_adoption(each.range.topic, between) is not None:
                is_other = True
            if each.generation < generation and not is_other:
                before.append(each.range)
        again = unite_ranges(each.range for each in held if each.generation == generation)
        found += [(generation, each) for each in intersect_ranges(unite_ranges(before), again)]
    return found


def join_modes(modes: Iterable[str]) -> str:
    """Return the mode of a table written in these modes; joined modes can be joined again.

    That is `mixed` if one of several adds to rows, else their names, and empty if there are none.
    """
    parts = {part for mode in modes for part in mode.split("+")}
    return "+".join(sorted(parts)) if parts <= _PLAIN or len(parts) == 1 else "mixed"


def list_repeated(
    book: TableBook, ranges: Iterable[NotedRange], changes: Sequence[Change], position: StreamPosition
) -> list[OffsetRange]:
    """Return the ranges that the table holds and that the stream reads again from this position on.

    `changes` holds all moves by hand in order, up to the one in question. Ranges that a person has allowed
    the table to count twice are left out.
    """
    allowed = max(book.allowed, default=1)
    marks = find_marks(changes[allowed - 1 :], position)
    again = [
        OffsetRange(each.topic, each.partition, at, until)
        for each, at in sorted(position.offsets.items())
        if (until := marks.get(each, at)) > at
    ]
    held = list_current(list_held(book, ranges), changes)
    return intersect_ranges(unite_ranges(each.range for each in held), again)


def find_marks(changes: Sequence[Change], position: StreamPosition) -> dict[TopicPartition, int]:
    """Return how far each partition of the present logs was read before these moves.

    A stream that is before its mark was taken back and has not caught up.
    """
    marks: dict[TopicPartition, int] = {}
    ids: dict[str, bytes] = {}
    for change in changes:
        stood: Mapping[TopicPartition, int] = {}
        if change.before is not None:
            stood = change.before.stands
            marks = _keep_same_logs(marks, ids, change.before)
        for each, offset in stood.items():
            marks[each] = max(offset, marks.get(each, offset))
        for each, after in change.after.offsets.items():
            is_cut = change.verb == "adopt" and after < stood.get(each, after)  # a mirror that ended earlier
            if is_cut or is_other_log(each.topic, [change]):
                marks[each] = after
            marks.setdefault(each, FAR)  # how far it was read is unknown
        ids |= change.after.topic_ids
    return _keep_same_logs(marks, ids, position)


def _keep_same_logs(
    marks: Mapping[TopicPartition, int], ids: Mapping[str, bytes], position: StreamPosition
) -> dict[TopicPartition, int]:
    """Return the marks without those of topics that were recreated while the stream ran."""
    now = position.topic_ids
    return {
        each: mark
        for each, mark in marks.items()
        if None in (ids.get(each.topic), now.get(each.topic)) or ids[each.topic] == now[each.topic]
    }


def plan_rebuild(held: Sequence[NotedRange], changes: Sequence[Change]) -> Rebuild:
    """Return what a stream must read to refill the table: from where it began to where it ends."""
    starts: dict[TopicPartition, int] = {}
    until: dict[TopicPartition, int] = {}
    for each in held:
        partition = each.range.topic_partition
        starts[partition] = min(each.range.start, starts.get(partition, each.range.start))
        until[partition] = max(each.range.until, until.get(partition, 0))
    lost = {each.topic_partition for each in list_lost(held, changes)}
    adopted = {each.topic_partition for each in list_adopted(held, changes)}
    return Rebuild(starts, until, tuple(sorted(lost)), tuple(sorted(adopted - lost)))


def check_repeats(facts: StreamFacts, losses: Sequence[Loss] | None) -> Report:
    """Check that each table holds each record once, over all generations."""
    book = Notebook()
    knows_moves = len(facts.changes) == facts.generation - 1
    anew = {
        TopicPartition(each.topic, each.partition) for each in losses or () if each.condition in LOGS_ANEW
    }
    changes = facts.changes if knows_moves else ()
    for table in facts.books:
        held = list_held(table, facts.ranges)
        repeats = find_repeats(held, changes)
        sure = find_repeats(held, changes, trusts_adoption=False)
        unknown = sorted({each.topic_partition for _, each in repeats} & anew)
        if unknown:
            named = ", ".join(map(str, unknown))
            book.unchecked.append(f"{table.name}: whether it holds records of {named} twice; see above.")
        needed = plan_rebuild(held, changes)
        remedy = _advise_rebuild(facts.stream, table, can_rebuild=not (needed.lost or needed.adopted))
        for generation in sorted({number for number, _ in repeats}):
            mine = [each for number, each in sure if number == generation]
            every = [each for number, each in repeats if number == generation]
            for some, word in (
                (mine, ""),
                (subtract_ranges(every, mine), _describe_adoption(every, changes)),
            ):
                some = [each for each in some if each.topic_partition not in anew]
                if some:
                    _judge(book, facts.stream, table, generation, some, remedy, word)
    return book.report()


def _advise_rebuild(stream: str, table: TableBook, *, can_rebuild: bool) -> str:
    if not can_rebuild:
        return (
            "It cannot be rebuilt: it holds records of a topic that was recreated or adopted since, and "
            "these may be gone. Let a stream of another name fill a new table."
        )
    return (
        f"To rebuild it, stop the stream and run `penstock offsets rewind ... {stream} --to-start "
        f"--rebuild {table.name}`, with --delete-from or --rebuild for the stream's other tables; or let a "
        "stream of another name fill a new table."
    )


def _describe_adoption(ranges: Sequence[OffsetRange], changes: Sequence[Change]) -> str:
    """Return a clause with who said that these records are the same, or "" if nobody had to."""
    adopted = [(each.topic, change) for each in ranges if (change := find_adoption(each.topic, changes))]
    if not adopted:
        return ""
    topic, change = adopted[0]
    return describe_adoption(topic, change)


def describe_adoption(topic: str, change: Change) -> str:
    """Return a clause with who said that a topic has the same records as the one before it."""
    when = write_moment(change.at_ms)
    return f"{topic} was adopted ({change.who} at {when} UTC) as one that holds the same records as before"


def _judge(
    book: Notebook,
    stream: str,
    table: TableBook,
    generation: int,
    repeated: Sequence[OffsetRange],
    remedy: str,
    word: str,
) -> None:
    """Add the finding or note for repeated ranges; `word` says why unproven records count as the same."""
    named = describe_ranges(repeated)
    doubt = f" That holds if they are the same records: {word}." if word else ""
    if table.mode in ADDING and word:
        what = (
            f"its rows (mode {table.mode}) count {named} twice, if these are the same records: {word}, and "
            f"{stream} was taken back since. If the topic holds other records, each counts once and nothing "
            f"needs repair. {remedy}"
        )
        book.findings.append(Finding("SUMS_COUNT_TWICE", table.name, what, LEDGER, generation))
    elif table.mode in ADDING:
        what = (
            f"its rows (mode {table.mode}) count {named} twice: {stream} was taken back, and what it read "
            f"again was added to what was there. {remedy}"
        )
        book.findings.append(Finding("SUMS_COUNT_TWICE", table.name, what, LEDGER, generation))
    elif table.mode == "upsert":
        book.notes.append(
            f"{table.name}: {named} was written again in generation {generation}. Rows of an upsert end as "
            f"they were if the program is the same; see the guide on delivery.{doubt}"
        )
    elif not table.keeps_provenance:
        book.notes.append(
            f"{table.name}: {named} was written again in generation {generation}, and rows that the rewind "
            f"left are there twice.{doubt}"
        )


def describe_ranges(ranges: Sequence[OffsetRange]) -> str:
    """Return the ranges in words."""
    told = [f"{each.topic_partition} [{each.start}, {each.until})" for each in ranges]
    return shorten(told, _SHOWN, "ranges more")


# --- ranges -----------------------------------------------------------------------------------------------


def unite_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets that are in any of these ranges, as the fewest ranges, in order."""
    united: list[OffsetRange] = []
    for each in sorted(ranges):
        last = united[-1] if united else None
        if last is not None and last.topic_partition == each.topic_partition and each.start <= last.until:
            until = max(last.until, each.until)
            united[-1] = OffsetRange(last.topic, last.partition, last.start, until)
        elif each.size:
            united.append(each)
    return united


def intersect_ranges(some: Iterable[OffsetRange], others: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets that are in both."""
    both = [
        OffsetRange(one.topic, one.partition, max(one.start, other.start), min(one.until, other.until))
        for one in some
        for other in others
        if one.topic_partition == other.topic_partition
        and max(one.start, other.start) < min(one.until, other.until)
    ]
    return sorted(both)


def subtract_ranges(some: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets that are only in the first ranges."""
    left = unite_ranges(some)
    for other in others:
        left = [
            part
            for one in left
            for part in (
                [
                    replace(one, until=min(one.until, max(one.start, other.start))),
                    replace(one, start=max(one.start, min(one.until, other.until))),
                ]
                if one.topic_partition == other.topic_partition and other.size
                else [one]
            )
            if part.size
        ]
    return left


def list_awaited(streams: Iterable[StreamFacts]) -> list[OffsetRange]:
    """Return what these streams have read and will read again, because they were taken back.

    What one of them has read again already is left out.
    """
    ahead, behind = [], []
    for stream in streams:
        for noted in list_current(stream.ranges, stream.changes):
            each = noted.range
            at = min(each.until, max(each.start, stream.position.get(each.topic_partition, each.until)))
            ahead.append(replace(each, start=at))
            behind.append(replace(each, until=at))
    return subtract_ranges(ahead, unite_ranges(behind))
