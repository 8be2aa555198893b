"""Which open transactions hold a partition's readers back.

Rule: a reader of committed rows stops at the first offset of the oldest open transaction and never skips it;
whoever waits there is told which producer it is and how long it has been silent, because a hanging
transaction looks exactly like "no data" otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.cluster_map import Leader
from penstock.kafka.deadline import Deadline
from penstock.kafka.messages import DescribeProducersRequest
from penstock.kafka.routing import Routing


@dataclass(frozen=True, slots=True, order=True)
class OpenTransaction:
    """One producer's open transaction on one partition; `written_ms` is when it last wrote there."""

    first_offset: int
    producer_id: int
    written_ms: int

    def describe(self, now_ms: int) -> str:
        silent_s = max(0, now_ms - self.written_ms) // 1000
        return (
            f"an open transaction of producer {self.producer_id}, silent for {silent_s} s, holds back "
            f"everything from {self.first_offset} on"
        )


def find_open_transactions(
    routing: Routing, partition: TopicPartition, deadline: Deadline
) -> list[OpenTransaction]:
    """The partition's open transactions, oldest first; none where the broker cannot or will not tell."""

    def build(led: dict[TopicPartition, Leader]) -> Any:
        topic = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[topic(name=each.topic, partition_indexes=[each.partition]) for each in led]
        )

    def read(response: Any) -> Iterable[tuple[TopicPartition, int, list[OpenTransaction]]]:
        for topic in response.topics:
            for found in topic.partitions:
                active = [
                    OpenTransaction(each.current_txn_start_offset, each.producer_id, each.last_timestamp)
                    for each in found.active_producers
                    if each.current_txn_start_offset >= 0
                ]
                yield TopicPartition(topic.name, found.partition_index), found.error_code, sorted(active)

    try:
        return routing.ask_leaders([partition], build, read, deadline)[partition]
    except BrokerError:
        # An explanation is worth one request; brokers before 2.8 and users without the right have none.
        return []
