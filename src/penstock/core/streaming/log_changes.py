"""Where a stream stands, what has happened to its log since, and how far the next batch goes.

`chart` compares a position with a fresh view of the log and says where each partition goes on, where it
could go to, what is lost and what is new. How far the next batch really goes is decided in `stream_batch`.

Rules: a partition found after the start is read from its first offset. An end never lies before its start.
A topic with another id is another topic, whatever its offsets (where brokers give no ids: one whose leader
epochs begin anew, for within a topic they only grow); a log cut off and written anew (its epochs
tell) goes on at the cut, because the rows there were never read. A partition that is gone keeps its
position: should the brokers only have forgotten it for a moment, nothing is read twice. What looks like loss
but may be a broker that is behind (`doubts`) is to be looked at again before it is believed.

Why not compare offsets alone, as Spark's connector does: a recreated topic whose end is above the stored
position then looks like one that has grown, and its first rows are silently skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.losses.loss_ranges import Loss
from penstock.core.losses.stream_loss_errors import (
    added_late,
    aged_out,
    deleted,
    no_first_offset,
    recreated,
    truncated,
    went_back,
)
from penstock.core.model import TopicPartition, TopicView
from penstock.core.offsets.stream_position import Offsets, StreamPosition
from penstock.core.planning.partition_selection import (
    Selection,
    SelectPartitions,
    SelectPattern,
    SelectTopics,
    leave_out,
    name_topics,
    select_partitions,
)


@dataclass(frozen=True, slots=True)
class StreamView:
    """The log as it was seen for one trigger: the ends of all partitions, the rest where it was asked."""

    topics: Mapping[str, TopicView]
    latest: Offsets
    earliest: Offsets = field(default_factory=dict)
    epoch_ends: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Course:
    """What the next batch can be. `begins` and `ends` name the same partitions, those that can be read."""

    before: StreamPosition
    begins: Offsets
    ends: Offsets
    topic_ids: Mapping[str, bytes]
    leader_epochs: Mapping[TopicPartition, int]
    gone: Offsets  # positions of partitions that are not there
    losses: tuple[Loss, ...] = ()
    news: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    added: tuple[TopicPartition, ...] = ()
    anew: frozenset[str] = frozenset()  # topics that are other ones than before

    @property
    def sizes(self) -> dict[TopicPartition, int]:
        return {each: self.ends[each] - begin for each, begin in self.begins.items()}

    @property
    def waiting(self) -> int:
        """Offsets that could be read now."""
        return sum(self.sizes.values())


# --- what to ask ----------------------------------------------------------------------------------------


def name_stream_topics(selection: Selection, position: StreamPosition) -> tuple[str, ...] | None:
    """The topics to ask about: those selected and those that have a position; None means all."""
    named = name_topics(selection)
    if named is None:
        return None
    return tuple(sorted({*named, *position.topics}))


def choose_partitions(
    selection: Selection, topics: Mapping[str, TopicView], position: StreamPosition
) -> tuple[TopicPartition, ...]:
    """Those selected that exist. A topic that was being read and is gone is no error here."""
    return _choose(selection, topics, position)[0]


def find_doubtful(
    position: StreamPosition,
    partitions: Iterable[TopicPartition],
    topics: Mapping[str, TopicView],
    latest: Offsets,
) -> tuple[set[TopicPartition], dict[TopicPartition, int]]:
    """Whose start must be asked for, and for which epochs (those that are no longer the leader's) the end.

    A partition at its end, under the same leader and of the same topic, needs no more questions: an idle
    stream costs one request to each broker.
    """
    starts: set[TopicPartition] = set()
    epochs: dict[TopicPartition, int] = {}
    anew = _find_anew(position, topics)
    for each in partitions:
        known = _find_stored(each, position, anew)
        if known is None or each.topic in anew:
            starts.add(each)
            continue
        if latest.get(each) != known:
            starts.add(each)
        then, now = position.leader_epochs.get(each), topics[each.topic].leader_epoch(each.partition)
        if then is not None and now is not None and then != now:
            epochs[each] = then
    return starts, epochs


# --- what has happened --------------------------------------------------------------------------------


def chart(
    selection: Selection, position: StreamPosition, view: StreamView, *, known_ends: Offsets | None = None
) -> Course:
    """Compare where the stream stands with the log there is. `known_ends`: what was seen of it before."""
    seen, anew = known_ends or {}, _find_anew(position, view.topics)
    partitions, news = _choose(selection, view.topics, position)
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    losses: list[Loss] = []
    doubts: list[str] = []
    added: list[TopicPartition] = []
    for each in partitions:
        topic, end = view.topics[each.topic], view.latest[each]
        stored = _find_stored(each, position, anew)
        begin, lost = _go_on(each, position, view, seen, anew)
        if stored is None:
            added.append(each)
        elif each.topic in anew:
            doubts.append(lost[0].detail)  # the broker may still know only the topic before ours
        elif not lost and end < max(begin, seen.get(each, 0)):
            lost = [went_back(each, stored, end, seen.get(each, 0), topic)]
            doubts.append(f"{each} ends before {lost[0].until}")
        losses += lost
        begins[each], ends[each] = begin, max(begin, end)
    lost_now = _find_gone(selection, position, view.topics, partitions)
    for each in lost_now:
        was = position.topic_ids.get(each.topic)
        losses.append(deleted(each, position.offsets[each], was, seen.get(each, 0)))
        doubts.append(losses[-1].detail)
    if added and position.offsets:
        news = (*news, f"New partitions: {list_names(added)}; they are read from their first offset.")
    gone = {
        each: offset
        for each, offset in (*position.gone.items(), *((each, position.offsets[each]) for each in lost_now))
        # Of a topic that was made anew, an old partition can only come back as a new one.
        if each not in begins and each.topic not in anew and _is_wanted(selection, each)
    }
    return Course(
        before=position,
        begins=begins,
        ends=ends,
        topic_ids=_learn_ids(position, begins, gone, view.topics),
        leader_epochs={
            each: epoch
            for each in begins
            if (epoch := view.topics[each.topic].leader_epoch(each.partition)) is not None
        },
        gone=gone,
        losses=tuple(losses),
        news=news,
        doubts=tuple(doubts),
        added=tuple(added),
        anew=anew,
    )


def _go_on(
    each: TopicPartition, position: StreamPosition, view: StreamView, seen: Offsets, anew: frozenset[str]
) -> tuple[int, list[Loss]]:
    """Where this partition goes on, and what was lost before that."""
    first, end, topic = view.earliest.get(each), view.latest[each], view.topics[each.topic]
    stored = _find_stored(each, position, anew)
    if stored is None or each.topic in anew:
        if first is None:
            raise no_first_offset(each)
        # A stream that has no position at all was just started: what lies before it was never promised.
        lost = [added_late(each, first, topic)] if first > 0 and position.offsets else []
        if stored is not None:
            old = position.topic_ids.get(each.topic)
            lost.insert(0, recreated(each, stored, old, topic, first, end, seen.get(each, 0)))
        return first, lost
    cut = view.epoch_ends.get(each)
    if cut is not None and cut < stored:
        lost = [truncated(each, stored, position.leader_epochs[each], topic, cut, end)]
        if first is not None and stored < first:
            lost.append(aged_out(each, stored, first, topic))
        return max(cut, first or 0), lost
    if first is not None and stored < first:
        return first, [aged_out(each, stored, first, topic)]
    return stored, []


def _choose(
    selection: Selection, topics: Mapping[str, TopicView], position: StreamPosition
) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
    vanished = {name for name in position.topics if name not in topics}
    selected = select_partitions(leave_out(selection, vanished), topics)
    news = [f"{each} does not exist and is left out." for each in selected.absent]
    if selected.matched_in_part:
        news.append(
            f"`subscribePattern` matches only a part of {', '.join(selected.matched_in_part[:10])}; they are "
            "left out."
        )
    left = _find_left(position, topics, selected.partitions)
    if left:
        news.append(f"No longer selected, position forgotten: {list_names(left)}.")
    return selected.partitions, tuple(news)


def _find_left(
    position: StreamPosition,
    topics: Mapping[str, TopicView],
    partitions: Sequence[TopicPartition],
) -> list[TopicPartition]:
    """Partitions that exist and have a position, but that the selection does not name any more."""
    chosen = set(partitions)
    return [
        each
        for each in sorted(position.offsets)
        if each not in chosen and each.topic in topics and each.partition in topics[each.topic].partitions
    ]


def _find_gone(
    selection: Selection,
    position: StreamPosition,
    topics: Mapping[str, TopicView],
    partitions: Sequence[TopicPartition],
) -> list[TopicPartition]:
    left = set(_find_left(position, topics, partitions))
    chosen = set(partitions)
    return [
        each
        for each in sorted(position.offsets)
        if each not in chosen and each not in left and _is_wanted(selection, each)
    ]


def _is_wanted(selection: Selection, each: TopicPartition) -> bool:
    match selection:
        case SelectTopics(names):
            return each.topic in names
        case SelectPartitions(partitions):
            return each in partitions
        case SelectPattern(pattern):
            return pattern.matches(each.topic)


def _find_anew(position: StreamPosition, topics: Mapping[str, TopicView]) -> frozenset[str]:
    """The topics that have been deleted and made again: by their ids, or by their epochs if no id is stored.

    An answer without an id for a topic that has one comes from a broker that is not upgraded yet. It decides
    nothing: the next answer with an id does.
    """
    ids = position.topic_ids
    anew = {
        name for name, view in topics.items() if view.topic_id not in (None, ids.get(name, view.topic_id))
    }
    for each, epoch in position.leader_epochs.items():
        if each.topic in topics and each.topic not in ids:
            now = topics[each.topic].leader_epoch(each.partition)
            if now is not None and now < epoch:
                anew.add(each.topic)
    return frozenset(anew)


def _find_stored(each: TopicPartition, position: StreamPosition, anew: frozenset[str]) -> int | None:
    """Where this partition stands. One that was gone and is back goes on there, unless it is another's."""
    stored = position.offsets.get(each)
    if stored is None and each.topic not in anew:
        stored = position.gone.get(each)
    return stored


def _learn_ids(
    position: StreamPosition,
    begins: Offsets,
    gone: Offsets,
    topics: Mapping[str, TopicView],
) -> dict[str, bytes]:
    ids = {each.topic: position.topic_ids[each.topic] for each in gone if each.topic in position.topic_ids}
    for name in {each.topic for each in begins}:
        topic_id = topics[name].topic_id or position.topic_ids.get(name)
        if topic_id is not None:
            ids[name] = topic_id
    return ids


def list_names(partitions: Sequence[TopicPartition]) -> str:
    """Names for an error or a log line, at most twenty."""
    if not partitions:
        return "none"
    shown = ", ".join(str(each) for each in partitions[:20])
    return shown + (f" and {len(partitions) - 20} more" if len(partitions) > 20 else "")
