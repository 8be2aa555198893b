"""A short look at the records at a position, to estimate their age and size.

Rule: a look costs one small fetch per broker (and one more where a record batch is larger than it) and only
reads batch headers, so it is not exact for single records: the time is that of the first record in the batch
that holds the position, the size is stored (compressed) bytes per offset. Estimates are never waited for:
each broker is asked once, and a partition that is empty there, gone, without a leader or not answered for is
left out. Why not use the reader: it decompresses, retries, waits for records to come, and fails if none do.

    peek_at(routing, {TopicPartition("orders", 0): 41}, deadline, committed_only=False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.errors import BrokerError
from penstock.core.loggers import get_logger
from penstock.core.model import Peek, TopicPartition
from penstock.kafka.metadata.routing import Routing
from penstock.kafka.reading.fetch_frames import FetchQuestion, PartitionQuestion, build_request
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.wire_cursor import BATCH_HEADER

log = get_logger(__name__)
Learned = TypeVar("Learned")

_LOOK_BYTES, _ANSWER_BYTES = 64 << 10, 8 << 20
_LEAST_LOOK_BYTES = 4 << 10
_PATIENCE_MS = 5_000
FETCH_BY_NAME = 12  # later versions name topics by id, which an estimate does not need

_BYTES_BEFORE_LENGTH_COUNTS = 12
_FORMAT, _IS_CONTROL, _IS_APPEND_TIME = 2, 0x20, 0x08


def peek_at(
    routing: Routing, positions: Mapping[TopicPartition, int], deadline: Deadline, *, committed_only: bool
) -> dict[TopicPartition, Peek]:
    """Return an estimate for each position that a broker answers for at once."""
    return look_at(routing, positions, deadline, committed_only, _estimate)


def look_at(
    routing: Routing,
    positions: Mapping[TopicPartition, int],
    deadline: Deadline,
    committed_only: bool,
    read: Callable[[bytes, int], Learned | None],
) -> dict[TopicPartition, Learned]:
    found: dict[TopicPartition, Learned] = {}
    for node_id, asked in find_leaders(routing, positions, deadline).items():
        try:
            found.update(_ask_broker(routing, node_id, asked, deadline, committed_only, read))
        except BrokerError as error:
            log.info("No estimate for %d partitions of broker %d: %s", len(asked), node_id, error)
    return found


def find_leaders(
    routing: Routing, positions: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[int, dict[TopicPartition, _Question]]:
    """Return what to ask each broker, by its id, leaving out partitions that are gone or have no leader."""
    by_node: dict[int, dict[TopicPartition, _Question]] = {}
    topics = {wanted.topic for wanted in positions}
    routes = routing.refresh(topics, deadline) if topics else {}
    for wanted, position in sorted(positions.items()):
        route = routes[wanted.topic].partitions.get(wanted.partition) if wanted.topic in routes else None
        if route is not None and route.leader_id >= 0:
            question = _Question(position, route.leader_epoch)
            by_node.setdefault(route.leader_id, {})[wanted] = question
    return by_node


@dataclass(frozen=True, slots=True)
class _Question:
    position: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _Batch:
    first_offset: int
    end_offset: int
    stored_bytes: int
    timestamp_ms: int
    greatest_ms: int
    has_records: bool


def _ask_broker(
    routing: Routing,
    node_id: int,
    asked: Mapping[TopicPartition, _Question],
    deadline: Deadline,
    committed_only: bool,
    read: Callable[[bytes, int], Learned | None],
) -> Iterator[tuple[TopicPartition, Learned]]:
    deadline = deadline.or_sooner(_PATIENCE_MS, "the time for an estimate")
    host, port = routing.address(node_id, deadline)
    pending = [dict(asked)]
    while pending:
        some = pending.pop()
        request = build_look(some, committed_only)
        response = routing.call(request, host, port, deadline, max_version=FETCH_BY_NAME)
        for wanted, answer in _answers(response):
            question = some[wanted]
            end = answer.last_stable_offset if committed_only else answer.high_watermark
            if answer.records:
                look = read(bytes(answer.records), question.position)
                if look is not None:
                    yield wanted, look
            elif not answer.error_code and question.position < end and len(some) > 1:
                # Its first batch exceeds its share. Asked for alone, a first batch always comes whole.
                pending.append({wanted: question})


def build_look(some: Mapping[TopicPartition, _Question], committed_only: bool) -> Any:
    share = max(_LEAST_LOOK_BYTES, min(_LOOK_BYTES, _ANSWER_BYTES // len(some)))
    partitions = tuple(
        PartitionQuestion(
            topic=wanted.topic,
            partition=wanted.partition,
            offset=question.position,
            topic_id=None,
            leader_epoch=question.leader_epoch,
            last_epoch=-1,
            max_bytes=share,
        )
        for wanted, question in some.items()
    )
    return build_request(
        FetchQuestion(
            partitions,
            max_bytes=share * len(some),
            min_bytes=0,
            max_wait_ms=0,
            committed_only=committed_only,
        )
    )


def _answers(response: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in response.responses or ():
        for part in topic.partitions:
            yield TopicPartition(topic.topic, part.partition_index), part


def _estimate(records: bytes, position: int) -> Peek | None:
    batches = [batch for batch in read_headers(records) if batch.end_offset > position]
    times = [batch.timestamp_ms for batch in batches if batch.has_records and batch.timestamp_ms >= 0]
    if not times:
        return None
    covered = batches[-1].end_offset - min(position, batches[0].first_offset)
    return Peek(times[0], sum(batch.stored_bytes for batch in batches) / covered)


def read_headers(records: bytes) -> Iterator[_Batch]:
    """Yield the batches of an answer. For the last one, which may be cut off, the header is enough."""
    at = 0
    while at + BATCH_HEADER.size <= len(records):
        fields = BATCH_HEADER.unpack_from(records, at)
        base, length, _, version, _, attributes, delta, first_ms, greatest_ms, *_, count = fields
        size = _BYTES_BEFORE_LENGTH_COUNTS + length
        if version != _FORMAT or size < BATCH_HEADER.size or delta < 0:
            return  # an older format, or damage, which the reader will report
        yield _Batch(
            base,
            base + delta + 1,
            size,
            greatest_ms if attributes & _IS_APPEND_TIME else first_ms,
            greatest_ms,
            count > 0 and not attributes & _IS_CONTROL,
        )
        at += size
