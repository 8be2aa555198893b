"""Plans moves of a stream by hand: to a time or an offset, by a number of records, or to a topic's new id.

Rules: a move is bound to numbers once and shown before it is made. A rewind never moves a partition ahead and
a skip never moves one back (a partition that would go the other way stays, and the plan says so). Where the
log is known, no partition is moved outside it. A moved partition forgets the leader epoch it was read under:
elsewhere in the log that epoch means nothing, and would look like a truncated log.

>>> at = StreamPosition({TopicPartition("t", 0): 90})
>>> plan = plan_rewind(at, ByRecords(-50), RewindDirection.BACK)
>>> [str(each) for each in plan.moves]
['t-0: 90 -> 40']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import At, Earliest, Latest, Since, TopicPartition, TopicView
from penstock.core.offsets.stream_position import Offsets, StreamPosition
from penstock.core.prose import shorten


@dataclass(frozen=True, slots=True)
class ByRecords:
    """A target this many records from the stream's position; a negative number goes back."""

    records: int


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """A target offset for each named partition; the others stay."""

    offsets: Offsets


_NOT_LOOKED = "The log was not looked at: an offset may lie outside it."

RewindTarget: TypeAlias = Earliest | Latest | Since | At | ByRecords | ToOffsets


class RewindDirection(Enum):
    """The direction in which a partition may move."""

    BACK = "back"
    AHEAD = "ahead"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The log's ends, and, for a time, the first record at or after it, or None if there is none."""

    earliest: Offsets
    latest: Offsets
    at_time: Mapping[TopicPartition, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionRewind:
    """The move of one partition, and why it differs from the request. None means not in the position."""

    partition: TopicPartition
    before: int | None
    after: int | None
    note: str = ""

    def __str__(self) -> str:
        told = f" ({self.note})" if self.note else ""
        shown = ["-" if each is None else f"{each}" for each in (self.before, self.after)]
        return f"{self.partition}: {' -> '.join(shown)}{told}"


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """All moves, including those that change nothing, and the position they lead to."""

    before: StreamPosition | None
    after: StreamPosition
    moves: tuple[PartitionRewind, ...]
    notes: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return self.before == self.after


def needs_log(target: RewindTarget) -> bool:
    """Return whether this target cannot be bound without asking the brokers."""
    return isinstance(target, Earliest | Latest | Since)


def plan_rewind(
    position: StreamPosition,
    target: RewindTarget,
    direction: RewindDirection = RewindDirection.EITHER,
    *,
    only: Collection[TopicPartition] | None = None,
    log: LogBounds | None = None,
    anew: Mapping[str, TopicView] | None = None,
) -> RewindPlan:
    """Return where each partition goes.

    `only` limits the move to some partitions, and `log` is needed for ends and times. `anew` are recreated
    topics, which are read as other logs, from their beginning.
    """
    refuse_unknown(position, target, only)
    chosen = sorted(position.offsets if only is None else set(only))
    others = {} if anew is None else anew
    _refuse_other_logs(position, target, chosen, others)
    moves = [
        _begin_anew(each, position.offsets[each], others[each.topic], log)
        if each.topic in others
        else _move(each, position.offsets[each], target, direction, log)
        for each in chosen
    ]
    moved = {
        each.partition: each.after for each in moves if each.after is not None and each.after != each.before
    }
    dropped = {each.partition for each in moves if each.after is None}
    ids = {topic: known for topic, view in others.items() if (known := view.topic_id) is not None}
    after = replace(
        position,
        offsets={each: n for each, n in {**position.offsets, **moved}.items() if each not in dropped},
        topic_ids={**position.topic_ids, **ids},
        leader_epochs={
            each: epoch
            for each, epoch in position.leader_epochs.items()
            if each not in moved and each.topic not in others
        },
        starts={} if moved or others else position.starts,  # the last batch ended elsewhere
        gone={each: n for each, n in position.gone.items() if each.topic not in others},
    )
    notes = [] if log is not None else [_NOT_LOOKED]
    notes += [_tell_other_log(topic, position, view) for topic, view in sorted(others.items())]
    return RewindPlan(position, after, tuple(moves), tuple(notes))


def explain_other_logs(topics: Sequence[str], why: str = "") -> OptionError:
    """Return the error for topics that are not the ones the stream has read."""
    named = ", ".join(topics)
    return OptionError(
        "LOG_OF_ANOTHER_TOPIC",
        f"The brokers have another topic {named} than the stream has read: its id is another one.{why}",
        hint="Name the brokers that the stream reads from (--bootstrap-server). If the topic was recreated "
        "there, `penstock offsets rewind --to-start` reads the new one from its beginning. If it was "
        "restored, or mirrored, with the same records at the same offsets, run `penstock offsets adopt`.",
        facts={"topics": list(topics)},
    )


def _refuse_other_logs(
    position: StreamPosition,
    target: RewindTarget,
    chosen: Collection[TopicPartition],
    others: Mapping[str, TopicView],
) -> None:
    """Refuse to count from one log's offsets in another, and to leave part of a topic in the old log."""
    if others and not isinstance(target, Earliest):
        raise explain_other_logs(sorted(others), " Where the stream stood says nothing about it.")
    left = [str(each) for each in sorted(position.offsets) if each.topic in others and each not in chosen]
    if left:
        raise explain_other_logs(
            sorted(others), f" So {', '.join(left)} cannot stay where the stream stood: name whole topics."
        )


def _begin_anew(each: TopicPartition, before: int, view: TopicView, log: LogBounds | None) -> PartitionRewind:
    if each.partition not in view.partitions:
        return PartitionRewind(each, before, None, "the new topic has no such partition")
    assert log is not None  # a known new topic has a known log
    return PartitionRewind(each, before, log.earliest[each], "the new topic begins there")


def _tell_other_log(topic: str, position: StreamPosition, view: TopicView) -> str:
    return (
        f"Topic {topic}: id {_show(position.topic_ids.get(topic))} -> {_show(view.topic_id)}. This is "
        "another topic with other records: all of them are read. What was read of the previous one stays as "
        "it is, and cannot be read again. If the new one was restored with the same records at the same "
        "offsets, do not do this: use `adopt`."
    )


def refuse_unknown(
    position: StreamPosition, target: RewindTarget, only: Collection[TopicPartition] | None = None
) -> None:
    """Refuse partitions in which the stream has no position. This does not ask the brokers."""
    asked = set(only if only is not None else ()) | set(
        target.offsets if isinstance(target, ToOffsets) else ()
    )
    unknown = sorted(asked.difference(position.offsets))
    if unknown:
        raise explain_unknown([str(each) for each in unknown], position)


def plan_replacement(
    before: StreamPosition | None, after: StreamPosition, log: LogBounds | None = None
) -> RewindPlan:
    """Return the plan to replace a whole position with one from another store or a file.

    An offset outside the log moves to its nearer end.
    """
    there = {} if before is None else before.offsets
    moves = []
    for each in sorted({*there, *after.offsets}):
        offset = after.offsets.get(each)
        clamped = PartitionRewind(each, None, None) if offset is None else _clamp(each, offset, offset, log)
        moves.append(replace(clamped, before=there.get(each)))
    moved = {
        each.partition: n
        for each in moves
        if (n := each.after) is not None and n != after.offsets[each.partition]
    }
    if moved:
        after = replace(
            after,
            offsets={**after.offsets, **moved},
            leader_epochs={each: n for each, n in after.leader_epochs.items() if each not in moved},
            starts={},
        )
    notes = [] if log is not None else [_NOT_LOOKED]
    known = {} if before is None else before.topic_ids
    notes += [
        f"Topic {topic}: id {_show(known[topic])} -> {_show(new)}. From now on this is another topic of that "
        "name: what was read of the one before is not read again."
        for topic, new in sorted(after.topic_ids.items())
        if known.get(topic, new) != new
    ]
    return RewindPlan(before, after, tuple(moves), tuple(notes))


def plan_adoption(position: StreamPosition, topic: str, view: TopicView, log: LogBounds) -> RewindPlan:
    """Return the plan to go on, at the same offsets, in a topic that has replaced the one that was read.

    After a restore or a failover to a mirror the records are the same but the topic's id is not. Only the
    topic's owner knows whether they are the same. An offset outside the new log moves to its nearer end.
    """
    mine = [each for each in sorted(position.offsets) if each.topic == topic]
    if not mine:
        raise explain_unknown([topic], position)
    missing = [str(each) for each in mine if each.partition not in view.partitions]
    if missing:
        raise OffsetStoreError(
            "ADOPTED_TOPIC_TOO_SMALL",
            f"The topic to adopt has no {', '.join(missing)}, in which the stream has a position.",
            hint="Adopt a topic with the same partitions, or give it more.",
            facts={"topic": topic, "partitions": missing},
        )
    moves = [_clamp(each, position.offsets[each], position.offsets[each], log) for each in mine]
    ids = dict(position.topic_ids)
    if view.topic_id is None:
        ids.pop(topic, None)
    else:
        ids[topic] = view.topic_id
    if ids == position.topic_ids and all(each.after == each.before for each in moves):
        return RewindPlan(
            position, position, tuple(moves), (f"The stream reads this topic {topic} already.",)
        )
    after = replace(
        position,
        offsets={
            **position.offsets,
            **{each.partition: n for each in moves if (n := each.after) is not None},
        },
        topic_ids=ids,
        leader_epochs={each: n for each, n in position.leader_epochs.items() if each.topic != topic},
        starts={each: n for each, n in position.starts.items() if each.topic != topic},
    )
    told = (
        f"Topic {topic}: id {_show(position.topic_ids.get(topic))} -> {_show(view.topic_id)}. Right only if "
        "it holds the same records at the same offsets (a restore, a mirror); from now on they count as the "
        "same. Else use `rewind --to-start`, which reads the new topic as another one."
    )
    return RewindPlan(position, after, tuple(moves), (told,))


def _move(
    each: TopicPartition, before: int, target: RewindTarget, direction: RewindDirection, log: LogBounds | None
) -> PartitionRewind:
    wanted = _bind(each, before, target, log)
    move = _clamp(each, before, wanted, log)
    if isinstance(target, Since) and log is not None and log.at_time[each] is None:
        move = replace(move, note="the end of the log: no record is of that time or later")
    assert move.after is not None
    if direction is RewindDirection.BACK and move.after > before:
        return PartitionRewind(each, before, before, f"stays: {wanted} lies ahead")
    if direction is RewindDirection.AHEAD and move.after < before:
        return PartitionRewind(each, before, before, f"stays: {wanted} lies behind")
    return move


def _bind(each: TopicPartition, before: int, target: RewindTarget, log: LogBounds | None) -> int:
    match target:
        case ByRecords(records):
            return max(0, before + records)
        case At(offset):
            return offset
        case ToOffsets(offsets):
            return offsets.get(each, before)
    if log is None:
        raise OptionError(
            "LOG_NEEDED",
            "Only the brokers know where this is in the log, and no brokers were named.",
            hint="Name the brokers the stream reads from, or move to an offset or by a number of records.",
        )
    match target:
        case Earliest():
            return log.earliest[each]
        case Latest():
            return log.latest[each]
    found = log.at_time[each]
    return log.latest[each] if found is None else found  # no record is that recent


def _clamp(each: TopicPartition, before: int, wanted: int, log: LogBounds | None) -> PartitionRewind:
    if log is not None and wanted < log.earliest[each]:
        return PartitionRewind(each, before, log.earliest[each], f"the log begins there, not at {wanted}")
    if log is not None and wanted > log.latest[each]:
        return PartitionRewind(each, before, log.latest[each], f"the log ends there, not at {wanted}")
    return PartitionRewind(each, before, wanted)


def _show(topic_id: bytes | None) -> str:
    return "none" if topic_id is None else topic_id.hex()


def explain_unknown(names: list[str], position: StreamPosition) -> OptionError:
    """Return the error for names of partitions in which the stream has no position."""
    known = [str(each) for each in sorted(position.offsets)]
    return OptionError(
        "NOT_IN_STREAM",
        f"The stream does not stand in {', '.join(names)}.",
        hint=f"It stands in {shorten(known, 20) or 'no partition'}.",
        facts={"named": names},
    )
