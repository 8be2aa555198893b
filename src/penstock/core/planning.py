"""The one place that decides offsets: rules and a snapshot of the log in, work for the tasks out.

Rules, those of Spark's batch read: without splitting, `earliest` and `latest` stay words in the work order and are
bound when the task starts, so a frame that is used again sees new rows; numbers stay numbers; times, committed
offsets and counted-back positions become numbers here. When a splitting option calls for pieces, the bounds are
looked up, the pieces cut, and the outer bounds become words again. Tasks come sorted by topic, partition and
offset (Spark leaves their order open).

A start behind its end is an error with facts, never an empty read: it is a typing error, or a topic that was
made anew. Nothing here asks a broker: `find_questions` says what to ask, the engine asks, `step` decides.

>>> from penstock.core.selection import Subscribe
>>> state = BatchRead(Subscribe(("t",)), ForAll(Earliest()), ForAll(Latest()))
>>> step(state, Snapshot({"t": TopicView("t", (0,))}), Limits()).tasks
((RangeOrder(topic='t', partition=0, start=Earliest(), until=Latest(), topic_id=None, leader_epoch=None),),)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core.errors import BrokerError, DataLossError, OptionError
from penstock.core.model import (
    Ago,
    At,
    Bound,
    Committed,
    Earliest,
    Latest,
    OffsetRange,
    Position,
    RangeOrder,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
    TopicView,
)
from penstock.core.positions import ForAll, ForEach, Rule
from penstock.core.selection import Selection, select_partitions
from penstock.core.splitting import pack_sizes, split_ranges


@dataclass(frozen=True, slots=True)
class BatchRead:
    """What a batch read was asked for. `unmatched_start`: `error` or `latest` when no record is that young."""

    selection: Selection
    start: Rule
    end: Rule
    unmatched_start: str = "error"


@dataclass(frozen=True, slots=True)
class Limits:
    """How the work is cut: at least so many tasks, at most so many records in one, at least so many."""

    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_task: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The log as it was seen at one moment: the answers to `find_questions`."""

    topics: Mapping[str, TopicView]
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_time: Mapping[tuple[TopicPartition, int], int | None] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Questions:
    """What must be asked before a step. `latest` also covers times that find no record, asked afterwards."""

    earliest: frozenset[TopicPartition]
    latest: frozenset[TopicPartition]
    start_times_ms: Mapping[TopicPartition, int]
    end_times_ms: Mapping[TopicPartition, int]
    committed: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Step:
    """One decision. Each task reads its ranges in order; `losses` are offsets asked for but already gone."""

    tasks: tuple[tuple[RangeOrder, ...], ...]
    losses: tuple[OffsetRange, ...]
    news: tuple[str, ...]
    state: BatchRead

    @property
    def ranges(self) -> tuple[RangeOrder, ...]:
        return tuple(order for task in self.tasks for order in task)


@dataclass(frozen=True, slots=True)
class _Span:
    """One partition's bounds: as the task gets them, and as numbers where those are known."""

    partition: TopicPartition
    start: Bound
    until: Bound
    start_number: int | None
    until_number: int | None

    @property
    def never_has_rows(self) -> bool:
        return isinstance(self.start, At) and isinstance(self.until, At) and self.start == self.until


def find_questions(
    state: BatchRead, limits: Limits, topics: Mapping[str, TopicView], now_ms: int
) -> Questions:
    """What this state needs to know about the log, and no more."""
    partitions = select_partitions(state.selection, topics).partitions
    starts = _apply_rule(state.start, partitions, side="start")
    ends = _apply_rule(state.end, partitions, side="end")
    earliest: set[TopicPartition] = set()
    latest: set[TopicPartition] = set()
    sizes = _needs_sizes(limits, len(partitions))
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        counted = [each for each in (start, end) if isinstance(each, RecordsBeforeEnd)]
        if counted or (sizes and isinstance(start, Earliest)) or isinstance(start, At | Committed):
            earliest.add(partition)
        if counted or (isinstance(end, Latest) and (sizes or not isinstance(start, Earliest))):
            latest.add(partition)
    return Questions(
        frozenset(earliest),
        frozenset(latest),
        {each: time for each in partitions if (time := _time_of(starts[each], now_ms)) is not None},
        {each: time for each in partitions if (time := _time_of(ends[each], now_ms)) is not None},
        frozenset(each for each in partitions if Committed() in (starts[each], ends[each])),
    )


def step(state: BatchRead, snapshot: Snapshot, limits: Limits) -> Step:
    """Decide what is read, in which tasks."""
    selected = select_partitions(state.selection, snapshot.topics)
    spans = _bound_spans(state, snapshot, selected.partitions)
    if _needs_sizes(limits, len(selected.partitions)):
        tasks = _cut_tasks(spans, limits)
    else:
        tasks = [[span] for span in spans if not span.never_has_rows]
    orders = tuple(tuple(_make_order(span, snapshot) for span in task) for task in tasks)
    news = [f"{each} does not exist and is left out." for each in selected.absent]
    return Step(orders, tuple(_find_losses(spans, snapshot)), tuple(news), state)


def explain_losses(losses: Sequence[OffsetRange]) -> DataLossError:
    """The error for offsets that were asked for and are gone before anything was read."""
    shown = ", ".join(f"{each.topic_partition} [{each.start}, {each.until})" for each in losses[:20])
    return DataLossError(
        "KAFKA_DATA_LOSS",
        f"{sum(each.size for each in losses)} offsets asked for are no longer in the log: {shown}.",
        hint="Start at `earliest`, or set `failOnDataLoss` to false to read what is left.",
        facts={"losses": [(each.topic, each.partition, each.start, each.until) for each in losses]},
    )


# --- bounds ---------------------------------------------------------------------------------------


def _apply_rule(
    rule: Rule, partitions: Sequence[TopicPartition], *, side: str
) -> Mapping[TopicPartition, Position]:
    """A position for each partition; a rule by name must name exactly the partitions there are."""
    if isinstance(rule, ForAll):
        return {each: rule.position for each in partitions}
    assigned = set(partitions)
    positions = {each: rule.topics[each.topic] for each in assigned if each.topic in rule.topics}
    positions.update(rule.partitions)
    unknown_topics = set(rule.topics) - {each.topic for each in assigned}
    if set(positions) != assigned or unknown_topics:
        named = sorted(str(each) for each in positions) + sorted(unknown_topics)
        raise _mismatch(rule, side, named, sorted(str(each) for each in assigned))
    return positions


def _mismatch(rule: ForEach, side: str, named: list[str], assigned: list[str]) -> OptionError:
    kind = "TIMESTAMP" if rule.by_time else "START"
    return OptionError(
        f"KAFKA_{kind}_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        f"The {side} names the partitions {named}, but those to read are {assigned}.",
        hint="Name every partition once; -2 means earliest and -1 latest."
        if not rule.by_time
        else "Name every partition once, or give one time for all.",
        facts={"position": side, "specified": named, "assigned": assigned},
    )


def _bound_spans(state: BatchRead, snapshot: Snapshot, partitions: Sequence[TopicPartition]) -> list[_Span]:
    starts = _apply_rule(state.start, partitions, side="start")
    ends = _apply_rule(state.end, partitions, side="end")
    spans = []
    for partition in partitions:
        start = _bind(starts[partition], partition, snapshot, unmatched=state.unmatched_start)
        until = _bind(ends[partition], partition, snapshot, unmatched="latest")
        span = _Span(
            partition, start, until, _number(start, partition, snapshot), _number(until, partition, snapshot)
        )
        _check_order(span)
        spans.append(span)
    return spans


def _bind(position: Position, partition: TopicPartition, snapshot: Snapshot, *, unmatched: str) -> Bound:
    match position:
        case Earliest() | Latest() | At():
            return position
        case Since() | Ago():
            return _bind_time(position, partition, snapshot, unmatched)
        case RecordsBeforeEnd(records):
            first = _look_up(snapshot.earliest, partition, "earliest")
            return At(max(first, _look_up(snapshot.latest, partition, "latest") - records))
        case Committed():
            committed = snapshot.committed.get(partition)
            if committed is None:
                raise OptionError(
                    "NO_COMMITTED_OFFSET",
                    f"The group has committed nothing for {partition}.",
                    hint="Name the offsets as JSON, or use `earliest`; committed offsets also expire.",
                    facts={"partition": str(partition)},
                )
            return At(committed)


def _bind_time(position: Since | Ago, partition: TopicPartition, snapshot: Snapshot, unmatched: str) -> Bound:
    time_ms = _time_of(position, snapshot.now_ms)
    assert time_ms is not None
    found = snapshot.at_time.get((partition, time_ms))
    if found is not None:
        return At(found)
    if unmatched == "latest":
        return At(_look_up(snapshot.latest, partition, "latest"))
    raise OptionError(
        "NO_OFFSET_FOR_TIMESTAMP",
        f"{partition} has no record at or after {time_ms} (milliseconds since 1970).",
        hint="Use an earlier time, or set `startingOffsetsByTimestampStrategy` to `latest`.",
        facts={"partition": str(partition), "time_ms": time_ms},
    )


def _time_of(position: Position, now_ms: int) -> int | None:
    match position:
        case Since(time_ms):
            return time_ms
        case Ago(duration_ms):
            return max(0, now_ms - duration_ms)
        case _:
            return None


def _number(bound: Bound, partition: TopicPartition, snapshot: Snapshot) -> int | None:
    match bound:
        case At(offset):
            return offset
        case Earliest():
            return snapshot.earliest.get(partition)
        case Latest():
            return snapshot.latest.get(partition)


def _look_up(answers: Mapping[TopicPartition, int], partition: TopicPartition, what: str) -> int:
    if partition not in answers:
        raise BrokerError(
            "OFFSET_NOT_ANSWERED",
            f"The brokers gave no {what} offset for {partition}.",
            hint="Try again; the partition may be moving or being deleted.",
            facts={"partition": str(partition)},
            retriable=True,
        )
    return answers[partition]


def _check_order(span: _Span) -> None:
    """Only a start that was asked for can be wrong; `earliest` beyond the end means the rows aged out."""
    if isinstance(span.start, Earliest) or span.start_number is None or span.until_number is None:
        return
    if span.start_number > span.until_number:
        raise OptionError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            f"For {span.partition.topic} partition {span.partition.partition} the start offset "
            f"{span.start_number} is greater than the end offset {span.until_number}.",
            hint="Check the start and end options; if they are right, the topic was deleted and made anew.",
            facts={"partition": str(span.partition), "start": span.start_number, "end": span.until_number},
        )


def _find_losses(spans: Iterable[_Span], snapshot: Snapshot) -> Iterable[OffsetRange]:
    for span in spans:
        first = snapshot.earliest.get(span.partition)
        if first is None or not isinstance(span.start, At) or span.start.offset >= first:
            continue
        until = first if span.until_number is None else min(first, span.until_number)
        if until > span.start.offset:
            yield OffsetRange(span.partition.topic, span.partition.partition, span.start.offset, until)


# --- tasks ----------------------------------------------------------------------------------------


def _needs_sizes(limits: Limits, partitions: int) -> bool:
    more = limits.min_partitions is not None and limits.min_partitions > partitions
    return more or limits.max_records_per_partition is not None or limits.min_records_per_task > 0


def _cut_tasks(spans: Sequence[_Span], limits: Limits) -> list[list[_Span]]:
    """Cut by size, give the outer bounds back their words, pack what is small."""
    by_partition = {span.partition: span for span in spans}
    known = [
        OffsetRange(
            span.partition.topic,
            span.partition.partition,
            _known(span.start_number, span.partition),
            _known(span.until_number, span.partition),
        )
        for span in spans
    ]
    pieces = split_ranges(
        known, min_partitions=limits.min_partitions, max_records=limits.max_records_per_partition
    )
    cut = [_restore_bounds(piece, by_partition[piece.topic_partition]) for piece in pieces]
    groups = [range(index, index + 1) for index in range(len(cut))]
    if limits.min_records_per_task > 0:
        groups = pack_sizes(
            [piece.size for piece in pieces],
            at_least=limits.min_records_per_task,
            at_most=limits.max_records_per_partition,
        )
    tasks = [[cut[index] for index in group] for group in groups]
    return _keep_growing(tasks, spans, {piece.topic_partition for piece in pieces})


def _restore_bounds(piece: OffsetRange, span: _Span) -> _Span:
    start = span.start if piece.start == span.start_number else At(piece.start)
    until = span.until if piece.until == span.until_number else At(piece.until)
    return replace(span, start=start, until=until)


def _keep_growing(
    tasks: list[list[_Span]], spans: Sequence[_Span], cut: set[TopicPartition]
) -> list[list[_Span]]:
    """Partitions that are empty now but end at `latest` ride along in the last task.

    Spark drops them here, and a frame that is used again then misses their new rows. A task more for each would
    break the agreed number of tasks; a range more in one task costs nothing.
    """
    growing = [span for span in spans if span.partition not in cut and isinstance(span.until, Latest)]
    if not growing:
        return tasks
    return [*tasks[:-1], [*tasks[-1], *growing]] if tasks else [growing]


def _known(number: int | None, partition: TopicPartition) -> int:
    if number is None:
        return _look_up({}, partition, "start or end")
    return number


def _make_order(span: _Span, snapshot: Snapshot) -> RangeOrder:
    topic_id = snapshot.topics[span.partition.topic].topic_id
    return RangeOrder(span.partition.topic, span.partition.partition, span.start, span.until, topic_id)
