"""Moving a stream by hand: to a time, to an offset, by so many records; and taking over a topic's new id.

Rules: what is asked for is bound to numbers once and shown before it is done; a rewind never moves a
partition ahead and a skip never takes one back (a partition that would go the other way stays, and that is
said); where the log is known, nobody is sent outside it. A partition that was moved forgets the leader epoch
it was read under: at another place of the log that epoch says nothing, and would be taken for a log that was
cut.

>>> at = StreamPosition({TopicPartition("t", 0): 90})
>>> plan = plan_moves(at, By(-50), Direction.BACK)
>>> [str(each) for each in plan.moves]
['t-0: 90 -> 40']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import At, Earliest, Latest, Since, TopicPartition, TopicView
from penstock.core.stream_offsets import Offsets, StreamPosition


@dataclass(frozen=True, slots=True)
class By:
    """So many records from where the stream stands; below zero is back."""

    records: int


@dataclass(frozen=True, slots=True)
class Each:
    """To an offset of its own for each partition; those that are not named stay."""

    offsets: Offsets


Target: TypeAlias = Earliest | Latest | Since | At | By | Each


class Direction(Enum):
    """Which way a partition may go."""

    BACK = "back"
    AHEAD = "ahead"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What the log says: its ends, and, for a time, the first record at or after it (None: there is none)."""

    earliest: Offsets
    latest: Offsets
    at_time: Mapping[TopicPartition, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to one partition, and why not what was asked for. None: it is not in the position."""

    partition: TopicPartition
    before: int | None
    after: int | None
    note: str = ""

    def __str__(self) -> str:
        told = f" ({self.note})" if self.note else ""
        shown = ["-" if each is None else f"{each}" for each in (self.before, self.after)]
        return f"{self.partition}: {' -> '.join(shown)}{told}"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """All moves, those included that go nowhere, and the position they lead to."""

    before: StreamPosition | None
    after: StreamPosition
    moves: tuple[Move, ...]
    notes: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return self.before == self.after


def needs_log(target: Target) -> bool:
    """Whether this cannot be bound without asking the brokers."""
    return isinstance(target, Earliest | Latest | Since)


def plan_moves(
    position: StreamPosition,
    target: Target,
    direction: Direction = Direction.EITHER,
    *,
    only: Collection[TopicPartition] | None = None,
    log: LogBounds | None = None,
) -> MovePlan:
    """Where each partition goes. `only` limits it to some; `log` is needed for ends and times."""
    asked = set(only if only is not None else ()) | set(target.offsets if isinstance(target, Each) else ())
    unknown = sorted(asked.difference(position.offsets))
    if unknown:
        raise _not_in_stream([str(each) for each in unknown], position)
    chosen = sorted(position.offsets if only is None else set(only))
    moves = [_move(each, position.offsets[each], target, direction, log) for each in chosen]
    moved = {
        each.partition: each.after for each in moves if each.after is not None and each.after != each.before
    }
    after = replace(
        position,
        offsets={**position.offsets, **moved},
        leader_epochs={each: epoch for each, epoch in position.leader_epochs.items() if each not in moved},
        starts={} if moved else position.starts,  # the last batch ended elsewhere
    )
    notes = () if log is not None else ("The log was not looked at: an offset may lie outside it.",)
    return MovePlan(position, after, tuple(moves), notes)


def plan_replacement(before: StreamPosition | None, after: StreamPosition) -> MovePlan:
    """Put a whole position, from another store or a file, in the place of what is there."""
    there = {} if before is None else before.offsets
    moves = [
        Move(each, there.get(each), after.offsets.get(each)) for each in sorted({*there, *after.offsets})
    ]
    return MovePlan(before, after, tuple(moves))


def plan_adoption(position: StreamPosition, topic: str, view: TopicView, log: LogBounds) -> MovePlan:
    """Go on in a topic that has taken the place of the one that was read, at the same offsets.

    After a restore or a fail-over to a mirror the records are the same and the topic's id is not. Whether
    they are the same only its owner knows. An offset outside the new log moves to the nearer end of it.
    """
    mine = [each for each in sorted(position.offsets) if each.topic == topic]
    if not mine:
        raise _not_in_stream([topic], position)
    missing = [str(each) for each in mine if each.partition not in view.partitions]
    if missing:
        raise OffsetStoreError(
            "ADOPTED_TOPIC_TOO_SMALL",
            f"The topic that is to be adopted has no {', '.join(missing)}; the stream stands there.",
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
        return MovePlan(position, position, tuple(moves), (f"The stream reads this topic {topic} already.",))
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
        "it holds the same records at the same offsets (a restore, a mirror); else use `rewind`."
    )
    return MovePlan(position, after, tuple(moves), (told,))


def _move(
    each: TopicPartition, before: int, target: Target, direction: Direction, log: LogBounds | None
) -> Move:
    wanted = _bind(each, before, target, log)
    move = _clamp(each, before, wanted, log)
    assert move.after is not None
    if direction is Direction.BACK and move.after > before:
        return Move(each, before, before, f"stays: {wanted} lies ahead")
    if direction is Direction.AHEAD and move.after < before:
        return Move(each, before, before, f"stays: {wanted} lies behind")
    return move


def _bind(each: TopicPartition, before: int, target: Target, log: LogBounds | None) -> int:
    match target:
        case By(records):
            return max(0, before + records)
        case At(offset):
            return offset
        case Each(offsets):
            return offsets.get(each, before)
    if log is None:
        raise OptionError(
            "LOG_NEEDED",
            "Where this is in the log only its brokers know, and none was named.",
            hint="Name the brokers the stream reads from, or move to an offset or by a number of records.",
        )
    match target:
        case Earliest():
            return log.earliest[each]
        case Latest():
            return log.latest[each]
    found = log.at_time[each]
    return log.latest[each] if found is None else found  # nothing is that young: all of it is behind


def _clamp(each: TopicPartition, before: int, wanted: int, log: LogBounds | None) -> Move:
    if log is not None and wanted < log.earliest[each]:
        return Move(each, before, log.earliest[each], f"the log begins there, not at {wanted}")
    if log is not None and wanted > log.latest[each]:
        return Move(each, before, log.latest[each], f"the log ends there, not at {wanted}")
    return Move(each, before, wanted)


def _show(topic_id: bytes | None) -> str:
    return "none" if topic_id is None else topic_id.hex()


def _not_in_stream(names: list[str], position: StreamPosition) -> OptionError:
    known = [str(each) for each in sorted(position.offsets)]
    return OptionError(
        "NOT_IN_STREAM",
        f"The stream does not stand in {', '.join(names)}.",
        hint=f"It stands in {', '.join(known[:20]) or 'no partition'}"
        + (f" and {len(known) - 20} more." if len(known) > 20 else "."),
        facts={"named": names},
    )
