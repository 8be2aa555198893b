"""Compares a log with a stream's position: what `penstock why` asks the brokers.

Rule: a partition without a leader is reported as such and not waited for; every question has one short
deadline. Both ends of each partition are looked up: the one for readers of committed rows and the log's. That
includes partitions that the position lacks, as after a topic was given more partitions.

    facts = look_at_standing(settings, "visits", position, timeout_ms=10_000)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.core.client.client_settings import ClientSettings
from penstock.core.diagnosis.standstill import Facts, Hold, PartitionNow
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.kafka.metadata.routing import Routing, routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.open_transactions import find_coordinated, list_open_transactions
from penstock.kafka.reading.record_estimates import (
    FETCH_BY_NAME,
    build_look,
    find_leaders,
    look_at,
    read_headers,
)
from penstock.kafka.transport.deadlines import Deadline


def look_at_standing(
    settings: ClientSettings, stream: str, position: StreamPosition, *, timeout_ms: int
) -> Facts:
    """Return the state of the log now. If brokers do not answer, that is a fact, too."""
    try:
        return _look(settings, stream, position, timeout_ms)
    except BrokerError as error:
        return Facts(stream, unreachable=str(error))


def _look(settings: ClientSettings, stream: str, position: StreamPosition, timeout_ms: int) -> Facts:
    routing = routing_for(settings)
    routes = routing.refresh(position.topics, Deadline.after_ms(timeout_ms, "default.api.timeout.ms"))
    wanted = sorted({*position.offsets, *position.gone})
    every_one = {
        TopicPartition(name, number) for name, route in routes.items() for number in route.partitions
    }
    others = sorted(every_one.difference(wanted))
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
    led = [each for each in (*there, *others) if routes[each.topic].partitions[each.partition].leader_id >= 0]
    view = KafkaLogView(replace(settings, isolation_level="read_committed"), timeout_ms=timeout_ms)
    every = KafkaLogView(replace(settings, isolation_level="read_uncommitted"), timeout_ms=timeout_ms)
    # The log's end first: otherwise rows written between the two questions would look hidden.
    earliest, log_ends = view.earliest(led), every.latest(led)
    stable_ends = view.latest(led)
    log_ends = {each: max(log_ends[each], stable_ends[each]) for each in led}
    # A stream that finds a new partition starts where its log begins.
    stood = {**{each: earliest.get(each, 0) for each in others}, **position.stands}
    holds = _find_holds(routing, [each for each in led if log_ends[each] > stable_ends[each]], timeout_ms)
    behind = {each: stood[each] for each in led if earliest[each] <= stood[each] < log_ends[each]}
    throttle_ms = _ask_throttle_ms(routing, behind, Deadline.after_ms(timeout_ms, "default.api.timeout.ms"))
    # Last of all, and not under a quota: a throttling broker is silent on this connection until then,
    # which would look as if it were gone.
    filled = {each: log_ends[each] - 1 for each in led if log_ends[each] > earliest[each]}
    deadline = Deadline.after_ms(timeout_ms, "the time to look")
    newest_ms = {} if throttle_ms else _find_newest_ms(routing, filled, deadline)
    partitions = {each: PartitionNow(stood[each]) for each in (*there, *others)}
    for each in led:
        partitions[each] = PartitionNow(
            stood[each],
            earliest[each],
            stable_ends[each],
            log_ends[each],
            newest_ms.get(each),
            holds.get(each),
        )
    return Facts(
        stream,
        {each: partitions[each] for each in there},
        gone=tuple(gone),
        recreated=tuple(recreated),
        throttle_ms=throttle_ms,
        others={each: partitions[each] for each in others},
    )


def _find_holds(
    routing: Routing, partitions: list[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, Hold]:
    """Return the oldest open transaction of each partition that has one, as far as the brokers say."""
    deadline = Deadline.after_ms(timeout_ms, "default.api.timeout.ms")
    found = list_open_transactions(routing, partitions, deadline)
    oldest = {each: some[0] for each, some in found.items() if some}
    known = find_coordinated(routing, {each.producer_id for each in oldest.values()}, deadline)
    holds = {}
    for each, one in oldest.items():
        whose = known.get(one.producer_id)
        more = () if whose is None else (whose.transactional_id, whose.begun_ms, whose.timeout_ms)
        holds[each] = Hold(one.first_offset, one.producer_id, one.written_ms, *more)
    return holds


def _find_newest_ms(
    routing: Routing, positions: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the greatest record time in the batch that holds each position, or in later ones received.

    The first record of that batch may be much older.
    """
    return look_at(routing, positions, deadline, False, _find_greatest_ms)


def _find_greatest_ms(records: bytes, position: int) -> int | None:
    batches = [batch for batch in read_headers(records) if batch.end_offset > position]
    times = [batch.greatest_ms for batch in batches if batch.has_records and batch.greatest_ms >= 0]
    return max(times, default=None)


def _ask_throttle_ms(routing: Routing, positions: Mapping[TopicPartition, int], deadline: Deadline) -> int:
    """Return how long a quota makes brokers delay answers to us; 0 if they do not, or do not say."""
    longest = 0
    for node_id, asked in find_leaders(routing, positions, deadline).items():
        host, port = routing.address(node_id, deadline)
        request = build_look(asked, committed_only=False)
        response = routing.call(request, host, port, deadline, max_version=FETCH_BY_NAME)
        longest = max(longest, int(response.throttle_time_ms))
    return longest
