"""A plain idempotent producer: Arrow tables into a topic, each record once, every answer checked.

Rule: `write` returns when every record is acknowledged by all in-sync replicas, or raises. A batch
keeps its producer id and sequence number through every repetition, so a broker that already has it says so
instead of storing it twice. After an error the producer id is dropped: nobody knows what arrived, and a new
id cannot collide with it.

Why several requests are under way at once: with one, the socket is idle while the broker writes. Up to five
are safe, because a broker remembers the last five batches of each producer and refuses gaps.

    written = Writer(settings, codec=LZ4).write("events", table)   # columns key, value, headers, ...
    written.offsets[0]                                             # (first offset, next offset)
"""

from __future__ import annotations

import itertools
import struct
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.client import ClientSettings
from penstock.core.errors import BrokerError, PenstockError, SinkError
from penstock.core.model import TopicPartition
from penstock.kafka import produce
from penstock.kafka.deadline import Deadline
from penstock.kafka.messages import InitProducerIdRequest
from penstock.kafka.records.codecs import NONE
from penstock.kafka.records.columns import ByteColumn
from penstock.kafka.records.encode import EncodedBatch, Encoder, ProducerStamp, record_columns
from penstock.kafka.records.murmur2 import NO_KEY, group_rows, partition_of_keys
from penstock.kafka.refusals import RETRIABLE, refusal
from penstock.kafka.routing import routing_for
from penstock.kafka.wire import Connection

MAX_IN_FLIGHT = 5
#: Records without a key go to one partition in runs of at least this many, so that batches stay large.
KEYLESS_RUN = 1_000
_OUT_OF_ORDER_SEQUENCE, _DUPLICATE_SEQUENCE = 45, 46
_OFFSET_UNKNOWN = -1


@dataclass(slots=True)
class Written:
    """How many records each partition took, and its range: the first offset and the one after the last.

    Another producer's records may lie inside that range. A partition is missing from `offsets` when the
    broker recognised every batch as a repetition and no longer knew where it was.
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


class Writer:
    """Writes as one producer. For one thread; close it to give its connections back."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        codec: int = NONE,
        level: int | None = None,
        max_batch_bytes: int = 1_000_000,
        max_request_bytes: int = 8_000_000,
        delivery_timeout_ms: int = 120_000,
    ) -> None:
        self._settings = settings
        self._routing = routing_for(settings)
        self._encoder = Encoder(codec=codec, level=level, max_batch_bytes=max_batch_bytes)
        self._max_request_bytes = max_request_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._producer: ProducerStamp | None = None
        self._stamps: dict[TopicPartition, ProducerStamp] = {}
        self._turn = 0

    def write(self, topic: str, data: pa.RecordBatch | pa.Table) -> Written:
        """Write all rows; of the columns key, value, headers, timestamp and partition any may be missing."""
        written = Written()
        try:
            for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
                if batch.num_rows:
                    self._write_batch(topic, batch, written)
        except BaseException:
            self._producer = None
            self._stamps.clear()
            raise
        return written

    def _write_batch(self, topic: str, batch: pa.RecordBatch, written: Written) -> None:
        deadline = self._deadline()
        view = self._routing.describe(topic, deadline)
        if view is None:
            raise SinkError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"There is no topic {topic} to write to.",
                hint="Create it first; the writer does not.",
                facts={"topic": topic},
            )
        if self._producer is None:
            self._producer = self._register(deadline)
        columns = record_columns(batch, now_ms=time.time_ns() // 1_000_000)
        chosen = self._choose_partitions(batch, columns.keys, len(view.partitions))
        rows, starts = group_rows(chosen, len(view.partitions))
        sources: dict[int, Iterator[EncodedBatch]] = {}
        for partition in np.flatnonzero(np.diff(starts)).tolist():
            mine = rows[starts[partition] : starts[partition + 1]]
            where = TopicPartition(topic, partition)
            stamp = self._stamps.get(where, self._producer)
            sources[partition] = self._encoder.encode(columns, mine, stamp)
            self._stamps[where] = stamp.advance(mine.size)
        _Delivery(self._settings, topic, sources, written, self._max_request_bytes, self._deadline).run()

    def _register(self, deadline: Deadline) -> ProducerStamp:
        while True:
            response, broker = self._routing.call_any(
                lambda: InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
                ),
                deadline,
            )
            if not response.error_code:
                return ProducerStamp(response.producer_id, response.producer_epoch, 0)
            if response.error_code not in RETRIABLE:
                raise refusal(response.error_code, "InitProducerId", broker, "an idempotent producer")
            deadline.wait_s("a producer id")
            deadline.pause(self._settings.retry_backoff_ms)

    def _choose_partitions(
        self, batch: pa.RecordBatch, keys: ByteColumn, partitions: int
    ) -> npt.NDArray[np.int32]:
        chosen = partition_of_keys(keys, partitions)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            wanted = column.cast(pa.int32()).fill_null(NO_KEY).to_numpy(zero_copy_only=False)
            named = column.is_valid().to_numpy(zero_copy_only=False)
            if np.any((wanted[named] < 0) | (wanted[named] >= partitions)):
                raise SinkError(
                    "PARTITION_OUT_OF_RANGE",
                    f"Partitions {wanted.min()} to {wanted.max()} are asked for; the topic has 0 to "
                    f"{partitions - 1}.",
                    hint="Correct the `partition` column, or leave it null to choose by key.",
                )
            chosen = np.where(named, wanted, chosen).astype(np.int32)
        free = np.flatnonzero(chosen == NO_KEY)
        if free.size:
            run = max(-(-free.size // partitions), KEYLESS_RUN)
            chosen[free] = (self._turn + np.arange(free.size) // run) % partitions
            self._turn = (self._turn + -(-free.size // run)) % partitions
        return chosen

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._delivery_timeout_ms, "delivery.timeout.ms")

    def close(self) -> None:
        """Forget the producer id; connections went back to the pool after each write."""
        self._producer = None
        self._stamps.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass(frozen=True, order=True, slots=True)
class _Parcel:
    """A batch and its place in the order of encoding, which is the order of its sequence numbers."""

    number: int
    batch: EncodedBatch = field(compare=False)


@dataclass(slots=True)
class _Request:
    """One request under way: its version and the parcels it carries."""

    correlation_id: int
    version: int
    parcels: dict[int, _Parcel]


class _Delivery:
    """Brings batches of one topic to their leaders, again and again until each is acknowledged.

    The time limit counts from the last acknowledgement: a large table may take long, silence may not.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        sources: Mapping[int, Iterator[EncodedBatch]],
        written: Written,
        max_request_bytes: int,
        new_deadline: Callable[[], Deadline],
    ) -> None:
        self.settings, self.topic, self.written = settings, topic, written
        self.routing = routing_for(settings)
        self.sources = dict(sources)
        self.again: dict[int, list[_Parcel]] = {partition: [] for partition in sources}
        self.numbers = itertools.count()
        self.max_request_bytes = max_request_bytes
        self.new_deadline = new_deadline
        self.deadline: Deadline = new_deadline()
        self.buffer = bytearray(1 << 12)
        self.pause_ms = settings.retry_backoff_ms
        self.last_failure: BrokerError | None = None

    def run(self) -> None:
        while open_partitions := [p for p in self.again if self.again[p] or p in self.sources]:
            if self.deadline.expired:
                raise self._give_up()
            wanted = [TopicPartition(self.topic, partition) for partition in open_partitions]
            by_broker: dict[tuple[str, int], list[int]] = {}
            for where, leader in self.routing.leaders(wanted, self.deadline).items():
                by_broker.setdefault((leader.host, leader.port), []).append(where.partition)
            troubled = [self._deliver_to(*broker, led) for broker, led in by_broker.items()]
            if any(troubled):
                self.routing.invalidate([self.topic])
                self.deadline.pause(self.pause_ms)
                self.pause_ms = min(self.pause_ms * 2, 1_000)

    def _deliver_to(self, host: str, port: int, partitions: list[int]) -> bool:
        """Send until these partitions have nothing left; True when something must be sent again."""
        under_way: deque[_Request] = deque()
        try:
            with self.routing.pool.lend(self.settings, host, port, self.deadline) as connection:
                version = connection.version_of(
                    produce.API_KEY, produce.MAX_VERSION, wanted_min=produce.MIN_VERSION, name="Produce"
                )
                trouble = False
                while True:
                    while not trouble and len(under_way) < MAX_IN_FLIGHT:
                        parcels = self._take(partitions)
                        if not parcels:
                            break
                        request = _Request(connection.next_correlation_id(), version, parcels)
                        under_way.append(request)
                        self._send(connection, request)
                    if not under_way:
                        return trouble
                    trouble |= self._receive(connection, under_way)
        except BrokerError as error:
            self._return(under_way)
            if not error.retriable:
                raise
            self.last_failure = error
            return True

    def _take(self, partitions: Iterable[int]) -> dict[int, _Parcel]:
        """At most one batch of each partition, within the size of a request (but at least one)."""
        taken: dict[int, _Parcel] = {}
        size = 0
        for partition in partitions:
            parcel = self._next_parcel(partition)
            if parcel is None:
                continue
            if taken and size + len(parcel.batch.data) > self.max_request_bytes:
                insort(self.again[partition], parcel)
                break
            taken[partition] = parcel
            size += len(parcel.batch.data)
        return taken

    def _next_parcel(self, partition: int) -> _Parcel | None:
        if self.again[partition]:
            return self.again[partition].pop(0)
        source = self.sources.get(partition)
        batch = None if source is None else next(source, None)
        if batch is None:
            self.sources.pop(partition, None)
            return None
        return _Parcel(next(self.numbers), batch)

    def _send(self, connection: Connection, request: _Request) -> None:
        frame = produce.build_frame(
            request.version,
            request.correlation_id,
            connection.client_id,
            self.topic,
            {partition: parcel.batch.data for partition, parcel in request.parcels.items()},
            timeout_ms=self.settings.request_timeout_ms,
        )
        limit = self.deadline.or_sooner(self.settings.request_timeout_ms, "request.timeout.ms")
        connection.send(frame, limit, waiting_for="Produce")

    def _receive(self, connection: Connection, under_way: deque[_Request]) -> bool:
        """Read the oldest answer; batches to send again go back to their places. True for trouble."""
        request = under_way[0]
        limit = self.deadline.or_sooner(self.settings.request_timeout_ms, "request.timeout.ms")
        size = connection.receive_into(self.buffer, limit, waiting_for="Produce")
        broker = f"{connection.host}:{connection.port}"
        with memoryview(self.buffer) as view:
            try:
                (correlation_id,) = struct.unpack_from(">i", view)
                answers = produce.read_answer(request.version, view[:size])
            except struct.error as error:
                raise _malformed(broker, "is cut off") from error
        if correlation_id != request.correlation_id or {a.partition for a in answers} != set(request.parcels):
            raise _malformed(broker, "answers something else")
        again: dict[int, _Parcel] = {}
        for answer in answers:
            parcel = request.parcels[answer.partition]
            if answer.code in (0, _DUPLICATE_SEQUENCE):
                self.written.add(answer.partition, answer.base_offset, parcel.batch.records)
                self.deadline, self.pause_ms = self.new_deadline(), self.settings.retry_backoff_ms
                continue
            where = TopicPartition(self.topic, answer.partition)
            failure = refusal(answer.code, "Produce", broker, f"partition {where}", answer.message)
            # A gap is no surprise behind a batch that was refused; alone it means lost records.
            waiting = self.again[answer.partition]
            follows = answer.code == _OUT_OF_ORDER_SEQUENCE and bool(waiting) and waiting[0] < parcel
            if not (failure.retriable or follows):
                raise failure
            if not follows:
                self.last_failure = failure
            again[answer.partition] = parcel
        under_way.popleft()
        for partition, parcel in again.items():
            insort(self.again[partition], parcel)
        return bool(again)

    def _return(self, under_way: Iterable[_Request]) -> None:
        for request in under_way:
            for partition, parcel in request.parcels.items():
                insort(self.again[partition], parcel)

    def _give_up(self) -> PenstockError:
        error = self.deadline.timeout_error(f"the acknowledgement of records for topic {self.topic}")
        if self.last_failure is None:
            return error
        what = f"{error.what} The last failure was: {self.last_failure}"
        return BrokerError(error.condition, what, facts=error.facts, retriable=True)


def _malformed(broker: str, why: str) -> BrokerError:
    return BrokerError(
        "MALFORMED_RESPONSE",
        f"The answer of {broker} to Produce {why}.",
        hint="Check that the address is a Kafka listener and that nothing in between alters the bytes.",
        facts={"broker": broker},
    )
