"""The partitions of a read: the three ways to name them, and what each selects among the existing topics.

Rules: named topics must exist. Named partitions that do not exist are left out (and reported). A pattern must
match a topic's whole name. An internal topic is one that the brokers flag as such, whatever its name, and no
pattern matches it. A topic named twice counts once, or its rows would come twice.

>>> select_partitions(SelectTopics(("t",)), {"t": TopicView("t", (0, 1))}).partitions
(TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.errors import BrokerError, OptionError
from penstock.core.model import TopicPartition, TopicView
from penstock.core.planning.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True)
class SelectPartitions:
    """Exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class SelectTopics:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelectPattern:
    """All partitions of the topics whose whole name matches."""

    pattern: TopicPattern


Selection: TypeAlias = SelectPartitions | SelectTopics | SelectPattern


def selects_topic(selection: Selection, topic: str) -> bool:
    """Return whether a topic of this name is read, if it exists."""
    match selection:
        case SelectPartitions(partitions):
            return any(each.topic == topic for each in partitions)
        case SelectTopics(topics):
            return topic in topics
        case SelectPattern(pattern):
            return pattern.matches(topic)


@dataclass(frozen=True, slots=True)
class Selected:
    """The partitions to read, in order, and what is left out.

    Left out are named partitions that do not exist, and topics that a pattern matches only in part. Spark's
    own connector reads the latter, so a job that moves here needs a warning.
    """

    partitions: tuple[TopicPartition, ...]
    absent: tuple[TopicPartition, ...] = ()
    matched_in_part: tuple[str, ...] = ()


def name_topics(selection: Selection) -> tuple[str, ...] | None:
    """Return the topics to ask the brokers about, or None for all of them."""
    match selection:
        case SelectPartitions(partitions):
            return tuple(sorted({each.topic for each in partitions}))
        case SelectTopics(topics):
            return topics
        case SelectPattern():
            return None


def leave_out(selection: Selection, topics: Collection[str]) -> Selection:
    """Return the same selection without these topics. A pattern names none, so it stays."""
    match selection:
        case SelectPartitions(partitions):
            return SelectPartitions(tuple(each for each in partitions if each.topic not in topics))
        case SelectTopics(names):
            return SelectTopics(tuple(name for name in names if name not in topics))
        case SelectPattern():
            return selection


def select_partitions(selection: Selection, topics: Mapping[str, TopicView]) -> Selected:
    """Return the partitions that the selection finds in the topics that the brokers describe."""
    named = name_topics(selection)
    if isinstance(selection, SelectPattern):
        pattern = selection.pattern
        readable = {name: view for name, view in topics.items() if not view.internal}
        taken = [view for name, view in readable.items() if pattern.matches(name)]
        names = {view.name for view in taken}
        partly = sorted(name for name in readable if name not in names and pattern.occurs_in(name))
        return Selected(_list_partitions(taken), matched_in_part=tuple(partly))
    assert named is not None
    _check_topics(named, topics)
    existing = _list_partitions([topics[name] for name in named])
    if isinstance(selection, SelectTopics):
        return Selected(existing)
    there = set(existing)
    absent = tuple(each for each in selection.partitions if each not in there)
    return Selected(tuple(each for each in selection.partitions if each in there), absent)


def _list_partitions(views: list[TopicView]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(view.name, number) for view in views for number in view.partitions))


def _check_topics(named: tuple[str, ...], topics: Mapping[str, TopicView]) -> None:
    missing = [name for name in named if name not in topics]
    if missing:
        # A broker error, not an option error: a topic created a moment ago is not known to all brokers yet,
        # so asking again may help.
        raise BrokerError(
            "UNKNOWN_TOPIC",
            f"The brokers know no topic named {', '.join(missing)}.",
            hint="Create it, correct the name (case matters), or allow this user to describe it.",
            facts={"missing": missing},
            retriable=True,
        )
    internal = [name for name in named if topics[name].internal]
    if internal:
        raise OptionError(
            "INTERNAL_TOPIC",
            f"{', '.join(internal)} is internal to Kafka and is not read as data.",
            hint="Leave it out; Kafka's own tools read internal topics.",
            facts={"internal": internal},
        )
