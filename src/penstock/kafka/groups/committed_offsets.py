"""Reads and writes what consumer groups have committed.

Rule: a stream is never a member of a group. It commits as an outsider, which Kafka allows while the group has
no members, so no rebalance can take its partitions away and no session can expire in a long batch. Why not
use a consumer's `commit`: it needs a membership that this process would have to keep alive. A commit
is for lag tools and for users who start from it; where a stream goes on is decided elsewhere.

    commit_offsets(settings, "nightly", {TopicPartition("orders", 0): 120}, timeout_ms=30_000)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.prose import shorten
from penstock.kafka.metadata.broker_errors import UNKNOWN_TOPIC_OR_PARTITION, refusal
from penstock.kafka.metadata.routing import Routing, routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import OffsetCommitRequest, OffsetFetchRequest, error_name

_NO_OFFSET, _NO_GENERATION, _NO_EPOCH = -1, -1, -1
# From version 10, both requests name topics by id; a group may have offsets of topics that have none now.
_BY_NAME = 9
# The errors an outsider gets when the group has members (the last three: the newer group protocol).
_HAS_MEMBERS = {22, 25, 27, 110, 113}


#: How often to ask a coordinator again that does not know a topic.
_LOOKS_FOR_A_TOPIC = 5


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A group's commit for one partition: the next offset, and the metadata its writer attached."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


def commit_offsets(
    settings: ClientSettings,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_ms: int,
    metadata: str | Mapping[TopicPartition, str] = "",
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Commit these offsets, each the next one to read; return when the coordinator has stored them.

    A moving coordinator is retried until the deadline. A refusal names the partitions it concerns; the others
    of the same call are still stored. `metadata` is one text for all, or one for each.
    """
    below = [f"{each} to {offset}" for each, offset in sorted(offsets.items()) if offset < 0]
    if below:
        raise ValueError(f"an offset is never below zero: {', '.join(below)}")
    if not offsets:
        return
    epochs = leader_epochs or {}
    texts = dict.fromkeys(offsets, metadata) if isinstance(metadata, str) else metadata

    def build() -> Any:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=_NO_GENERATION,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.OffsetCommitRequestPartition(
                            partition_index=each.partition,
                            committed_offset=offsets[each],
                            committed_leader_epoch=epochs.get(each, _NO_EPOCH),
                            committed_metadata=texts.get(each, ""),
                        )
                        for each in some
                    ],
                )
                for name, some in by_topic(offsets)
            ],
        )

    unknown_left = _LOOKS_FOR_A_TOPIC

    def code_to_retry(response: Any) -> int:
        # A coordinator that has just started may not know a topic yet. A deleted topic stays unknown; it is
        # reported after a few tries, not after the whole deadline.
        nonlocal unknown_left
        codes = _refusals(response).values()
        if UNKNOWN_TOPIC_OR_PARTITION in codes and unknown_left:
            unknown_left -= 1
            return UNKNOWN_TOPIC_OR_PARTITION
        return next((code for code in codes if code != UNKNOWN_TOPIC_OR_PARTITION), 0)

    deadline = Deadline.after_ms(timeout_ms, "timeout_ms")
    response, broker = routing_for(settings).call_coordinator(
        group, build, deadline, code_to_retry, max_version=_BY_NAME
    )
    refused = _refusals(response)
    if refused:
        raise _not_committed(refused, group, broker)


def fetch_committed(
    routing: Routing, group: str, partitions: Collection[TopicPartition] | None, deadline: Deadline
) -> dict[TopicPartition, int | None]:
    """Return each partition's committed offset, or None; for `partitions=None`, all the group has."""
    found = fetch_commits(routing, group, partitions, deadline)
    return {each: None if commit is None else commit.offset for each, commit in found.items()}


def fetch_commits(
    routing: Routing, group: str, partitions: Collection[TopicPartition] | None, deadline: Deadline
) -> dict[TopicPartition, GroupCommit | None]:
    """Return the same as `fetch_committed`, with leader epochs and metadata."""
    topics = None if partitions is None else by_topic(partitions)

    def build() -> Any:
        one = OffsetFetchRequest.OffsetFetchRequestGroup
        plain, grouped = OffsetFetchRequest.OffsetFetchRequestTopic, one.OffsetFetchRequestTopics

        def name_all(kind: Any) -> Any:
            return topics and [
                kind(name=name, partition_indexes=[each.partition for each in some]) for name, some in topics
            ]

        return OffsetFetchRequest(
            group_id=group,
            topics=name_all(plain),
            groups=[one(group_id=group, member_id=None, member_epoch=-1, topics=name_all(grouped))],
            require_stable=True,  # an offset committed in an open transaction may still be aborted
        )

    response, broker = routing.call_coordinator(group, build, deadline, _first_error, max_version=_BY_NAME)
    answer = response.groups[0] if response.groups else response
    if answer.error_code:
        raise refusal(answer.error_code, "OffsetFetch", broker, f"group {group}")
    committed: dict[TopicPartition, GroupCommit | None] = dict.fromkeys(partitions or ())
    for topic in answer.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                raise refusal(part.error_code, "OffsetFetch", broker, f"group {group}, {partition}")
            if part.committed_offset != _NO_OFFSET:
                epoch = getattr(part, "committed_leader_epoch", _NO_EPOCH)
                committed[partition] = GroupCommit(
                    part.committed_offset, None if epoch == _NO_EPOCH else epoch, part.metadata or ""
                )
    return committed


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(some)) for topic, some in groupby(sorted(partitions), key=lambda tp: tp.topic)]


def _refusals(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): int(part.error_code)
        for topic in response.topics
        for part in topic.partitions
        if part.error_code
    }


def _not_committed(refused: Mapping[TopicPartition, int], group: str, broker: str) -> BrokerError:
    code = next((code for code in refused.values() if code != UNKNOWN_TOPIC_OR_PARTITION), 3)
    about = sorted(str(each) for each, its_code in refused.items() if its_code == code)
    named = shorten(about, 3)
    if code in _HAS_MEMBERS:
        return BrokerError(
            "GROUP_HAS_MEMBERS",
            f"{broker} refused to commit offsets of {named} for group {group}, because a consumer is a "
            f"member of it ({error_name(code)}).",
            hint="Give this query a group of its own, or stop the other consumers of the group.",
            facts={"code": code, "broker": broker, "group": group, "partitions": about},
        )
    error = refusal(code, "OffsetCommit", broker, f"group {group}, {named}")
    error.facts.update(group=group, partitions=about)
    return error


def _first_error(response: Any) -> int:
    """Return the code that decides whether to ask again; one unsettled partition is enough."""
    answer = response.groups[0] if response.groups else response
    codes = [answer.error_code, *(part.error_code for topic in answer.topics for part in topic.partitions)]
    return next((int(code) for code in codes if code), 0)
