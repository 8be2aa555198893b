"""What is known of a cluster: its brokers, and which of them leads each partition. Memory only, no requests.

Rules: metadata with an older leader epoch than ours is ignored, because it comes from a broker that lags
behind, unless the topic's id changed: then it is another topic. Forgotten topics keep their epochs. A
lower epoch is believed once several answers in a row over some seconds have had it and none has had ours:
the topic was recreated on brokers without topic ids (before 2.8), or their metadata comes from a backup.
Why not simply replace the old answer with the new one: two brokers that disagree would send a reader back and
forth between an old and a new leader until its deadline.

    cluster = ClusterMap()
    cluster.learn(metadata_response)
    cluster.leader(TopicPartition("orders", 0), max_age_ms=300_000)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.model import TopicPartition, TopicView

BrokerAddress = tuple[str, int]

#: A lower epoch is believed after this many answers in a row, over at least this time. Brokers learn of an
#: election within about a second, and a caller that keeps asking for a leader reaches these limits in time.
_LOWER_ANSWERS = 3
_LOWER_FOR_S = 5.0


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader, as far as we know, and the identity of its topic."""

    node_id: int
    host: str
    port: int
    leader_epoch: int
    topic_id: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    leader_id: int  # below zero: none elected
    leader_epoch: int
    lower_answers: int = 0  # in a row, with an older epoch than this
    lower_since: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic, as the last metadata that included it described it."""

    name: str
    topic_id: bytes | None
    internal: bool
    partitions: dict[int, PartitionRoute]
    learned_at: float

    def view(self) -> TopicView:
        epochs = tuple(route.leader_epoch for route in self.partitions.values())
        known = all(epoch >= 0 for epoch in epochs)  # below zero: the broker does not say
        return TopicView(
            self.name, tuple(self.partitions), self.topic_id, self.internal, epochs if known else ()
        )


class ClusterMap:
    """The map of one cluster. Safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._brokers: dict[int, BrokerAddress] = {}
        self._topics: dict[str, TopicRoute] = {}
        self._controller_id = -1
        self._listed: tuple[float, Collection[str]] | None = None

    def learn(self, response: Any, *, complete: bool = False) -> dict[str, TopicRoute]:
        """Store a Metadata response, which is `complete` if it lists all topics; return those that exist."""
        with self._lock:
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
            self._controller_id = response.controller_id
            for topic in response.topics:
                if topic.error_code:
                    self._topics.pop(topic.name, None)
                else:
                    self._topics[topic.name] = _route(topic, self._topics.get(topic.name), self._clock())
            found = {
                topic.name: self._topics[topic.name] for topic in response.topics if not topic.error_code
            }
            if complete:
                self._listed = (self._clock(), tuple(found))
            return found

    def recall(self, topics: Collection[str] | None, max_age_ms: int) -> dict[str, TopicRoute] | None:
        """Return what is known of these topics (None: all), or None if any is missing or too old."""
        with self._lock:
            if topics is None:
                if self._listed is None or self._age_ms(self._listed[0]) >= max_age_ms:
                    return None
                topics = self._listed[1]
            found = {name: self._topics[name] for name in topics if name in self._topics}
            young = all(self._age_ms(route.learned_at) < max_age_ms for route in found.values())
            return found if young and len(found) == len(topics) else None

    def leader(self, wanted: TopicPartition, max_age_ms: int) -> Leader | None:
        with self._lock:
            topic = self._topics.get(wanted.topic)
            if topic is None or wanted.partition not in topic.partitions:
                return None
            if self._age_ms(topic.learned_at) > max_age_ms:
                return None
            route = topic.partitions[wanted.partition]
            address = self._brokers.get(route.leader_id)
            if address is None:
                return None
            return Leader(route.leader_id, *address, route.leader_epoch, topic.topic_id)

    def forget(self, topics: Iterable[str]) -> None:
        """Mark these topics as out of date: a request was sent to the wrong broker."""
        with self._lock:
            for name in topics:
                if name in self._topics:
                    self._topics[name] = replace(self._topics[name], learned_at=float("-inf"))

    def brokers(self) -> dict[int, BrokerAddress]:
        with self._lock:
            return dict(self._brokers)

    def controller(self) -> BrokerAddress | None:
        with self._lock:
            return self._brokers.get(self._controller_id)

    def _age_ms(self, learned_at: float) -> float:
        return (self._clock() - learned_at) * 1000


def _route(topic: Any, known: TopicRoute | None, now: float) -> TopicRoute:
    topic_id = topic.topic_id.bytes if topic.topic_id else None
    topic_id = topic_id if topic_id and any(topic_id) else None  # all zeros: a broker without topic ids
    # Only two ids tell two topics apart: while brokers are upgraded, some answers have none.
    is_other = known is not None and None not in (topic_id, known.topic_id) and topic_id != known.topic_id
    older = {} if known is None or is_other else known.partitions
    partitions = {}
    for part in sorted(topic.partitions, key=lambda part: int(part.partition_index)):
        route = PartitionRoute(part.leader_id, part.leader_epoch)
        partitions[part.partition_index] = _believe(route, older.get(part.partition_index), now)
    return TopicRoute(topic.name, topic_id, bool(topic.is_internal), partitions, now)


def _believe(told: PartitionRoute, known: PartitionRoute | None, now: float) -> PartitionRoute:
    """Return the route to use from now on."""
    if known is None or not 0 <= told.leader_epoch < known.leader_epoch:
        return told
    answers = known.lower_answers + 1
    since = known.lower_since if known.lower_answers else now
    if answers >= _LOWER_ANSWERS and now - since >= _LOWER_FOR_S:
        return told
    return replace(known, lower_answers=answers, lower_since=since)
