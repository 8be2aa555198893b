"""Finds where leader epochs end in today's log, to check a position after an election.

Rule: only the partition's current leader is believed, and what it cannot answer is left out, never
guessed. Every record was written in some leader's epoch; a follower that is elected without all of its
leader's records starts a new epoch below them. So a position that was read in epoch 3 and lies above the end
of epoch 3 belongs to records that are gone, though that offset may exist again. Why not compare
the position with the log's end: after a few new records the end is past it, and the loss is invisible.

    find_epoch_ends(routing, {TopicPartition("orders", 0): 3}, deadline)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import by_topic
from penstock.kafka.metadata.cluster_map import Leader
from penstock.kafka.metadata.routing import Routing
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import OffsetForLeaderEpochRequest

_A_CONSUMER, _UNKNOWN = -1, -1


def find_epoch_ends(
    routing: Routing, epochs: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return where each epoch (and all before it) ends, leaving out partitions that are gone or unknown."""
    if not epochs:
        return {}
    found = routing.refresh({wanted.topic for wanted in epochs}, deadline)
    there = [
        each for each in epochs if each.topic in found and each.partition in found[each.topic].partitions
    ]

    def build(led: dict[TopicPartition, Leader]) -> Any:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        return OffsetForLeaderEpochRequest(
            replica_id=_A_CONSUMER,
            topics=[
                topic(
                    topic=name,
                    partitions=[
                        topic.OffsetForLeaderPartition(
                            partition=wanted.partition,
                            current_leader_epoch=led[wanted].leader_epoch,
                            leader_epoch=epochs[wanted],
                        )
                        for wanted in some
                    ],
                )
                for name, some in by_topic(led)
            ],
        )

    try:
        ends = routing.ask_leaders(there, build, _read, deadline)
    except BrokerError as error:
        if error.condition != "UNSUPPORTED_VERSION":
            raise
        return {}  # a broker before 2.1 does not offer this to clients
    return {wanted: end for wanted, end in ends.items() if end != _UNKNOWN}


def _read(response: Any) -> Iterable[tuple[TopicPartition, int, int]]:
    for topic in response.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.topic, part.partition), part.error_code, part.end_offset
