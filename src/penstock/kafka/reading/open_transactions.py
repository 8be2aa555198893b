"""Finds which open transactions hold a partition's readers back.

Rule: a reader of committed rows stops at the first offset of the oldest open transaction and never skips it.
The operator learns which producer it is and how long it has been silent; otherwise a hanging
transaction looks exactly like "no data".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import by_topic
from penstock.kafka.metadata.cluster_map import Leader
from penstock.kafka.metadata.routing import Routing
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)


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


@dataclass(frozen=True, slots=True)
class Coordinated:
    """What the coordinator knows of a transaction: its owner, its start, and its time limit."""

    transactional_id: str
    begun_ms: int
    timeout_ms: int


def find_open_transactions(
    routing: Routing, partition: TopicPartition, deadline: Deadline
) -> list[OpenTransaction]:
    """Return the partition's open transactions, oldest first; none if the broker cannot or will not say."""
    return list_open_transactions(routing, [partition], deadline).get(partition, [])


def list_open_transactions(
    routing: Routing, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, list[OpenTransaction]]:
    """Return the open transactions of each partition, oldest first; none where the brokers do not say."""

    def build(led: dict[TopicPartition, Leader]) -> Any:
        topic = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[
                topic(name=name, partition_indexes=[each.partition for each in some])
                for name, some in by_topic(led)
            ]
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
        return routing.ask_leaders(partitions, build, read, deadline)
    except BrokerError:
        # An explanation is worth one request; brokers before 2.8 or users without the right get none.
        return {}


def find_coordinated(
    routing: Routing, producer_ids: Collection[int], deadline: Deadline
) -> dict[int, Coordinated]:
    """Return what the coordinators know of these producers' transactions, by producer id.

    Each broker coordinates some transactional ids, so all are asked. Transactions that no broker has or
    shows are left out, and so are those of brokers before 3.0, which cannot answer.
    """
    known: dict[int, Coordinated] = {}
    if not producer_ids:
        return known
    try:
        brokers = routing.brokers(deadline)
    except BrokerError:
        return known
    for host, port in brokers.values():
        try:
            listed = routing.call(
                ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids)),
                host,
                port,
                deadline,
            )
            names = [each.transactional_id for each in listed.transaction_states]
            if not names:
                continue
            described = routing.call(
                DescribeTransactionsRequest(transactional_ids=names), host, port, deadline
            )
        except BrokerError:
            continue
        for each in described.transaction_states:
            # A transaction without a start is not open: only its producer's mark in the log is left of it.
            if not each.error_code and each.transaction_start_time_ms >= 0:
                known[each.producer_id] = Coordinated(
                    each.transactional_id, each.transaction_start_time_ms, each.transaction_timeout_ms
                )
    return known
