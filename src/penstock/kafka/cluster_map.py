"""What is known of a cluster: its brokers, and who leads which partition. Memory only, no requests.

Rules kept here: news with an older leader epoch than we know is ignored, for it comes from a broker that lags
behind, unless the topic's id changed, for then it is another topic; what is forgotten keeps its epochs. Why
not simply replace the old answer by the new one: two brokers that disagree would send a reader back and
forth between an old and a new leader until its deadline.

    cluster = ClusterMap()
    cluster.learn(metadata_response)
    cluster.leader(TopicPartition("orders", 0), max_age_ms=300_000)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.model import TopicPartition, TopicView

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, as far as we know, and the identity of its topic."""

    node_id: int
    host: str
    port: int
    leader_epoch: int
    topic_id: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    leader_id: int  # below zero: none elected
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic in the last metadata that told of it."""

    name: str
    topic_id: bytes | None
    internal: bool
    partitions: dict[int, PartitionRoute]
    learned_at: float

    def view(self) -> TopicView:
        epochs = tuple(route.leader_epoch for route in self.partitions.values())
        known = all(epoch >= 0 for epoch in epochs)  # below zero: a broker that does not tell
        return TopicView(
            self.name, tuple(self.partitions), self.topic_id, self.internal, epochs if known else ()
        )


class ClusterMap:
    """The map of one cluster. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicRoute] = {}
        self._controller_id = -1

    def learn(self, response: Any) -> dict[str, TopicRoute]:
        """Take in a Metadata response; returns the topics in it that exist."""
        with self._lock:
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
            self._controller_id = response.controller_id
            for topic in response.topics:
                if topic.error_code:
                    self._topics.pop(topic.name, None)
                else:
                    self._topics[topic.name] = _route(topic, self._topics.get(topic.name))
            return {topic.name: self._topics[topic.name] for topic in response.topics if not topic.error_code}

    def leader(self, wanted: TopicPartition, max_age_ms: int) -> Leader | None:
        with self._lock:
            topic = self._topics.get(wanted.topic)
            if topic is None or wanted.partition not in topic.partitions:
                return None
            if (time.monotonic() - topic.learned_at) * 1000 > max_age_ms:
                return None
            route = topic.partitions[wanted.partition]
            address = self._brokers.get(route.leader_id)
            if address is None:
                return None
            return Leader(route.leader_id, *address, route.leader_epoch, topic.topic_id)

    def forget(self, topics: Iterable[str] | None = None) -> None:
        """Somebody was sent to the wrong broker: call what is known of these topics (all) out of date."""
        with self._lock:
            for name in self._topics if topics is None else topics:
                if name in self._topics:
                    self._topics[name] = replace(self._topics[name], learned_at=float("-inf"))

    def brokers(self) -> dict[int, Address]:
        with self._lock:
            return dict(self._brokers)

    def controller(self) -> Address | None:
        with self._lock:
            return self._brokers.get(self._controller_id)


def _route(topic: Any, known: TopicRoute | None) -> TopicRoute:
    topic_id = topic.topic_id.bytes if topic.topic_id else None
    topic_id = topic_id if topic_id and any(topic_id) else None  # all zeros: a broker without topic ids
    older = known.partitions if known is not None and known.topic_id == topic_id else {}
    partitions = {}
    for part in sorted(topic.partitions, key=lambda part: int(part.partition_index)):
        route = PartitionRoute(part.leader_id, part.leader_epoch)
        before = older.get(part.partition_index)
        behind = before is not None and 0 <= route.leader_epoch < before.leader_epoch
        partitions[part.partition_index] = before if before is not None and behind else route
    return TopicRoute(topic.name, topic_id, bool(topic.is_internal), partitions, time.monotonic())
