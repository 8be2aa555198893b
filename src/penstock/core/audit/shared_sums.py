"""Finds records that two streams have added to one table of sums: both books are right, the sums may not be.

Rule: this is a finding, because nothing in a row shows it. But two streams may fill separate keys on purpose,
which no ledger knows, so the wording leaves it open. The same offsets of two topics with the same name are
different records; a topic whose id is not known counts as the same one.

>>> from penstock.core.audit.audit_report import NotedRange
>>> book = TableBook("totals", "merge", frozenset({"a"}))
>>> noted = (NotedRange("a", 1, OffsetRange("t", 0, 0, 9)),)
>>> one, other = (StreamFacts(each, 1, {}, noted, books=(book,)) for each in ("visits", "visits2"))
>>> [each.condition for each in check_sharing([one], [other], None).findings]
['SUMS_SHARED_BY_STREAMS']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from penstock.core.audit.audit_report import (
    LEDGER,
    LOGS_ANEW,
    Finding,
    Notebook,
    Report,
    StreamFacts,
    TableBook,
)
from penstock.core.audit.replaced_logs import find_adoption, is_other_log, list_cuts
from penstock.core.audit.tables_after_rewinds import (
    ADDING,
    describe_adoption,
    describe_ranges,
    intersect_ranges,
    join_modes,
    list_held,
    subtract_ranges,
    unite_ranges,
)
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition

#: A stream's facts and its book of a table.
_Part = tuple[StreamFacts, TableBook]


def check_sharing(
    streams: Sequence[StreamFacts], others: Sequence[StreamFacts], losses: Sequence[Loss] | None
) -> Report:
    """Return findings for records that these streams have added to tables of sums in duplicate.

    The duplicate comes from another of these streams or from one of the `others`.
    """
    book = Notebook()
    anew = {
        TopicPartition(each.topic, each.partition) for each in losses or () if each.condition in LOGS_ANEW
    }
    for pair in [*combinations(streams, 2), *product(streams, others)]:
        one, other = sorted(pair, key=lambda each: each.stream)
        for mine, its in product(one.books, other.books):
            if mine.name == its.name and {mine.mode, its.mode} <= ADDING:
                _judge(book, (one, mine), (other, its), anew)
    return book.report()


def _judge(book: Notebook, one: _Part, other: _Part, anew: set[TopicPartition]) -> None:
    table, first, second = one[1].name, one[0].stream, other[0].stream
    shared, sure = _find_shared(one, other), _find_shared(one, other, trusts_adoption=False)
    unknown = sorted({each.topic_partition for each in shared} & anew)
    if unknown:
        named = ", ".join(map(str, unknown))
        book.unchecked.append(
            f"{table}: whether {first} and {second} have added the same records of {named}; see above."
        )
    shared = [each for each in shared if each.topic_partition not in anew]
    if shared:
        doubt = _describe_doubt(subtract_ranges(shared, sure), (one[0], other[0]))
        what = (
            f"its rows (mode {join_modes((one[1].mode, other[1].mode))}) got {describe_ranges(shared)} from "
            f"{first} and from {second}. If both add to the same keys, these records count twice, and "
            f"nothing in a row shows it.{doubt} If each stream fills keys of its own, nothing needs repair; "
            "otherwise let one stream, of another name, fill a new table."
        )
        book.findings.append(Finding("SUMS_SHARED_BY_STREAMS", table, what, LEDGER))


def _find_shared(one: _Part, other: _Part, *, trusts_adoption: bool = True) -> list[OffsetRange]:
    """Return what both have read of the same log."""
    others = list(_list_by_log(other, trusts_adoption))
    return unite_ranges(
        shared
        for log, mine in _list_by_log(one, trusts_adoption)
        for shared in intersect_ranges(
            [mine], [its for other_log, its in others if log == other_log or None in (log, other_log)]
        )
    )


def _list_by_log(part: _Part, trusts_adoption: bool) -> Iterator[tuple[bytes | None, OffsetRange]]:
    """Yield the ranges of the stream that the table holds, each with its topic's id, or None if unknown.

    A range is repeated for each topic that was adopted since, up to where that one ended.
    """
    facts, book = part
    changes = facts.changes if len(facts.changes) == facts.generation - 1 else ()
    for each in list_held(book, facts.ranges):
        topic, later = each.range.topic, changes[each.generation - 1 :]
        ids = set[bytes | None]()
        if 2 <= each.generation <= len(changes) + 1:
            ids.add(changes[each.generation - 2].after.topic_ids.get(topic))
        if later:
            ids.add(None if later[0].before is None else later[0].before.topic_ids.get(topic))
        elif each.generation == facts.generation:
            ids.add(facts.topic_ids.get(topic))
        # Two ids mean that the topic was recreated while the stream ran, and the range may be of either.
        yield from ((log, each.range) for log in ids - {None} or {None})
        for number, change in enumerate(later, 1):
            if not trusts_adoption or is_other_log(topic, later[:number]):
                break
            if find_adoption(topic, [change]) is not None:
                until = min([each.range.until, *list_cuts(each.range.topic_partition, later[:number])])
                if until > each.range.start:
                    yield change.after.topic_ids.get(topic), replace(each.range, until=until)


def _describe_doubt(ranges: Sequence[OffsetRange], streams: Sequence[StreamFacts]) -> str:
    """Return a sentence with who said that these are the same records, or "" if nobody had to."""
    for topic, facts in product(sorted({each.topic for each in ranges}), streams):
        change = find_adoption(topic, facts.changes)
        if change is not None:
            return f" That holds if they are the same records: {describe_adoption(topic, change)}."
    return ""
