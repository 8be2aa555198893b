"""The one place that decides offsets: from rules and a snapshot of the log to work for the tasks.

The rules are those of Spark's batch read. Without splitting, `earliest` and `latest` stay words in the work
order and are bound when the task starts, so a frame that is reused sees new rows. Numbers stay numbers.
Times, committed offsets and counted-back positions become numbers here. When a splitting option calls for
pieces, the bounds are looked up, the pieces cut, and the outer bounds become words again. Tasks come sorted
by topic, partition and offset (Spark leaves their order open).

A start after its end is an error, never an empty read: it is a typo, or a recreated topic. So is an end
beyond the log's. Nothing here asks a broker: `find_questions` says what to ask, and `step` decides.

>>> from penstock.core.options.position_rules import ForAll
>>> from penstock.core.planning.partition_selection import SelectTopics
>>> state = BatchRead(SelectTopics(("t",)), ForAll(Earliest()), ForAll(Latest()))
>>> ((first,),) = step(state, Snapshot({"t": TopicView("t", (0,))}), PlanLimits()).tasks
>>> first.partition, first.start, first.until
(0, Earliest(), Latest())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.core.errors import DataLossError
from penstock.core.model import (
    At,
    Committed,
    Earliest,
    Latest,
    OffsetRange,
    RangeOrder,
    RecordsBeforeEnd,
    TopicPartition,
    TopicView,
)
from penstock.core.options.position_rules import list_positions
from penstock.core.planning.partition_selection import select_partitions
from penstock.core.planning.range_bounds import (
    BatchRead,
    Snapshot,
    Span,
    apply_rule,
    bound_spans,
    demand,
    time_of,
)
from penstock.core.planning.task_splitting import PlanLimits, cut_tasks


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions to ask before a step. `latest`, asked last, also covers times that match no record."""

    earliest: frozenset[TopicPartition]
    latest: frozenset[TopicPartition]
    start_times_ms: Mapping[TopicPartition, int]
    end_times_ms: Mapping[TopicPartition, int]
    committed: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One decision: the tasks, which read what is there, and what is absent.

    Each task reads its ranges in order. `losses` are offsets asked for but already gone, and `unwritten` are
    offsets asked for but not there yet.
    """

    tasks: tuple[tuple[RangeOrder, ...], ...]
    losses: tuple[OffsetRange, ...]
    unwritten: tuple[OffsetRange, ...]
    news: tuple[str, ...]
    state: BatchRead


def find_questions(
    state: BatchRead, limits: PlanLimits, topics: Mapping[str, TopicView], now_ms: int
) -> Questions:
    """Return the questions about the log that this state needs answered, and no others."""
    partitions = select_partitions(state.selection, topics).partitions
    starts = apply_rule(state.start, partitions, side="start")
    ends = apply_rule(state.end, partitions, side="end")
    earliest: set[TopicPartition] = set()
    latest: set[TopicPartition] = set()
    sizes = _needs_sizes(limits, len(partitions))
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        counted = [each for each in (start, end) if isinstance(each, RecordsBeforeEnd)]
        if counted or (sizes and isinstance(start, Earliest)) or isinstance(start, At | Committed):
            earliest.add(partition)
        moving = isinstance(end, Latest) and (sizes or not isinstance(start, Earliest))
        if counted or moving or isinstance(end, At | Committed):
            latest.add(partition)
    return Questions(
        frozenset(earliest),
        frozenset(latest),
        {each: time for each in partitions if (time := time_of(starts[each], now_ms)) is not None},
        {each: time for each in partitions if (time := time_of(ends[each], now_ms)) is not None},
        frozenset(each for each in partitions if Committed() in (starts[each], ends[each])),
    )


def step(state: BatchRead, snapshot: Snapshot, limits: PlanLimits) -> PlanStep:
    """Return what is read, and in which tasks."""
    selected = select_partitions(state.selection, snapshot.topics)
    spans = bound_spans(state, snapshot, selected.partitions)
    if _needs_sizes(limits, len(selected.partitions)):
        tasks = _cut_tasks(spans, limits)
    else:
        tasks = [[span] for span in spans if not span.never_has_rows]
    unwritten = _find_unwritten(spans, snapshot)
    if unwritten:
        tasks = _leave_out_unwritten(tasks, snapshot)
    orders = tuple(tuple(_make_order(span, snapshot) for span in task) for task in tasks)
    news = [f"{each} does not exist and is left out." for each in selected.absent]
    if selected.matched_in_part:
        some = ", ".join(selected.matched_in_part[:10])
        news.append(
            f"`subscribePattern` matches only a part of the names of {len(selected.matched_in_part)} topics "
            f"({some}), which are left out; put `.*` around it to read them."
        )
    return PlanStep(orders, tuple(_find_losses(spans, snapshot)), unwritten, tuple(news), state)


def find_unwritten(state: BatchRead, snapshot: Snapshot) -> tuple[OffsetRange, ...]:
    """Return the offsets asked for that lie beyond the log's end."""
    if not any(isinstance(each, At | Committed) for each in list_positions(state.end)):
        return ()
    partitions = select_partitions(state.selection, snapshot.topics).partitions
    return _find_unwritten(bound_spans(state, snapshot, partitions), snapshot)


def explain_absent(plan: PlanStep, snapshot: Snapshot) -> Iterable[DataLossError]:
    """Yield the errors for offsets asked for that are not in the log: gone, or not written yet."""
    if plan.losses:
        yield explain_losses(plan.losses)
    if plan.unwritten:
        yield explain_unwritten(plan.unwritten, snapshot.latest, committed_only=plan.state.committed_only)


def explain_losses(losses: Sequence[OffsetRange]) -> DataLossError:
    """Return the error for offsets asked for that were gone before anything was read."""
    shown = ", ".join(f"{each.topic_partition} [{each.start}, {each.until})" for each in losses[:20])
    return DataLossError(
        "KAFKA_DATA_LOSS",
        f"{sum(each.size for each in losses)} offsets asked for are no longer in the log: {shown}.",
        hint="Start at `earliest`, or set `failOnDataLoss` to false to read what is left.",
        facts={"losses": [(each.topic, each.partition, each.start, each.until) for each in losses]},
    )


def explain_unwritten(
    unwritten: Sequence[OffsetRange], ends: Mapping[TopicPartition, int], *, committed_only: bool
) -> DataLossError:
    """Return the error for an end that lies beyond the log's."""
    shown = "; ".join(
        f"{each.topic_partition} ends at {ends[each.topic_partition]}, {each.until} was asked for"
        for each in unwritten[:20]
    )
    held = " For `read_committed` the log ends where the oldest open transaction begins."
    return DataLossError(
        "END_BEYOND_LOG",
        f"The read is to end beyond the end of the log: {shown}.{held if committed_only else ''}",
        hint="End at `latest` or at an offset that is there. If it was there, the topic was recreated. Set "
        "`failOnDataLoss` to false to read what is there now.",
        facts={
            "ends": [
                (each.topic, each.partition, ends[each.topic_partition], each.until) for each in unwritten
            ]
        },
    )


def _find_unwritten(spans: Iterable[Span], snapshot: Snapshot) -> tuple[OffsetRange, ...]:
    found = []
    for span in spans:
        end = snapshot.latest.get(span.partition)
        if end is None or not isinstance(span.until, At) or span.never_has_rows:
            continue
        start = max(end, span.start.offset) if isinstance(span.start, At) else end
        if start < span.until.offset:
            found.append(
                OffsetRange(span.partition.topic, span.partition.partition, start, span.until.offset)
            )
    return tuple(found)


def _leave_out_unwritten(tasks: Iterable[Iterable[Span]], snapshot: Snapshot) -> list[list[Span]]:
    """Return the tasks without offsets beyond the log's end. They are cut before that, as in Spark."""

    def clip(span: Span) -> Span:
        end = snapshot.latest.get(span.partition)
        if end is None or not isinstance(span.until, At) or span.until.offset <= end:
            return span
        until = max(end, span.start.offset) if isinstance(span.start, At) else end
        return replace(span, until=At(until), until_number=until)

    clipped = ([each for span in task if not (each := clip(span)).never_has_rows] for task in tasks)
    return [task for task in clipped if task]


def _find_losses(spans: Iterable[Span], snapshot: Snapshot) -> Iterable[OffsetRange]:
    for span in spans:
        first = snapshot.earliest.get(span.partition)
        if first is None or not isinstance(span.start, At) or span.start.offset >= first:
            continue
        until = first if span.until_number is None else min(first, span.until_number)
        if until > span.start.offset:
            yield OffsetRange(span.partition.topic, span.partition.partition, span.start.offset, until)


# --- tasks ----------------------------------------------------------------------------------------


def _needs_sizes(limits: PlanLimits, partitions: int) -> bool:
    more = limits.min_partitions is not None and limits.min_partitions > partitions
    return more or limits.max_records_per_partition is not None or limits.min_records_per_task > 0


def _cut_tasks(spans: Sequence[Span], limits: PlanLimits) -> list[list[Span]]:
    """Return tasks from spans that are cut by size and packed if small; outer bounds become words again."""
    by_partition = {span.partition: span for span in spans}
    known = [
        OffsetRange(
            span.partition.topic,
            span.partition.partition,
            demand(span.start_number, span.partition, "start or end"),
            demand(span.until_number, span.partition, "start or end"),
        )
        for span in spans
    ]
    tasks = [
        [_restore_bounds(piece, by_partition[piece.topic_partition]) for piece in pieces]
        for pieces in cut_tasks(known, limits)
    ]
    return _keep_growing(tasks, spans, {span.partition for task in tasks for span in task})


def _restore_bounds(piece: OffsetRange, span: Span) -> Span:
    start = span.start if piece.start == span.start_number else At(piece.start)
    until = span.until if piece.until == span.until_number else At(piece.until)
    later_piece = isinstance(span.start, Earliest) and isinstance(start, At)
    return replace(span, start=start, until=until, from_earliest=later_piece)


def _keep_growing(
    tasks: list[list[Span]], spans: Sequence[Span], cut: set[TopicPartition]
) -> list[list[Span]]:
    """Return the tasks, with partitions that are empty now but end at `latest` added to the last one.

    Spark drops them here, and a frame that is reused then misses their new rows. One more task for each would
    break the agreed number of tasks; one more range in a task costs nothing.
    """
    growing = [span for span in spans if span.partition not in cut and isinstance(span.until, Latest)]
    if not growing:
        return tasks
    return [*tasks[:-1], [*tasks[-1], *growing]] if tasks else [growing]


def _make_order(span: Span, snapshot: Snapshot) -> RangeOrder:
    return RangeOrder(
        span.partition.topic,
        span.partition.partition,
        span.start,
        span.until,
        topic_id=snapshot.topics[span.partition.topic].topic_id,
        from_earliest=span.from_earliest,
    )
