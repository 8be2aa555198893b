"""Offset ranges that a caller names, checked against the log and turned into tasks.

Rule: one task per range, in the order of topic, partition and offset whatever order they were given in, so
that the same ranges make the same tasks. A range outside its log is an error with the facts, before any task
waits for records that are not there.

>>> check_ranges([OffsetRange("t", 1, 0, 9), OffsetRange("t", 0, 5, 5)])[0].partition
0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.errors import BrokerError, DataLossError, OptionError
from penstock.core.model import At, OffsetRange, RangeOrder, TopicPartition, TopicView
from penstock.core.offsets.stream_position import Offsets


def check_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the ranges in order; refuse any that ends before it starts or starts below 0."""
    checked = tuple(sorted(ranges))
    for each in checked:
        if not 0 <= each.start <= each.until:
            raise OptionError(
                "RANGE_INVALID",
                f"{each.topic_partition}: the range from {each.start} to {each.until} runs backwards.",
                hint="Ranges run from start (included, 0 or more) to until (not included).",
                facts={"partition": str(each.topic_partition), "start": each.start, "until": each.until},
            )
    return checked


def order_ranges(
    ranges: Iterable[OffsetRange], topics: Mapping[str, TopicView], earliest: Offsets, latest: Offsets
) -> tuple[RangeOrder, ...]:
    """Return what tasks read. Empty ranges make no task and need not lie in the log."""
    orders = []
    for each in check_ranges(ranges):
        if not each.size:
            continue
        view = topics.get(each.topic)
        if view is None or each.partition not in view.partitions:
            raise BrokerError(
                "UNKNOWN_PARTITION",
                f"The brokers have no partition {each.topic_partition}.",
                hint="Correct the range's topic or partition.",
                facts={"partition": str(each.topic_partition)},
            )
        first, end = earliest[each.topic_partition], latest[each.topic_partition]
        if each.start < first or each.until > end:
            raise DataLossError(
                "RANGE_OUTSIDE_LOG",
                f"{each.topic_partition} has offsets {first} to {end}; {each.start} to {each.until} is asked "
                "for.",
                hint="Ask for offsets within the log: earlier ones have aged out, later ones are not written "
                "yet.",
                facts={
                    "partition": str(each.topic_partition),
                    "earliest": first,
                    "latest": end,
                    "start": each.start,
                    "until": each.until,
                },
            )
        epoch = view.leader_epoch(each.partition)
        orders.append(
            RangeOrder(
                each.topic,
                each.partition,
                At(each.start),
                At(each.until),
                view.topic_id,
                leader_epoch=epoch,
            )
        )
    return tuple(orders)


def list_asked(ranges: Iterable[OffsetRange]) -> set[TopicPartition]:
    """Return the partitions whose bounds must be looked up."""
    return {each.topic_partition for each in ranges if each.size}
