"""Finds records that a stream was moved past by hand, so that they have no rows: never read, or deleted.

Rule: such a gap was asked for, so it is a note, not a finding. What the stream had read before (and was not
deleted), has read since, or has yet to read is not a gap.

>>> from penstock.core.model import TopicPartition
>>> from penstock.core.offsets.stream_position import StreamPosition
>>> there, further = (StreamPosition({TopicPartition("t", 0): each}) for each in (5, 9))
>>> facts = StreamFacts("s", 2, further.offsets, changes=(Change(0, "ann", "skip", there, further),))
>>> check_gaps(facts).notes[0]
's: moved ahead by hand (ann did `skip` at 1970-01-01 00:00:00 UTC), past t-0 [5, 9): never read, so no rows.'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.core.audit.audit_report import NotedRange, Report, StreamFacts, TableBook
from penstock.core.audit.replaced_logs import is_other_log
from penstock.core.audit.tables_after_rewinds import FAR, describe_ranges, subtract_ranges, unite_ranges
from penstock.core.model import OffsetRange
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.prose import write_moment


def check_gaps(facts: StreamFacts) -> Report:
    """Return a note for each move ahead that left records unread, or deleted rows unreplaced."""
    notes = []
    for number, change in enumerate(facts.changes):
        passed = list(_list_passed(change))
        unread = subtract_ranges(passed, _list_read(facts, number, None))
        if unread:
            notes.append(
                f"{_describe_move(facts, change)} {describe_ranges(unread)}: never read, so no rows."
            )
        for table in facts.books:
            gone = subtract_ranges(passed, [*_list_read(facts, number, table), *unread])
            if gone:
                notes.append(
                    f"{_describe_move(facts, change)} {describe_ranges(gone)}: a rewind had deleted the rows "
                    f"of {table.name}, and they were not read again."
                )
    return Report(notes=tuple(notes))


def _describe_move(facts: StreamFacts, change: Change) -> str:
    when = write_moment(change.at_ms)
    return f"{facts.stream}: moved ahead by hand ({change.who} did `{change.verb}` at {when} UTC), past"


def _list_passed(change: Change) -> Iterator[OffsetRange]:
    """Yield the ranges that the move passed over within the same log."""
    if change.before is None:
        return
    stood = change.before.stands
    for each, after in sorted(change.after.offsets.items()):
        before = stood.get(each, after)
        if before < after and not is_other_log(each.topic, [change]):
            yield OffsetRange(each.topic, each.partition, before, after)


def _list_read(facts: StreamFacts, number: int, table: TableBook | None) -> list[OffsetRange]:
    """Return what the stream has read or will read of the logs that the move of this number found.

    With a table, leave out what was deleted from it later.
    """
    read = []
    for noted in facts.ranges:
        opened = noted.generation - 1  # moves made before this range was read
        between = facts.changes[number + 1 : opened] if opened > number else facts.changes[opened:number]
        if not is_other_log(noted.range.topic, between):
            read.append(noted.range if table is None else _cut(facts, noted, table))
    for each, at in facts.position.items():
        if not is_other_log(each.topic, facts.changes[number + 1 :]):
            read.append(OffsetRange(each.topic, each.partition, at, FAR))
    return unite_ranges(read)


def _cut(facts: StreamFacts, noted: NotedRange, table: TableBook) -> OffsetRange:
    """Return the part of a range whose rows no later rewind has deleted from the table."""
    each = noted.range
    if len(facts.changes) != facts.generation - 1:
        return each  # the move that opened each generation is unknown
    later = [
        facts.changes[generation - 2].after.offsets.get(each.topic_partition, each.until)
        for generation in table.deleted | table.emptied
        if generation > noted.generation
    ]
    return replace(each, until=max(each.start, min([each.until, *later])))
