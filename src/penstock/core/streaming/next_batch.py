"""Plans one batch of a stream: how far it goes, and how it is split into tasks.

`take` decides the next end within a budget. `aim` keeps a course within the ends that an AvailableNow run
fixed at its start. `plan_batch` splits a decided batch into tasks from its two positions alone, so a repeated
batch is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.core.errors import DataLossError
from penstock.core.model import At, Earliest, OffsetRange, RangeOrder, TopicPartition, is_another
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.planning.task_splitting import PlanLimits, cut_tasks
from penstock.core.streaming.limit_sharing import share_by_lag
from penstock.core.streaming.log_changes import Course, list_names


def take(course: Course, budget: Mapping[TopicPartition, int] | None = None) -> StreamPosition:
    """Return the end of the next batch, within a budget for each partition; None takes all.

    Return the previous position itself if nothing moves: Spark then runs no batch. Do the same if there is no
    partition at all: an empty end would make every partition look new the next time.
    """
    before, sizes = course.before, course.sizes
    shares = sizes
    if budget is not None:
        shares = {each: min(size, budget[each]) for each, size in sizes.items()}
    untils = {each: begin + shares[each] for each, begin in course.begins.items()}
    moved = any(shares.values()) or any(
        begin != before.offsets[each] for each, begin in course.begins.items() if each in before.offsets
    )
    other_topic = any(each.topic in course.anew for each in course.begins)
    if not course.begins or (not moved and not other_topic and set(course.gone) == set(before.gone)):
        return before
    return StreamPosition(
        offsets=untils,
        topic_ids=course.topic_ids,
        leader_epochs={
            **{each: epoch for each, epoch in before.leader_epochs.items() if each in course.gone},
            **course.leader_epochs,
        },
        starts={
            each: begin
            for each, begin in course.begins.items()
            if before.offsets.get(each) != begin or before.starts.get(each) == begin
        },
        gone=course.gone,
    )


def share_budget(
    course: Course, records: Sequence[int | None], paced: Mapping[TopicPartition, int] | None
) -> Mapping[TopicPartition, int] | None:
    """Return the tightest of all limits for each partition: totals, shared by lag, and what pacing allows."""
    totals = [each for each in records if each is not None]
    limits: list[Mapping[TopicPartition, int]] = [share_by_lag(min(totals), course.sizes)] if totals else []
    if paced is not None:
        limits.append(paced)
    if not limits:
        return None
    return {each: min(limit[each] for limit in limits) for each in course.begins}


def holds_back(course: Course, at_least: int | None, waited_ms: int | None, max_delay_ms: int) -> bool:
    """Return whether too little waits for a batch. A run's first batch (`waited_ms` None) never waits."""
    if at_least is None or waited_ms is None:
        return False
    return course.waiting < at_least and waited_ms < max_delay_ms


def aim(course: Course, targets: StreamPosition) -> Course:
    """Return the course, but not past the ends that were fixed when an AvailableNow run began.

    A fixed end that can no longer be reached is an error whatever the loss option says: the run would either
    never end or fall short silently.
    """
    planned, there = set(targets.offsets), set(course.begins)
    lost = sorted(planned - there)
    if lost:
        raise DataLossError(
            "AVAILABLE_NOW_PARTITIONS_LOST",
            f"This run was to read {list_names(sorted(planned))}; "
            f"what is there now is {list_names(sorted(there))}.",
            hint="Run the query again to read what is there now.",
            facts={"planned": _name(planned), "present": _name(there), "lost": _name(lost)},
        )
    # A partition that was hidden when the ends were fixed and is back now waits, but keeps its position.
    ends = {
        each: begin
        for each, begin in course.begins.items()
        if each not in planned and each not in course.added
    }
    for each, target in targets.offsets.items():
        end, begin = course.ends[each], course.begins[each]
        other = is_another(targets.topic_ids.get(each.topic), course.topic_ids.get(each.topic))
        if end < target or other:
            raise DataLossError(
                "AVAILABLE_NOW_END_WENT_BACK",
                f"This run was to read {each} up to {target}, but the log "
                + ("is another one now, and " if other else "")
                + f"ends at {end} and is read from {begin}.",
                hint="The log was truncated or the topic recreated; run the query again.",
                facts={"partition": str(each), "planned": target, "end": end, "begin": begin},
            )
        ends[each] = max(begin, target)  # a start at `latest` is resolved after the ends were fixed
    return replace(
        course,
        begins={each: course.begins[each] for each in ends},
        ends=ends,
        leader_epochs={each: epoch for each, epoch in course.leader_epochs.items() if each in ends},
        added=tuple(each for each in course.added if each in ends),
    )


def list_ranges(before: StreamPosition, end: StreamPosition) -> tuple[OffsetRange, ...]:
    """Return the ranges of the batch between two positions, in order, including empty ones."""
    starts = ((each, end.start_of(each, before), until) for each, until in sorted(end.offsets.items()))
    return tuple(
        OffsetRange(each.topic, each.partition, until if start is None else start, until)
        for each, start, until in starts
    )


def count_records(before: StreamPosition, end: StreamPosition) -> int | None:
    """Return how many offsets lie between the two, or None if a partition's beginning is not known."""
    total = 0
    for partition, until in end.offsets.items():
        start = end.start_of(partition, before)
        if start is None:
            return None
        total += max(0, until - start)
    return total


def plan_batch(
    before: StreamPosition, end: StreamPosition, limits: PlanLimits
) -> tuple[tuple[RangeOrder, ...], ...]:
    """Return the tasks of the batch between two positions, planned from these alone."""
    known: list[OffsetRange] = []
    unknown: list[RangeOrder] = []
    for each, until in sorted(end.offsets.items()):
        start = end.start_of(each, before)
        if start is None:
            # Spark's own connector planned this batch: it reads new partitions from their first offset.
            unknown.append(_order(each, Earliest(), until, end))
        elif start > until:
            raise DataLossError(
                "PARTITION_OFFSET_CHANGED",
                f"The checkpoint has a batch that reads {each} from {start} back to {until}.",
                hint="The topic was recreated while another connector read it; start with a new checkpoint.",
                facts={"partition": str(each), "start": start, "until": until},
            )
        elif start < until:
            known.append(OffsetRange(each.topic, each.partition, start, until))
    tasks = [
        tuple(_order(piece.topic_partition, At(piece.start), piece.until, end) for piece in pieces)
        for pieces in cut_tasks(known, limits)
    ]
    return (*tasks, *((each,) for each in unknown))


def _order(each: TopicPartition, start: At | Earliest, until: int, end: StreamPosition) -> RangeOrder:
    return RangeOrder(
        each.topic,
        each.partition,
        start,
        At(until),
        end.topic_ids.get(each.topic),
        leader_epoch=end.leader_epochs.get(each),
    )


def _name(partitions: Iterable[TopicPartition]) -> list[str]:
    return [str(each) for each in sorted(partitions)]
