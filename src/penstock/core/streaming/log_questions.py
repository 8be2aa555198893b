"""Says what to ask the log for one trigger of a stream, and what follows from the answers.

Rule: an end belongs to the topic and the leader it was reported under. If a leader was elected between two
questions, the rows it has accepted would look like replacements of the intended ones. So whenever there may
be anything new to read, the topics are described again after the ends, and where they differ the ends are
asked for again. An idle stream costs one request to each broker: a partition at its end, under the same
leader and of the same topic, needs no more.

The engine only asks and repeats: `find_questions` names the next questions, and `follow` returns either what
is known by now, for more of them, or the course.

    while isinstance(known, LogLook):
        known = follow(known, ask(find_questions(known)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.core.model import TopicPartition, TopicView
from penstock.core.offsets.stream_position import Offsets, StreamPosition
from penstock.core.planning.partition_selection import Selection, name_topics
from penstock.core.streaming.log_changes import (
    Course,
    OldEpoch,
    StreamView,
    chart,
    choose_partitions,
    find_anew,
    find_stored,
)

#: How many looks in a row may see leaders change before a look is accepted as it is.
_LOOKS_AT_LEADERS = 10


@dataclass(frozen=True, slots=True)
class StreamQuestions:
    """What to ask next, in this order. `topics` is None for all; `again` bypasses what a view remembers."""

    topics: tuple[str, ...] | None = ()
    latest: tuple[TopicPartition, ...] = ()
    again: frozenset[str] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    earliest: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class LogLook:
    """What a look has shown so far; None is not asked yet. Earlier looks gave `known_ends` and `settled`."""

    selection: Selection
    position: StreamPosition
    known_ends: Offsets
    settled: Mapping[OldEpoch, int]
    topics: Mapping[str, TopicView] | None = None
    partitions: tuple[TopicPartition, ...] = ()
    latest: Offsets | None = None
    agrees: bool = False  # the ends were reported under these topics
    looks: int = 0


def find_questions(look: LogLook) -> StreamQuestions:
    """Return what to ask next, which is nothing if the answers so far are enough."""
    if look.topics is None:
        named = name_topics(look.selection)
        # Topics that have a position are included: one that was being read may no longer be selected.
        return StreamQuestions(None if named is None else tuple(sorted({*named, *look.position.topics})))
    if look.latest is None:
        return StreamQuestions(latest=look.partitions)
    if not look.agrees:
        return StreamQuestions(again=frozenset(each.topic for each in look.partitions))
    starts, epochs = _find_doubtful(look, look.topics, look.latest)
    # Where an old epoch ends is settled once there is another leader, so ask once, not at every trigger.
    new = {old[0]: old[1] for old in epochs if old not in look.settled}
    return StreamQuestions(epochs=new, earliest=frozenset(starts))


def follow(look: LogLook, answers: StreamView) -> LogLook | Course:
    """Return what is known with these answers, or the course when there are no more questions."""
    if look.topics is None:
        return _describe(look, answers.topics)
    if look.latest is None:
        # An end is accepted as it is where nothing may be new, or where leaders change all the time.
        is_idle = not look.partitions or answers.latest == look.position.offsets
        agrees = is_idle or look.looks == _LOOKS_AT_LEADERS
        return replace(look, latest=answers.latest, agrees=agrees)
    if not look.agrees:
        names = {each.topic for each in look.partitions}
        if not _find_changed(names, look.topics, answers.topics):
            return replace(look, agrees=True)
        others = {name: each for name, each in look.topics.items() if name not in names}
        return _describe(look, others | dict(answers.topics))
    _, epochs = _find_doubtful(look, look.topics, look.latest)
    found = {old: answers.epoch_ends.get(old[0], look.settled.get(old)) for old in epochs}
    settled = {old: end for old, end in found.items() if end is not None}
    ends = {old[0]: end for old, end in settled.items()}
    view = StreamView(look.topics, look.latest, answers.earliest, ends)
    return replace(chart(look.selection, look.position, view, known_ends=look.known_ends), settled=settled)


def _describe(look: LogLook, topics: Mapping[str, TopicView]) -> LogLook:
    partitions = choose_partitions(look.selection, topics, look.position)[0]
    return replace(look, topics=topics, partitions=partitions, latest=None, looks=look.looks + 1)


def forget_changed_leaders(
    position: StreamPosition, then: Mapping[str, TopicView], now: Mapping[str, TopicView]
) -> StreamPosition:
    """Return the position without the epochs of topics where a leader was elected since.

    Under which leader the start was reported is then unknown.
    """
    changed = _find_changed(position.topics, then, now)
    epochs = {each: epoch for each, epoch in position.leader_epochs.items() if each.topic not in changed}
    return replace(position, leader_epochs=epochs)


def _find_changed(
    names: Iterable[str], before: Mapping[str, TopicView], now: Mapping[str, TopicView]
) -> set[str]:
    """Return the topics that are gone, were recreated, or have a partition with another leader."""

    def is_same(old: TopicView, new: TopicView | None) -> bool:
        if new is None or new.topic_id != old.topic_id:
            return False
        known = zip(old.partitions, old.leader_epochs, strict=False)
        return all(new.leader_epoch(partition) == epoch for partition, epoch in known)

    return {name for name in names if not is_same(before[name], now.get(name))}


def _find_doubtful(
    look: LogLook, topics: Mapping[str, TopicView], latest: Offsets
) -> tuple[set[TopicPartition], list[OldEpoch]]:
    """Return the partitions whose start to ask for, and the past leader epochs whose end to ask for."""
    starts: set[TopicPartition] = set()
    epochs: list[OldEpoch] = []
    anew = find_anew(look.position, topics)
    for each in look.partitions:
        known = find_stored(each, look.position, anew)
        if known is None or each.topic in anew:
            starts.add(each)
            continue
        if latest.get(each) != known:
            starts.add(each)
        topic, then = topics[each.topic], look.position.leader_epochs.get(each)
        now = topic.leader_epoch(each.partition)
        if then is not None and now is not None and then != now:
            epochs.append((each, then, now, topic.topic_id))
    return starts, epochs
