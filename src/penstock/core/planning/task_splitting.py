"""Splits ranges into tasks, with exactly Spark's numbers, and packs small ones together.

Rules: the pieces of a range cover it without gap or overlap; empty ranges get no piece. `max_records` splits
first, evenly. `min_partitions` then splits what is big: ranges whose share of the wanted number rounds to one
stay whole, and the rest share the remaining number by size. Rounding is half up. Why not split every range in
proportion at once: one huge range beside many tiny ones would then get too few pieces, because the tiny ones'
pieces round up to one.

>>> [piece.size for piece in split_evenly(OffsetRange("t", 0, 0, 10), 3)]
[3, 3, 4]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import OptionError
from penstock.core.model import OffsetRange

#: With more tasks than this, the driver is overwhelmed before the first one runs.
MOST_PIECES = 100_000


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How the work is split: the fewest tasks, and the most and the fewest records in one."""

    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_task: int = 0


def cut_tasks(ranges: Sequence[OffsetRange], limits: PlanLimits) -> list[list[OffsetRange]]:
    """Return the pieces of each task, in the order of their ranges."""
    most = limits.max_records_per_partition
    pieces = split_ranges(ranges, min_partitions=limits.min_partitions, max_records=most)
    if limits.min_records_per_task == 0:
        return [[piece] for piece in pieces]
    sizes = [piece.size for piece in pieces]
    groups = pack_sizes(sizes, at_least=limits.min_records_per_task, at_most=most)
    return [pieces[group.start : group.stop] for group in groups]


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Return the pieces, in the order of their ranges."""
    pieces = [each for each in ranges if each.size > 0]
    if max_records is not None:
        pieces = _cut(
            pieces,
            [math.ceil(each.size / max_records) for each in pieces],
            asked=f"`maxRecordsPerPartition` {max_records}",
        )
    if min_partitions is not None and min_partitions > len(pieces):
        pieces = _split_by_size(pieces, min_partitions)
    return pieces


def split_evenly(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Return `parts` consecutive pieces; the remainder goes to the later ones. Empty pieces are left out."""
    pieces: list[OffsetRange] = []
    start = whole.start
    parts = min(parts, max(1, whole.size))
    for part in range(parts):
        until = start + (whole.until - start) // (parts - part)
        if until > start:
            pieces.append(OffsetRange(whole.topic, whole.partition, start, until))
        start = until
    return pieces


def _cut(ranges: Sequence[OffsetRange], parts: Sequence[int], *, asked: str) -> list[OffsetRange]:
    """Return each range split into its number of parts; refuse too many before the first piece is made."""
    tasks = sum(min(number, each.size) for each, number in zip(ranges, parts, strict=True))
    if tasks > MOST_PIECES:
        raise OptionError(
            "TOO_MANY_TASKS",
            f"This read would be split into {tasks} tasks, because {asked} is asked for.",
            hint="Raise `maxRecordsPerPartition` or lower `minPartitions`, so that at most "
            f"{MOST_PIECES} tasks are needed.",
            facts={"tasks": tasks, "most": MOST_PIECES},
        )
    return [piece for each, number in zip(ranges, parts, strict=True) for piece in split_evenly(each, number)]


def _split_by_size(ranges: list[OffsetRange], wanted: int) -> list[OffsetRange]:
    total = sum(each.size for each in ranges)
    small = [each for each in ranges if _share(each.size, total, wanted) == 1]
    # By partition, not by range: if a cap has split a partition before, one small piece keeps all its pieces
    # whole. Spark does so, and the numbers must match.
    whole = {each.topic_partition for each in small}
    rest_total = total - sum(each.size for each in small)
    rest_wanted = max(wanted - len(small), 1)
    parts = [
        1 if each.topic_partition in whole else _share(each.size, rest_total, rest_wanted) for each in ranges
    ]
    return _cut(ranges, parts, asked=f"`minPartitions` {wanted}")


def _share(size: int, total: int, wanted: int) -> int:
    """Return the share, rounded half up: Python's `round` would round 2.5 to 2, where Spark gives 3."""
    exact = size / total * wanted
    below = math.floor(exact)
    return max(below + (exact - below >= 0.5), 1)


def pack_sizes(sizes: Sequence[int], *, at_least: int, at_most: int | None) -> list[range]:
    """Return consecutive groups of indexes, each with `at_least` records if there are enough.

    A last group that stays too small joins the one before it, unless that would pass `at_most`.
    """
    groups: list[range] = []
    begin, filled = 0, 0
    for index, size in enumerate(sizes):
        if at_most is not None and index > begin and filled + size > at_most:
            groups.append(range(begin, index))
            begin, filled = index, 0
        filled += size
        if filled >= at_least:
            groups.append(range(begin, index + 1))
            begin, filled = index + 1, 0
    if begin < len(sizes):
        last = range(begin, len(sizes))
        joined = filled + sum(sizes[index] for index in groups[-1]) if groups else 0
        if groups and (at_most is None or joined <= at_most):
            groups[-1] = range(groups[-1].start, len(sizes))
        else:
            groups.append(last)
    return groups
