"""The bounds that start and end rules give for each partition of a snapshot.

Rules: `earliest`, `latest` and numbers stay what they are; times, committed offsets and positions counted
back from the end become numbers. A rule that names partitions must name exactly the existing ones. A start
that was asked for and lies after its end is an error. `earliest` after a fixed end is not: it means that the
rows have aged out.

>>> first = TopicPartition("t", 0)
>>> bind(Since(5), first, Snapshot({}, at_time={(first, 5): 7}), unmatched="error")
At(offset=7)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.errors import BrokerError, OptionError
from penstock.core.model import (
    Ago,
    At,
    Bound,
    Committed,
    Earliest,
    Latest,
    Position,
    RangeOrder,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
    TopicView,
)
from penstock.core.options.position_rules import ForAll, ForEach, PositionRule
from penstock.core.planning.partition_selection import Selection


@dataclass(frozen=True, slots=True)
class BatchRead:
    """What was asked for, before offsets are known.

    `unmatched_start` is `error` or `latest`, for a time after all records. `uncommitted_start` is where to
    start if the group has committed nothing, or None for an error. With `committed_only`, the log ends where
    the oldest open transaction begins.
    """

    selection: Selection
    start: PositionRule
    end: PositionRule
    unmatched_start: str = "error"
    uncommitted_start: Position | None = None
    committed_only: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The log at one moment: the answers to `find_questions`."""

    topics: Mapping[str, TopicView]
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_time: Mapping[tuple[TopicPartition, int], int | None] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """One partition's bounds: as the task gets them, and as numbers where known."""

    partition: TopicPartition
    start: Bound
    until: Bound
    start_number: int | None
    until_number: int | None
    from_earliest: bool = False  # a later piece of a span that begins at `earliest`

    @property
    def never_has_rows(self) -> bool:
        return isinstance(self.start, At) and isinstance(self.until, At) and self.start == self.until


def check_ends(snapshot: Snapshot) -> None:
    """Refuse an end below what the log was just seen to hold: the broker lags, so ask again.

    Starts and times are looked up before ends, so an up-to-date end is never below them.
    """
    held: dict[TopicPartition, int] = dict(snapshot.earliest)
    for (partition, _), found in snapshot.at_time.items():
        if found is not None:
            held[partition] = max(held.get(partition, 0), found + 1)
    for partition, end in snapshot.latest.items():
        if end < held.get(partition, 0):
            raise BrokerError(
                "END_WENT_BACK",
                f"{partition}: the brokers say that the log ends at {end}, but it just held offsets up to "
                f"{held[partition]} (excluded).",
                hint="A replica that is behind has answered, or the topic was recreated; run it again.",
                facts={"partition": str(partition), "end": end, "held": held[partition]},
                retriable=True,
            )


def apply_rule(
    rule: PositionRule, partitions: Sequence[TopicPartition], *, side: str
) -> Mapping[TopicPartition, Position]:
    """Return a position for each partition; a rule by name must name exactly the existing partitions."""
    if isinstance(rule, ForAll):
        return dict.fromkeys(partitions, rule.position)
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
        hint=f"Name every partition once; {'-1 means latest' if side == 'end' else '-2 means earliest'}."
        if not rule.by_time
        else "Name every partition once, or give one time for all.",
        facts={"position": side, "specified": named, "assigned": assigned},
    )


def bound_spans(state: BatchRead, snapshot: Snapshot, partitions: Sequence[TopicPartition]) -> list[Span]:
    starts = apply_rule(state.start, partitions, side="start")
    ends = apply_rule(state.end, partitions, side="end")
    spans = []
    for partition in partitions:
        asked = starts[partition]
        if isinstance(asked, Committed) and snapshot.committed.get(partition) is None:
            asked = state.uncommitted_start or asked
        start = bind(asked, partition, snapshot, unmatched=state.unmatched_start)
        until = bind(ends[partition], partition, snapshot, unmatched="latest")
        if _came_between(starts[partition], ends[partition], partition, snapshot):
            start = until
        span = Span(
            partition, start, until, _number(start, partition, snapshot), _number(until, partition, snapshot)
        )
        spans.append(span)
    # After all are bound: an unmatched time is reported first, as in Spark's connector.
    for span in spans:
        is_logs_end = span.until_number == snapshot.latest.get(span.partition)
        _check_order(span, may_be_hidden=state.committed_only and is_logs_end)
    return spans


def _came_between(start: Position, end: Position, partition: TopicPartition, snapshot: Snapshot) -> bool:
    """Return whether a record came between the lookups of the start's and the end's time.

    At the first lookup no record was that recent, so the range was empty and must not be called reversed now.
    """
    start_ms, end_ms = time_of(start, snapshot.now_ms), time_of(end, snapshot.now_ms)
    if start_ms is None or end_ms is None or start_ms >= end_ms:
        return False
    at_time = snapshot.at_time
    return at_time.get((partition, start_ms)) is None and at_time.get((partition, end_ms)) is not None


def bind(position: Position, partition: TopicPartition, snapshot: Snapshot, *, unmatched: str) -> Bound:
    match position:
        case Earliest() | Latest() | At():
            return position
        case Since() | Ago():
            return bind_time(position, partition, snapshot, unmatched)
        case RecordsBeforeEnd(records):
            first = demand(snapshot.earliest.get(partition), partition, "earliest")
            return At(max(first, demand(snapshot.latest.get(partition), partition, "latest") - records))
        case Committed():
            committed = snapshot.committed.get(partition)
            if committed is None:
                raise OptionError(
                    "NO_COMMITTED_OFFSET",
                    f"The group has committed nothing for {partition}.",
                    hint="Committed offsets also expire. In a stream, `startingOffsetsFallback` says where "
                    "such a partition starts; else use `earliest` or name the offsets as JSON.",
                    facts={"partition": str(partition)},
                )
            return At(committed)


def bind_time(position: Since | Ago, partition: TopicPartition, snapshot: Snapshot, unmatched: str) -> Bound:
    time_ms = time_of(position, snapshot.now_ms)
    assert time_ms is not None
    found = snapshot.at_time.get((partition, time_ms))
    if found is not None:
        return At(found)
    if unmatched == "latest":
        return At(demand(snapshot.latest.get(partition), partition, "latest"))
    raise OptionError(
        "NO_OFFSET_FOR_TIMESTAMP",
        f"{partition} has no record at or after {time_ms} (milliseconds since 1970).",
        hint="Use an earlier time, or set `startingOffsetsByTimestampStrategy` to `latest`.",
        facts={"partition": str(partition), "time_ms": time_ms},
    )


def time_of(position: Position, now_ms: int) -> int | None:
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


def demand(answer: int | None, partition: TopicPartition, what: str) -> int:
    """Return the offset, or raise if the brokers did not give it."""
    if answer is None:
        raise BrokerError(
            "OFFSET_NOT_ANSWERED",
            f"The brokers gave no {what} offset for {partition}.",
            hint="Try again; the partition may be moving or being deleted.",
            facts={"partition": str(partition)},
            retriable=True,
        )
    return answer


def count_offsets(
    ranges: Sequence[RangeOrder],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> int:
    """Return how many offsets lie in these ranges; the given offsets stand in for bounds that are words."""

    def number(bound: Bound, partition: TopicPartition) -> int:
        match bound:
            case At(offset):
                return offset
            case Earliest():
                return demand(earliest.get(partition), partition, "earliest")
            case Latest():
                return demand(latest.get(partition), partition, "latest")

    total = 0
    for each in ranges:
        partition = TopicPartition(each.topic, each.partition)
        total += max(0, number(each.until, partition) - number(each.start, partition))
    return total


def _check_order(span: Span, *, may_be_hidden: bool) -> None:
    """Refuse a start that was asked for and lies after its end; `earliest` there means the rows aged out.

    `may_be_hidden` says that records beyond this end may exist, behind an open transaction.
    """
    if isinstance(span.start, Earliest) or span.start_number is None or span.until_number is None:
        return
    if span.start_number > span.until_number:
        held = (
            " For `read_committed` the log ends where the oldest open transaction begins: if one is open, "
            "run it again when that has ended, or start no later than the end."
        )
        unless_open = " and no transaction is open" if may_be_hidden else ""
        raise OptionError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            f"For {span.partition.topic} partition {span.partition.partition} the start offset "
            f"{span.start_number} is greater than the end offset {span.until_number}."
            f"{held if may_be_hidden else ''}",
            hint=f"Check the start and end options; if they are right{unless_open}, the topic was deleted "
            "and recreated.",
            facts={"partition": str(span.partition), "start": span.start_number, "end": span.until_number},
        )
