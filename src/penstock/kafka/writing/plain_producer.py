"""A plain idempotent producer: it writes Arrow tables to a topic, each record once, every answer checked.

Rule: `write` returns when every record is acknowledged by all in-sync replicas, or raises. A batch
keeps its producer id and sequence number through every repetition, so a broker that already has it says so
instead of storing it twice. After an error the producer id is dropped: it is unknown what arrived, and a new
id cannot collide with it.

Why not a background thread that collects records, as other clients have: a table is already a collection,
and a caller who gets an answer for it needs no callbacks.

    written = Writer(settings, codec=LZ4).write("events", table)   # columns key, value, headers, ...
    written.offsets[0]                                             # (first offset, next offset)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, SinkError
from penstock.core.loggers import get_logger
from penstock.core.model import TopicPartition
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.metadata.topic_admin import find_message_limit
from penstock.kafka.records.codecs import NONE
from penstock.kafka.records.murmur2_kernel import group_rows
from penstock.kafka.records.record_encoder import EncodedBatch, Encoder, ProducerStamp, record_columns
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import InitProducerIdRequest
from penstock.kafka.transport.retries import LEAST_PAUSE_MS, Attempts
from penstock.kafka.writing.batch_delivery import DeliveredRecords, Delivery
from penstock.kafka.writing.partition_choice import PartitionChoice

log = get_logger(__name__)

#: How long a write waits for an answer that it can do without.
HINT_TIMEOUT_MS = 5_000
#: How long it then goes without the answer before it asks again: each question may take the time above.
ASK_AGAIN_AFTER_S = 60.0
#: Every topic takes batches of this size, so its limit is not worth a question.
_SMALL_BYTES = 4_096
#: How often to ask again for a topic that one broker knows and another does not.
_LOOKS_FOR_A_TOPIC = 20


class Writer:
    """An idempotent producer. For one thread."""

    #: Set only on a producer that writes in transactions.
    transactional_id: str | None = None

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
        self._choice = PartitionChoice()
        self._limits: dict[str, int | None] = {}
        self._ask_again_at: dict[str, float] = {}

    def write(self, topic: str, data: pa.RecordBatch | pa.Table) -> DeliveredRecords:
        """Write all rows and return the offsets they got.

        Any of the columns key, value, headers, timestamp and partition may be missing.
        """
        try:
            return self._write_all(topic, data)
        except BaseException:
            self._forget()
            raise

    def _write_all(self, topic: str, data: pa.RecordBatch | pa.Table) -> DeliveredRecords:
        written = DeliveredRecords()
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            if batch.num_rows:
                self._write_batch(topic, batch, written)
        return written

    def _write_batch(self, topic: str, batch: pa.RecordBatch, written: DeliveredRecords) -> None:
        deadline = self._deadline()
        partitions = self._count_partitions(topic, deadline)
        if self._producer is None:
            self._producer = self._register(deadline)
        columns = record_columns(batch, now_ms=time.time_ns() // 1_000_000)
        rows, starts = group_rows(self._choice.choose(batch, columns.keys, partitions), partitions)
        used = np.flatnonzero(np.diff(starts)).tolist()
        is_small = batch.num_rows == 1 or batch.nbytes <= _SMALL_BYTES
        room = None if is_small else self._find_room(topic, deadline)
        self._announce([TopicPartition(topic, partition) for partition in used])
        sources: dict[int, Iterator[EncodedBatch]] = {}
        for partition in used:
            mine = rows[starts[partition] : starts[partition + 1]]
            where = TopicPartition(topic, partition)
            stamp = self._stamps.get(where, self._producer)
            sources[partition] = self._encoder.encode(columns, mine, stamp, room=room)
            self._stamps[where] = stamp.advance(mine.size)
        Delivery(
            self._settings,
            topic,
            sources,
            written,
            max_request_bytes=self._max_request_bytes,
            new_deadline=self._deadline,
            transactional_id=self.transactional_id,
        ).run()

    def _count_partitions(self, topic: str, deadline: Deadline) -> int:
        """Return how many partitions the topic has now; raise if it is gone."""
        # A new topic may still be unknown to this broker; this waits a little, then refuses.
        self._routing.leader(topic, 0, deadline)
        attempts = Attempts(deadline, f"topic {topic}", LEAST_PAUSE_MS, longest_pause_ms=LEAST_PAUSE_MS)
        for number in attempts:
            view = self._routing.describe(topic, deadline)
            if view is not None:
                return len(view.partitions)
            # Before that, another broker may have answered that has not heard of the topic yet.
            if number == _LOOKS_FOR_A_TOPIC:
                raise SinkError(
                    "UNKNOWN_TOPIC_OR_PARTITION",
                    f"The topic {topic} is gone.",
                    hint="Somebody deleted it just now; create it again.",
                    facts={"topic": topic},
                )
        raise attempts.given_up()

    def _announce(self, partitions: Collection[TopicPartition]) -> None:
        """Announce the partitions before records go to them; only a transaction does so."""

    def learn_limit(self, topic: str, deadline: Deadline | None = None) -> int | None:
        """Return the largest batch that a topic takes, in bytes, asking once; None if brokers refuse to say.

        Raise on a failure that may pass. Ask before a transaction: inside it, the question uses its time.
        """
        if topic not in self._limits:
            self._limits[topic] = find_message_limit(self._settings, topic, deadline)
        return self._limits[topic]

    def _find_room(self, topic: str, deadline: Deadline) -> int | None:
        """Return the largest batch to make for a topic, which may take less than we would send, or None."""
        if time.monotonic() < self._ask_again_at.get(topic, 0.0):
            return None
        try:
            limit = self.learn_limit(topic, deadline.or_sooner(HINT_TIMEOUT_MS, "HINT_TIMEOUT_MS"))
        except BrokerError as error:
            log.info("Writing to %s without knowing the size of its batches: %s", topic, error)
            self._ask_again_at[topic] = time.monotonic() + ASK_AGAIN_AFTER_S
            return None
        # Compression makes incompressible data slightly larger.
        return None if limit is None else limit - limit // 128 - 64

    def _register(self, deadline: Deadline) -> ProducerStamp:
        """Return a new producer id, with the first sequence number."""
        pause_ms = max(LEAST_PAUSE_MS, self._settings.retry_backoff_ms)
        attempts = Attempts(deadline, "a producer id", pause_ms, longest_pause_ms=pause_ms)
        for _ in attempts:
            response, broker = self._routing.call_any(
                lambda: InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
                ),
                deadline,
            )
            if not response.error_code:
                return ProducerStamp(response.producer_id, response.producer_epoch, 0)
            attempts.forgive(refusal(response.error_code, "InitProducerId", broker, "an idempotent producer"))
        raise attempts.given_up()

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._delivery_timeout_ms, "delivery.timeout.ms")

    def close(self) -> None:
        """Forget the producer id; connections went back to the pool after each write."""
        self._forget()

    def _forget(self) -> None:
        self._producer = None
        self._stamps.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
