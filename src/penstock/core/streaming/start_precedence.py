"""Decides where each partition of a stream starts, if several sources name a position.

Rule: a person's order (a seek, a forced offset) wins over the stored position, which wins over the start that
the program gives for this partition, which wins over the start rule. This is decided for each partition
separately. The obvious way decides for all at once: one partition without a stored position, such as a new
one, then sends every other one back to its beginning. A stream that has run before does not use the rule:
`latest` would skip what was written to a new partition before it was found. It finds such partitions while it
runs, and reads them from their first offset.

`log_changes.chart` checks whether an offset still lies inside its log; this module does not.

>>> t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
>>> choice = choose_start(forced={}, stored=StreamPosition({t0: 5}), explicit={t0: 1, t1: 2}, by_rule={})
>>> [str(each) for each in choice.notes]
['t-0 at 5 (stored)', 't-1 at 2 (explicit)']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import NOWHERE, Offsets, StreamPosition

Origin: TypeAlias = Literal["forced", "stored", "explicit", "rule"]


@dataclass(frozen=True, slots=True)
class StartNote:
    """What decided where this partition starts; `instead_of` is the stored offset that was overruled."""

    partition: TopicPartition
    offset: int
    origin: Origin
    instead_of: int | None = None

    def __str__(self) -> str:
        overruled = "" if self.instead_of is None else f", instead of {self.instead_of}"
        return f"{self.partition} at {self.offset} ({self.origin}{overruled})"


class StartChoice(NamedTuple):
    """Where the stream starts, and one note for each of its partitions, in order."""

    position: StreamPosition
    notes: tuple[StartNote, ...]


def choose_start(
    *,
    forced: Offsets,
    stored: StreamPosition | None,
    explicit: Offsets,
    by_rule: Mapping[TopicPartition, int | None],
) -> StartChoice:
    """Return the start of each partition that any source names.

    `by_rule` has None where the rule is `none`; it counts only if nothing was ever stored. Whether a stored
    partition is gone is decided later, against the log. One that was gone stays so until it is overruled.
    Ids and epochs are those of the stored position, where it was followed. For a recreated topic, force all
    of its partitions, or the others keep the old id.
    """
    before = stored or NOWHERE
    ruled = by_rule if stored is None else {}
    notes: list[StartNote] = []
    without: list[TopicPartition] = []
    for each in sorted({*forced, *before.offsets, *explicit, *ruled}):
        known = before.offsets.get(each, before.gone.get(each))
        if each in forced:
            notes.append(StartNote(each, forced[each], "forced", known))
        elif known is not None:
            notes.append(StartNote(each, known, "stored"))
        elif each in explicit:
            notes.append(StartNote(each, explicit[each], "explicit"))
        elif (offset := ruled[each]) is not None:
            notes.append(StartNote(each, offset, "rule"))
        else:
            without.append(each)
    if without:
        raise _no_start(without)
    return StartChoice(_follow(before, notes), tuple(notes))


def _follow(before: StreamPosition, notes: Collection[StartNote]) -> StreamPosition:
    decided = {each.partition: each.offset for each in notes if each.origin != "stored"}
    offsets = {**before.offsets, **decided}
    gone = {each: offset for each, offset in before.gone.items() if each not in decided}
    followed = {each.topic for each in (*before.offsets, *gone) if each not in decided}
    return StreamPosition(
        dict(sorted(offsets.items())),
        {topic: each for topic, each in before.topic_ids.items() if topic in followed},
        {each: epoch for each, epoch in before.leader_epochs.items() if each not in decided},
        gone=gone,
    )


def _no_start(partitions: list[TopicPartition]) -> OffsetStoreError:
    names = [str(each) for each in partitions]
    return OffsetStoreError(
        "NO_STORED_OFFSET",
        f"Nothing is stored for {', '.join(names)}, and the start rule is `none`.",
        hint="If the stream has run before, look for its offsets: they may have expired, or the store or the "
        "stream's name has changed. If it is new, set the start rule to `earliest` or `latest`, or give "
        "these partitions a start.",
        facts={"partitions": names},
    )
