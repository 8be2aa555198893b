"""Delivers encoded batches to their leaders, sending each again until it is acknowledged.

Rule: a batch is repeated byte for byte, including its sequence number, in the order of these numbers, and
only after every open request on that connection is answered or lost. The time limit counts from the last
acknowledgement: a large table may take long, silence may not.

Why several requests are open at once: with one, the socket is idle while the broker writes. Up to five
are safe, because a broker remembers the last five batches of each producer and refuses gaps.

    written = DeliveredRecords()
    Delivery(settings, "events", {0: batches}, written, max_request_bytes=..., new_deadline=...).run()
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.records.record_encoder import EncodedBatch
from penstock.kafka.transport.connection import Connection
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import Attempts
from penstock.kafka.writing import produce_frames

MAX_IN_FLIGHT = 5
_OUT_OF_ORDER_SEQUENCE, _DUPLICATE_SEQUENCE = 45, 46
_OFFSET_UNKNOWN = -1


@dataclass(slots=True)
class DeliveredRecords:
    """How many records each partition took, and its range: the first offset and the one after the last.

    Another producer's records may lie inside that range. A partition is missing from `offsets` when the
    broker recognised every batch as a repetition and no longer knew its offset.
    """

    counts: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(self.counts.values())

    def add(self, partition: int, base_offset: int, records: int) -> None:
        self.counts[partition] = self.counts.get(partition, 0) + records
        if base_offset != _OFFSET_UNKNOWN:
            first, until = self.offsets.get(partition, (base_offset, base_offset))
            self.offsets[partition] = (min(first, base_offset), max(until, base_offset + records))


@dataclass(frozen=True, order=True, slots=True)
class _Parcel:
    """A batch and its place in the order of encoding, which is also the order of sequence numbers."""

    number: int
    batch: EncodedBatch = field(compare=False)


@dataclass(slots=True)
class _Request:
    """One open request: its version and the parcels it carries."""

    correlation_id: int
    version: int
    parcels: dict[int, _Parcel]


class Delivery:
    """Delivers batches of one topic: `sources` has each partition's, in order; `written` takes the answers.

    With a `transactional_id` they belong to its open transaction, which already knows their partitions.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        sources: Mapping[int, Iterator[EncodedBatch]],
        written: DeliveredRecords,
        *,
        max_request_bytes: int,
        new_deadline: Callable[[], Deadline],
        transactional_id: str | None = None,
    ) -> None:
        self._settings, self._topic, self._written = settings, topic, written
        self._routing = routing_for(settings)
        self._sources = dict(sources)
        self._again: dict[int, list[_Parcel]] = {partition: [] for partition in sources}
        self._numbers = itertools.count()
        self._max_request_bytes = max_request_bytes
        self._new_deadline = new_deadline
        self._transactional_id = transactional_id
        self._buffer = bytearray(1 << 12)
        what = f"the acknowledgement of records for topic {topic}"
        self._attempts = Attempts(new_deadline(), what, settings.retry_backoff_ms)

    def run(self) -> None:
        """Send everything and return when every batch is acknowledged."""
        for _ in self._attempts:
            open_partitions = [p for p in self._again if self._again[p] or p in self._sources]
            wanted = [TopicPartition(self._topic, partition) for partition in open_partitions]
            by_broker: dict[tuple[str, int], list[int]] = {}
            for where, leader in self._routing.leaders(wanted, self._attempts.deadline).items():
                by_broker.setdefault((leader.host, leader.port), []).append(where.partition)
            troubled = [self._deliver_to(*broker, led) for broker, led in by_broker.items()]
            if not any(troubled):
                return
            self._routing.invalidate([self._topic])
        raise self._attempts.given_up()

    def _deliver_to(self, host: str, port: int, partitions: list[int]) -> bool:
        """Send until these partitions have nothing left; return whether anything must be sent again."""
        under_way: deque[_Request] = deque()
        with self._attempts.forgiving():
            try:
                with self._routing.pool.lend(
                    self._settings, host, port, self._attempts.deadline
                ) as connection:
                    return self._converse(connection, partitions, under_way)
            finally:
                for request in under_way:
                    self._put_back(request.parcels)
        return True

    def _converse(self, connection: Connection, partitions: list[int], under_way: deque[_Request]) -> bool:
        version = connection.version_of(
            produce_frames.API_KEY,
            produce_frames.MAX_VERSION,
            wanted_min=produce_frames.MIN_VERSION,
            name="Produce",
        )
        trouble = False
        while True:
            while not trouble and len(under_way) < MAX_IN_FLIGHT and (parcels := self._take(partitions)):
                under_way.append(_Request(connection.next_correlation_id(), version, parcels))
                self._send(connection, under_way[-1])
            if not under_way:
                return trouble
            trouble |= self._receive(connection, under_way)

    def _take(self, partitions: Iterable[int]) -> dict[int, _Parcel]:
        """Return at most one batch per partition, within the size of a request (but at least one)."""
        taken: dict[int, _Parcel] = {}
        size = 0
        for partition in partitions:
            parcel = self._next_parcel(partition)
            if parcel is None:
                continue
            if taken and size + len(parcel.batch.data) > self._max_request_bytes:
                insort(self._again[partition], parcel)
                break
            taken[partition] = parcel
            size += len(parcel.batch.data)
        return taken

    def _next_parcel(self, partition: int) -> _Parcel | None:
        if self._again[partition]:
            return self._again[partition].pop(0)
        source = self._sources.get(partition)
        batch = None if source is None else next(source, None)
        if batch is None:
            self._sources.pop(partition, None)
            return None
        return _Parcel(next(self._numbers), batch)

    def _put_back(self, parcels: Mapping[int, _Parcel]) -> None:
        for partition, parcel in parcels.items():
            insort(self._again[partition], parcel)

    def _send(self, connection: Connection, request: _Request) -> None:
        frame = produce_frames.build_frame(
            request.version,
            request.correlation_id,
            connection.client_id,
            self._topic,
            {partition: parcel.batch.data for partition, parcel in request.parcels.items()},
            timeout_ms=self._settings.request_timeout_ms,
            transactional_id=self._transactional_id,
        )
        connection.send(frame, self._limit(), waiting_for="Produce")

    def _receive(self, connection: Connection, under_way: deque[_Request]) -> bool:
        """Read the oldest answer and put refused batches back; return whether there were any."""
        request = under_way[0]
        size = connection.receive_into(self._buffer, self._limit(), waiting_for="Produce")
        broker = f"{connection.host}:{connection.port}"
        with memoryview(self._buffer) as view:
            try:
                correlation_id, answers = produce_frames.read_answer(request.version, view[:size])
            except ValueError as error:
                raise _malformed(broker, "is cut off") from error
        if correlation_id != request.correlation_id or {a.partition for a in answers} != set(request.parcels):
            raise _malformed(broker, "answers something else")
        again: dict[int, _Parcel] = {}
        for answer in answers:
            parcel = request.parcels[answer.partition]
            if answer.code in (0, _DUPLICATE_SEQUENCE):
                self._written.add(answer.partition, answer.base_offset, parcel.batch.records)
                self._attempts.begin_again(self._new_deadline())
                continue
            # After a refused batch a gap is expected; on its own it means lost records.
            waiting = self._again[answer.partition]
            if not (answer.code == _OUT_OF_ORDER_SEQUENCE and waiting and waiting[0] < parcel):
                where = TopicPartition(self._topic, answer.partition)
                self._attempts.forgive(
                    refusal(answer.code, "Produce", broker, f"partition {where}", answer.message)
                )
            again[answer.partition] = parcel
        under_way.popleft()
        self._put_back(again)
        return bool(again)

    def _limit(self) -> Deadline:
        """Return the deadline of one request."""
        return self._attempts.deadline.or_sooner(self._settings.request_timeout_ms, "request.timeout.ms")


def _malformed(broker: str, why: str) -> BrokerError:
    return BrokerError(
        "MALFORMED_RESPONSE",
        f"The answer of {broker} to Produce {why}.",
        hint="Check that the address is a Kafka listener and that nothing in between alters the bytes.",
        facts={"broker": broker},
    )
