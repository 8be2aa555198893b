"""Asks each leader one question for all small ranges of a task, instead of one for each range.

Rule: this only saves round trips. Anything but a plain answer (an error, nothing, a truncated log, a
broker that does not answer) is left out here, and the `PartitionFetcher` of that range asks again:
it knows how to handle it, so loss and retries are decided in one place.

Why only small ranges: a large one fills Arrow batches on its own, and its fetches, one ahead of the decoder,
are faster. Why not when a rack is set: a follower may be nearer, and the leader names it per partition. Why
not for a range that was requested from `earliest`: its first records may have aged out since, so its own
fetcher finds out where it begins.

    answers = ask_at_once(order, order.ranges)
    fetched = answers.take(wanted, position) or fetcher.fetch(position, until)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from penstock.core.errors import BrokerError, CorruptBatchError
from penstock.core.loggers import get_logger
from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.metadata.cluster_map import Leader
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.reading.fetch_frames import (
    API_KEY,
    MAX_VERSION,
    MAX_VERSION_WITHOUT_TOPIC_ID,
    MIN_VERSION,
    FetchAnswer,
    FetchQuestion,
    PartitionQuestion,
    encode_question,
    read_answers,
)
from penstock.kafka.reading.partition_fetcher import Fetched, FrameBytes
from penstock.kafka.transport.connection import Connection
from penstock.kafka.transport.connection_pool import POOL
from penstock.kafka.transport.deadlines import Deadline

log = get_logger(__name__)

#: The most records in a small range. Not worth measuring: one Arrow batch holds as many.
SMALL_RANGE = 65_536
#: The size of all answers of one task together; they are in memory at once.
_MAX_BYTES = 8 << 20
_LEAST_BYTES_EACH = 64 << 10


class FirstAnswers:
    """The answer received for each range, by its first offset. Each can be taken once."""

    def __init__(self) -> None:
        self.questions = 0
        self._found: dict[tuple[str, int, int], Fetched] = {}

    def take(self, wanted: RangeOrder, position: int) -> Fetched | None:
        return self._found.pop((wanted.topic, wanted.partition, position), None)

    def add(self, question: PartitionQuestion, answer: FetchAnswer, frame: FrameBytes) -> None:
        plain = not answer.error_code and answer.diverging_end is None
        if plain and answer.end > answer.begin:
            # Open transactions only concern ranges without a fixed end; none is here.
            fetched = Fetched(frame[answer.begin : answer.end], answer.aborted, None)
            self._found[question.topic, question.partition, question.offset] = fetched


def ask_at_once(order: WorkOrder, ranges: Sequence[RangeOrder]) -> FirstAnswers:
    """Return answers for the start of all small ranges: none for fewer than two ranges, fewer on errors."""
    answers = FirstAnswers()
    # A broker answers once per partition, so a partition that is here twice is left out.
    times = Counter((each.topic, each.partition) for each in ranges)
    small = [each for each in ranges if _is_small(each) and times[each.topic, each.partition] == 1]
    if len(small) < 2 or order.client.client_rack:
        return answers
    routing = routing_for(order.client)
    deadline = Deadline.after_ms(order.poll_timeout_ms, "kafkaConsumer.pollTimeoutMs").or_sooner(
        order.client.request_timeout_ms, "request.timeout.ms"
    )
    try:
        leaders = routing.leaders([TopicPartition(each.topic, each.partition) for each in small], deadline)
        by_broker: dict[tuple[str, int], list[tuple[RangeOrder, Leader]]] = defaultdict(list)
        for wanted in small:
            leader = leaders[TopicPartition(wanted.topic, wanted.partition)]
            by_broker[leader.host, leader.port].append((wanted, leader))
        for (host, port), led in by_broker.items():
            question = _ask_for(order, led, _MAX_BYTES // len(by_broker))
            with POOL.lend(order.client, host, port, deadline) as connection:
                _exchange(connection, question, deadline, answers)
    except (BrokerError, CorruptBatchError) as error:
        log.debug("Ranges are asked for one by one: %s", error)
        routing.invalidate({each.topic for each in small})
    return answers


def _is_small(wanted: RangeOrder) -> bool:
    start, until = wanted.start, wanted.until
    if not (isinstance(start, At) and isinstance(until, At)) or wanted.from_earliest:
        return False
    return 0 < until.offset - start.offset <= SMALL_RANGE


def _ask_for(order: WorkOrder, led: Sequence[tuple[RangeOrder, Leader]], max_bytes: int) -> FetchQuestion:
    each_bytes = min(order.client.max_partition_fetch_bytes, max(_LEAST_BYTES_EACH, max_bytes // len(led)))
    return FetchQuestion(
        partitions=tuple(
            PartitionQuestion(
                topic=wanted.topic,
                partition=wanted.partition,
                offset=wanted.start.offset,
                topic_id=wanted.topic_id or leader.topic_id,
                leader_epoch=leader.leader_epoch,
                last_epoch=-1,
                max_bytes=each_bytes,
            )
            for wanted, leader in sorted(led, key=lambda pair: (pair[0].topic, pair[0].topic_id or b""))
            if isinstance(wanted.start, At)
        ),
        max_bytes=min(order.client.fetch_max_bytes, max_bytes),
        min_bytes=1,
        max_wait_ms=0,  # what is planned is there; if it is not, this does not wait
        committed_only=order.client.isolation_level == "read_committed",
    )


def _exchange(
    connection: Connection, question: FetchQuestion, deadline: Deadline, answers: FirstAnswers
) -> None:
    has_ids = all(each.topic_id for each in question.partitions)
    highest = MAX_VERSION if has_ids else MAX_VERSION_WITHOUT_TOPIC_ID
    version = connection.version_of(API_KEY, highest, wanted_min=MIN_VERSION, name="Fetch")
    number = connection.next_correlation_id()
    frame = encode_question(question, version, number, connection.client_id)
    connection.send(frame, deadline, waiting_for="Fetch")
    answers.questions += 1
    received: FrameBytes = np.empty(connection.receive_size(deadline, waiting_for="Fetch"), np.uint8)
    connection.receive_exactly(received.data, deadline, waiting_for="Fetch")
    _, found = read_answers(received.data, version, number)
    for each in question.partitions:
        topic = each.topic_id if version >= 13 and each.topic_id else each.topic.encode()
        answer = found.get((topic, each.partition))
        if answer is not None:
            answers.add(each, answer, received)
