"""How far a consumer group is behind the ends of its partitions.

Rule: the end is the one its readers would see at this isolation level, so a group that has read everything
it can see has no lag, even if an open transaction hides more. Why not use the stream's own progress: this is
what others see of the group, with any client, even when the stream is down.

    describe_lag(settings, "nightly")[TopicPartition("orders", 0)].records
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import fetch_committed
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.deadlines import Deadline


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far behind a group is in one partition."""

    committed: int
    end: int

    @property
    def records(self) -> int:
        """Return the number of offsets still to read; markers and holes count, as in every lag tool."""
        return max(0, self.end - self.committed)


def describe_lag(
    settings: ClientSettings, group: str, *, timeout_ms: int | None = None
) -> Mapping[TopicPartition, GroupLag]:
    """Return the lag of every existing partition the group has committed, in order."""
    view = KafkaLogView(settings, timeout_ms=timeout_ms)
    limit_ms = settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
    deadline = Deadline.after_ms(limit_ms, "default.api.timeout.ms")
    found = fetch_committed(routing_for(settings), group, None, deadline)
    topics = view.describe({each.topic for each in found})
    committed = {
        each: offset
        for each, offset in sorted(found.items())
        if offset is not None and each.topic in topics and each.partition in topics[each.topic].partitions
    }
    ends = view.latest(committed)
    return {each: GroupLag(offset, ends[each]) for each, offset in committed.items()}
