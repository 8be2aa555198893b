"""Where a log stands beside a stream's position: what `penstock why` asks the brokers.

Rule: a partition without a leader is told as such and not waited for; every question has one short deadline.

    facts = look_at_standing(settings, "visits", position, timeout_ms=10_000)
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.client import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.core.why import Facts, Hold, PartitionNow
from penstock.kafka.control import KafkaLogView
from penstock.kafka.deadline import Deadline
from penstock.kafka.peeks import ask_throttle_ms
from penstock.kafka.routing import Routing, routing_for
from penstock.kafka.transactions import find_open_transactions


def look_at_standing(
    settings: ClientSettings, stream: str, position: StreamPosition, *, timeout_ms: int
) -> Facts:
    """The log now. Brokers that do not answer are a fact, too."""
    try:
        return _look(settings, stream, position, timeout_ms)
    except BrokerError as error:
        return Facts(stream, unreachable=str(error))


def _look(settings: ClientSettings, stream: str, position: StreamPosition, timeout_ms: int) -> Facts:
    routing = routing_for(settings)
    routes = routing.refresh(position.topics, Deadline.after_ms(timeout_ms, "the time to look"))
    wanted = sorted({*position.offsets, *position.gone})
    gone = [
        each
        for each in wanted
        if each.topic not in routes or each.partition not in routes[each.topic].partitions
    ]
    recreated = sorted(
        name
        for name, route in routes.items()
        if None not in (position.topic_ids.get(name), route.topic_id)
        and position.topic_ids[name] != route.topic_id
    )
    there = [each for each in wanted if each not in gone]
    led = [each for each in there if routes[each.topic].partitions[each.partition].leader_id >= 0]
    view = KafkaLogView(settings, timeout_ms=timeout_ms)
    every = KafkaLogView(replace(settings, isolation_level="read_uncommitted"), timeout_ms=timeout_ms)
    earliest, ends, log_ends = view.earliest(led), view.latest(led), every.latest(led)
    stood = {**position.gone, **position.offsets}
    holds = {each: _find_hold(routing, each, timeout_ms) for each in led if log_ends[each] > ends[each]}
    behind = {each: stood[each] for each in led if earliest[each] <= stood[each] < ends[each]}
    throttle_ms = ask_throttle_ms(routing, behind, Deadline.after_ms(timeout_ms, "the time to look"))
    # Last of all, and not under a quota: a broker that holds us back is silent on this connection until then,
    # which would look as if it were gone.
    filled = {each: log_ends[each] - 1 for each in led if log_ends[each] > earliest[each]}
    last = {} if throttle_ms else every.peek(filled)
    partitions = {each: PartitionNow(stood[each]) for each in there}
    for each in led:
        look = last.get(each)
        partitions[each] = PartitionNow(
            stood[each],
            earliest[each],
            ends[each],
            log_ends[each],
            None if look is None else look.timestamp_ms,
            holds.get(each),
        )
    return Facts(stream, partitions, gone=tuple(gone), recreated=tuple(recreated), throttle_ms=throttle_ms)


def _find_hold(routing: Routing, partition: TopicPartition, timeout_ms: int) -> Hold | None:
    found = find_open_transactions(routing, partition, Deadline.after_ms(timeout_ms, "the time to look"))
    return Hold(found[0].first_offset, found[0].producer_id, found[0].written_ms) if found else None
