"""Finds which records of a stream can be read again: those of the log that it reads now.

A recreated topic has the same name and offsets, but other records. Rules: a move by hand from one topic id to
another leads to another log, and so does an id that changed while the stream ran. After `adopt` the records
count as the same, at the same offsets, on a person's word. That is no proof, and an error would delete rows
irrecoverably, so nothing is deleted because of it.

>>> from penstock.core.offsets.stream_position import StreamPosition
>>> old, new = (StreamPosition({TopicPartition("t", 0): 0}, {"t": each * 16}) for each in (b"a", b"b"))
>>> is_other_log("t", [Change(0, "ann", "rewind", old, new)])
True
>>> is_other_log("t", [Change(0, "ann", "adopt", old, new)])
False
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from penstock.core.audit.audit_report import NotedRange
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change


def is_other_log(topic: str, changes: Iterable[Change]) -> bool:
    """Return whether these moves, or a change between them, led to another log of that name.

    An adopted topic has the same records, so it is not another log.
    """
    last: bytes | None = None
    for change in changes:
        then = None if change.before is None else change.before.topic_ids.get(topic)
        now = change.after.topic_ids.get(topic)
        if None not in (last, then) and last != then:
            return True  # recreated while the stream ran
        if change.verb != "adopt" and None not in (then, now) and then != now:
            return True
        last = now
    return False


def find_adoption(topic: str, changes: Iterable[Change]) -> Change | None:
    """Return the first of these moves that adopted another topic of that name."""
    for change in changes:
        then = None if change.before is None else change.before.topic_ids.get(topic)
        if change.verb == "adopt" and then != change.after.topic_ids.get(topic):
            return change
    return None


def list_cuts(partition: TopicPartition, changes: Iterable[Change]) -> Iterator[int]:
    """Yield the ends of adopted logs that were shorter than their predecessors: later records differ."""
    for change in changes:
        before = None if change.before is None else change.before.offsets.get(partition)
        after = change.after.offsets.get(partition)
        if change.verb == "adopt" and before is not None and after is not None and after < before:
            yield after


def list_current(ranges: Iterable[NotedRange], changes: Sequence[Change]) -> Iterator[NotedRange]:
    """Yield what was read of the logs that these moves led to; an adopted log counts as the same.

    `changes` holds all moves by hand in order.
    """
    for each in ranges:
        later = changes[each.generation - 1 :]
        if not is_other_log(each.range.topic, later):
            until = min([each.range.until, *list_cuts(each.range.topic_partition, later)])
            yield replace(each, range=replace(each.range, until=max(until, each.range.start)))


def list_lost(ranges: Sequence[NotedRange], changes: Sequence[Change]) -> list[OffsetRange]:
    """Return what was read of logs that no longer exist, and cannot be read again.

    `ranges` are in the order in which they were read. `changes` holds all moves by hand in order.
    """
    lost = [each for each in _list_overwritten(ranges) if each.size]
    for noted in ranges:
        each, later = noted.range, changes[noted.generation - 1 :]
        if is_other_log(each.topic, later):
            lost.append(each)
        else:
            lost += [
                replace(each, start=max(cut, each.start)) for cut in list_cuts(each.topic_partition, later)
            ]
    return [each for each in lost if each.start < each.until]


def list_adopted(ranges: Sequence[NotedRange], changes: Sequence[Change]) -> list[OffsetRange]:
    """Return what was read before a topic was adopted: only a person's word says it can be read again."""
    return [
        each.range
        for each in ranges
        if find_adoption(each.range.topic, changes[each.generation - 1 :]) is not None
    ]


def _list_overwritten(ranges: Sequence[NotedRange]) -> Iterator[OffsetRange]:
    """Yield ranges whose offsets came again without a move: the topic was recreated or cut off."""
    ends: dict[tuple[int, TopicPartition], int] = {}
    again: list[tuple[int, OffsetRange]] = []
    for number, noted in enumerate(ranges):
        key = (noted.generation, noted.range.topic_partition)
        if noted.range.start < ends.get(key, 0):
            again.append((number, noted.range))
        ends[key] = noted.range.until
    for number, noted in enumerate(ranges):
        starts = [
            each.start
            for later, each in again
            if later > number and each.topic_partition == noted.range.topic_partition
        ]
        if starts:
            yield replace(noted.range, start=min(noted.range.until, max(noted.range.start, min(starts))))
