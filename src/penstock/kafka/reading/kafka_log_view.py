"""Kafka as planning sees it: topics, bounds, times, leader epochs and committed offsets.

Rules: looking moves nothing and, except for `peek`, fetches no record; a partition's end is asked for
at the isolation level the rows will be read with (the last stable offset for committed reads, never the high
watermark); partitions of one broker share a request. Why not a consumer's `poll` and `position`, as
in Spark's older path: it joins a group, prefetches unwanted records, and can reset its position on
the way.

    view = KafkaLogView(settings)
    view.latest([TopicPartition("orders", 0)])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OptionError
from penstock.core.model import Peek, TopicPartition, TopicView
from penstock.kafka.groups.committed_offsets import by_topic, fetch_committed
from penstock.kafka.metadata.leader_epochs import find_epoch_ends
from penstock.kafka.metadata.routing import Leader, Routing, routing_for
from penstock.kafka.reading.record_estimates import peek_at
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import ListOffsetsRequest

# Kafka's wire format has sentinels where our code has types; they are confined to this module.
_LATEST, _EARLIEST, _NONE = -1, -2, -1
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class KafkaLogView:
    """A `LogView` of a cluster. Every call may take `default.api.timeout.ms`, or the limit given here.

    With `recall_ms`, topics may come from memory at most that old; log ends are always asked for.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        timeout_ms: int | None = None,
        routing: Routing | None = None,
        recall_ms: int | None = None,
    ) -> None:
        if settings.isolation_level not in _ISOLATION:
            raise OptionError(
                "OPTION_INVALID",
                f"isolation.level is {settings.isolation_level!r}.",
                hint="Use read_uncommitted or read_committed.",
            )
        self._settings = settings
        self._routing = routing or routing_for(settings)
        self._timeout_ms = settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self._recall_ms = recall_ms

    def topics(self) -> Mapping[str, TopicView]:
        return self._describe(None)

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        return self._describe(names) if names else {}

    def _describe(self, names: Collection[str] | None) -> Mapping[str, TopicView]:
        if self._recall_ms is None:
            found = self._routing.refresh(names, self._deadline())
        else:
            found = self._routing.recall(names, self._recall_ms, self._deadline())
        return {name: route.view() for name, route in sorted(found.items())}

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._list_offsets(dict.fromkeys(partitions, _EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._list_offsets(dict.fromkeys(partitions, _LATEST))

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        # A time before 1970 must not reach the wire, where -1 and -2 mean the ends of the log.
        found = self._list_offsets({partition: max(0, time) for partition, time in times_ms.items()})
        return {partition: None if offset == _NONE else offset for partition, offset in found.items()}

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}
        return fetch_committed(self._routing, group, partitions, self._deadline())

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return find_epoch_ends(self._routing, epochs, self._deadline())

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        committed_only = self._settings.isolation_level == "read_committed"
        return peek_at(self._routing, positions, self._deadline(), committed_only=committed_only)

    def close(self) -> None:
        """Do nothing: connections are returned to the pool after each call."""

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._timeout_ms, "default.api.timeout.ms")

    def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        entry = ListOffsetsRequest.ListOffsetsTopic

        def build(led: dict[TopicPartition, Leader]) -> Any:
            return ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_ISOLATION[self._settings.isolation_level],
                topics=[
                    entry(
                        name=topic,
                        partitions=[
                            entry.ListOffsetsPartition(
                                partition_index=partition.partition,
                                # A broker refuses an epoch that is not its own, so no past leader answers.
                                current_leader_epoch=led[partition].leader_epoch,
                                timestamp=times[partition],
                            )
                            for partition in some
                        ],
                    )
                    for topic, some in by_topic(led)
                ],
                timeout_ms=self._settings.request_timeout_ms,
            )

        def read(response: Any) -> Iterable[tuple[TopicPartition, int, int]]:
            for topic in response.topics:
                for part in topic.partitions:
                    yield TopicPartition(topic.name, part.partition_index), part.error_code, part.offset

        return self._routing.ask_leaders(times, build, read, self._deadline())
