"""Compares a stream's position with its log: what has changed, and how far the next batch can go.

`chart` compares a position with a fresh view of the log and says where each partition goes on, where it could
go to, what is lost and what is new. `log_questions` says what to ask for that, `next_batch` how far to go.

Rules: a partition found after the start is read from its first offset. An end never lies before its start. A
topic with another id is another topic, whatever its offsets. Where brokers give no ids, so is one whose
leader epochs begin anew, because within a topic they only grow. A log cut off and written anew (as its epochs
show) goes on at the cut, because the rows there were never read. A partition that is gone keeps its position:
if the brokers only forgot it for a moment, nothing is read twice. What looks like loss but may be a lagging
broker (`doubts`) must be checked again before it is believed.

Why not compare offsets alone, as Spark's connector does: a recreated topic whose end is above the stored
position then looks like one that has grown, and its first rows are silently skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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
    leave_out,
    select_partitions,
    selects_topic,
)
from penstock.core.prose import shorten

#: A partition, an epoch that is over, its leader's epoch now, and the topic's id.
OldEpoch: TypeAlias = tuple[TopicPartition, int, int | None, bytes | None]


@dataclass(frozen=True, slots=True)
class StreamView:
    """The log as seen for one trigger: the ends of all partitions, the rest where it was asked for."""

    topics: Mapping[str, TopicView]
    latest: Offsets
    earliest: Offsets = field(default_factory=dict)
    epoch_ends: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Course:
    """The possible extent of the next batch. `begins` and `ends` name the same, readable partitions."""

    before: StreamPosition
    begins: Offsets
    ends: Offsets
    topic_ids: Mapping[str, bytes]
    leader_epochs: Mapping[TopicPartition, int]
    gone: Offsets  # positions of missing partitions
    losses: tuple[Loss, ...] = ()
    news: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    added: tuple[TopicPartition, ...] = ()
    anew: frozenset[str] = frozenset()  # recreated topics
    settled: Mapping[OldEpoch, int] = field(default_factory=dict)  # where they end

    @property
    def sizes(self) -> dict[TopicPartition, int]:
        return {each: self.ends[each] - begin for each, begin in self.begins.items()}

    @property
    def waiting(self) -> int:
        """Return how many offsets could be read now."""
        return sum(self.sizes.values())

    def measure(self, end: StreamPosition) -> tuple[int, bool]:
        """Return how many offsets a batch up to `end` has, and whether it leaves any behind."""
        records = sum(end.offsets[each] - begin for each, begin in self.begins.items())
        return records, records != self.waiting


def chart(
    selection: Selection, position: StreamPosition, view: StreamView, *, known_ends: Offsets | None = None
) -> Course:
    """Return how the log differs from the stream's position. `known_ends` are the ends seen before."""
    seen, anew = known_ends or {}, find_anew(position, view.topics)
    partitions, news = choose_partitions(selection, view.topics, position)
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    losses: list[Loss] = []
    doubts: list[str] = []
    added: list[TopicPartition] = []
    for each in partitions:
        topic, end = view.topics[each.topic], view.latest[each]
        stored = find_stored(each, position, anew)
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
    lost_now = [
        each
        for each in sorted(position.offsets)
        if each not in begins and not _is_there(each, view.topics) and _is_wanted(selection, each)
    ]
    for each in lost_now:
        was = position.topic_ids.get(each.topic)
        losses.append(deleted(each, position.offsets[each], was, seen.get(each, 0)))
        doubts.append(losses[-1].detail)
    if added and position.offsets:
        news = (*news, f"New partitions: {list_names(added)}; they are read from their first offset.")
    gone = {
        each: offset
        for each, offset in (*position.gone.items(), *((each, position.offsets[each]) for each in lost_now))
        # Of a recreated topic, an old partition can only come back as a new one.
        if each not in begins and each.topic not in anew and _is_wanted(selection, each)
    }
    return Course(
        before=position,
        begins=begins,
        ends=ends,
        topic_ids=_learn_ids(position, begins, gone, view.topics),
        leader_epochs=list_epochs(begins, view.topics),
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
    """Return where this partition goes on, and what was lost before that."""
    first, end, topic = view.earliest.get(each), view.latest[each], view.topics[each.topic]
    stored = find_stored(each, position, anew)
    if stored is None or each.topic in anew:
        if first is None:
            raise no_first_offset(each)
        # A stream without any position was just started: earlier records were never promised.
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


def choose_partitions(
    selection: Selection, topics: Mapping[str, TopicView], position: StreamPosition
) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
    """Return the selected partitions that exist, and the news.

    A topic that was being read and is gone is not an error here.
    """
    vanished = {name for name in position.topics if name not in topics}
    selected = select_partitions(leave_out(selection, vanished), topics)
    news = [f"{each} does not exist and is left out." for each in selected.absent]
    if selected.matched_in_part:
        news.append(
            f"`subscribePattern` matches only a part of {', '.join(selected.matched_in_part[:10])}; they are "
            "left out."
        )
    chosen = set(selected.partitions)
    left = [each for each in sorted(position.offsets) if each not in chosen and _is_there(each, topics)]
    if left:
        news.append(f"No longer selected, position forgotten: {list_names(left)}.")
    return selected.partitions, tuple(news)


def _is_there(each: TopicPartition, topics: Mapping[str, TopicView]) -> bool:
    return each.topic in topics and each.partition in topics[each.topic].partitions


def _is_wanted(selection: Selection, each: TopicPartition) -> bool:
    if isinstance(selection, SelectPartitions):
        return each in selection.partitions
    return selects_topic(selection, each.topic)


def find_anew(position: StreamPosition, topics: Mapping[str, TopicView]) -> frozenset[str]:
    """Return the recreated topics, judged by their ids, or by their epochs if no id is stored.

    An answer without an id for a topic that has one comes from a broker that is not upgraded yet. It decides
    nothing, and the next answer with an id does.
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


def find_stored(each: TopicPartition, position: StreamPosition, anew: frozenset[str]) -> int | None:
    """Return this partition's stored offset, even if it was gone and is back, but not if it was recreated."""
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


def list_epochs(
    partitions: Iterable[TopicPartition], topics: Mapping[str, TopicView]
) -> dict[TopicPartition, int]:
    """Return the epochs of the partitions' leaders, where the brokers report them."""
    epochs = {each: topics[each.topic].leader_epoch(each.partition) for each in partitions}
    return {each: epoch for each, epoch in epochs.items() if epoch is not None}


def list_names(partitions: Sequence[TopicPartition]) -> str:
    """Return the partitions' names for an error or a log line, at most twenty."""
    return shorten([str(each) for each in partitions], 20) or "none"
