"""A work order in, Arrow batches out: the data plane's reading side.

Rules kept here: a range ends when the position after the last whole batch has reached its end, not when
so many rows were seen; a short answer is waited for and then an error, never an early end; nothing
resets itself, a position the log no longer has is a `DataLossError` (or, with loss checking off, a
counted and logged step forward inside the range, never back). Every wait ends by a deadline.

Why the next question is sent before the rows of this answer are decoded: the broker then reads its disk
and fills the socket while the kernels work. A connection with an unanswered question never goes back to
the pool: a query that stops early closes it.

    for batch in KafkaReader().read(order):
        ...
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.client import ClientSettings
from penstock.core.errors import BrokerError, CorruptBatchError, DataLossError
from penstock.core.model import At, Bound, Earliest, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka import fetch
from penstock.kafka.control import KafkaLogView
from penstock.kafka.deadline import Deadline
from penstock.kafka.messages import error_name
from penstock.kafka.pool import borrow, discard, give_back
from penstock.kafka.records.decode import RecordDecoder
from penstock.kafka.routing import routing_for
from penstock.kafka.wire import Connection

log = logging.getLogger(__name__)

_CORRUPT_MESSAGE = 2
_OUT_OF_RANGE = 1
_GONE = {3: "UNKNOWN_TOPIC_OR_PARTITION"}
_OTHER_TOPIC = {100: "UNKNOWN_TOPIC_ID", 103: "INCONSISTENT_TOPIC_ID"}
# Another broker leads, or this one is not ready yet: ask again with fresh metadata.
_PASSING = frozenset({5, 6, 7, 9, 13, 56, 74, 75, 76, 78, 89})
_LARGEST_FETCH = 1 << 30


class KafkaReader:
    """Reads ranges one after the other over pooled connections. Keep one per thread."""

    def __init__(self) -> None:
        self._buffer: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.fetches = 0

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]:
        for wanted in order.ranges:
            yield from _RangeRead(self, order, wanted).batches()

    def room(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if self._buffer.size < size:
            self._buffer = np.empty(max(size, 1 << 20), np.uint8)
        return self._buffer


class _RangeRead:
    """One range: where it is, on which connection, and what has gone wrong so far."""

    def __init__(self, reader: KafkaReader, order: WorkOrder, wanted: RangeOrder) -> None:
        self.reader, self.order, self.wanted = reader, order, wanted
        self.settings: ClientSettings = order.client
        self.partition = TopicPartition(wanted.topic, wanted.partition)
        self.committed_only = order.client.isolation_level == "read_committed"
        self.routing = routing_for(order.client)
        self.connection: Connection | None = None
        self.correlation_id = 0
        self.version = fetch.MAX_VERSION
        self.max_bytes = order.client.max_partition_fetch_bytes
        self.replica: tuple[str, int] | None = None  # a follower near us, when the leader names one
        self.use_rack = bool(order.client.client_rack)
        self.last_epoch = -1
        self.trouble: BrokerError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        fixed = isinstance(self.wanted.start, At) and isinstance(self.wanted.until, At)
        if fixed and self.wanted.start.offset >= self.wanted.until.offset:  # type: ignore[union-attr]
            return
        start, until = self._bind(self.wanted.start), self._bind(self.wanted.until)
        self._refuse_backwards(start, until)
        decoder = RecordDecoder(
            self.wanted.topic,
            self.wanted.partition,
            self.order.columns,
            check_crcs=self.settings.check_crcs,
            since_ms=self.order.since_ms,
        )
        position = start
        try:
            while position < until:
                answer, records = self._fetch(position, until)
                if answer is None:
                    position = self._step_over(position, until)
                    continue
                self._open(decoder, records, position)
                following = decoder.next_offset
                if following is None or following <= position:
                    self._widen(position, records.size)
                    continue
                self.last_epoch = -1 if decoder.leader_epoch is None else decoder.leader_epoch
                if following < until:
                    self._ask(following, self._deadline())
                yield from decoder.rows(position, until, answer.aborted if self.committed_only else None)
                position = following
        finally:
            self._release()

    # --- bounds ---------------------------------------------------------------------------------------

    def _bind(self, bound: Bound) -> int:
        """Late-bound ends are looked up when the task starts, as Spark does: a reused frame sees new rows."""
        if isinstance(bound, At):
            return bound.offset
        view = KafkaLogView(self.settings)
        try:
            found = view.earliest if isinstance(bound, Earliest) else view.latest
            return found([self.partition])[self.partition]
        finally:
            view.close()

    def _refuse_backwards(self, start: int, until: int) -> None:
        if start > until:
            raise DataLossError(
                "START_AFTER_END",
                f"{self.partition}: the range starts at offset {start}, after its end {until}.",
                hint="Records were deleted after planning, or the topic was recreated; plan again.",
                facts={**self._facts(start), "until": until},
            )

    # --- one fetch ------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self.order.poll_timeout_ms, "kafkaConsumer.pollTimeoutMs")

    def _fetch(
        self, position: int, until: int
    ) -> tuple[fetch.FetchAnswer | None, np.ndarray[Any, np.dtype[np.uint8]]]:
        """The next answer that holds records, or None when `position` is no longer in the log."""
        deadline = self._deadline()
        self.trouble = None
        nothing = np.empty(0, np.uint8)
        while True:
            try:
                if self.connection is None or self.connection.in_flight == 0:
                    self._ask(position, deadline)
                frame = self._receive(deadline)
            except BrokerError as error:
                self._drop()
                self._wait_or_fail(error, position, deadline)
                continue
            answer = fetch.read_answer(frame.data, self.version, self.correlation_id)
            if answer.diverging_end is not None:
                raise self._truncated(position, answer.diverging_end)
            code = answer.error_code
            if code == _OUT_OF_RANGE:
                if self.replica is None:
                    return None, nothing
                self._use_leader()  # a follower may lag; only the leader knows what is gone
            elif code in _GONE or code in _OTHER_TOPIC:
                self._give_up_or_retry(code, position, deadline)
            elif code in _PASSING:
                self._use_leader()
                self._wait_or_fail(self._refused(code, position), position, deadline)
            elif code == _CORRUPT_MESSAGE:
                raise CorruptBatchError(
                    "CORRUPT_BATCH",
                    f"{self.partition}: the broker itself finds the record batch at offset {position} damaged.",
                    hint="Read it from another replica, or start after it with `startingOffsets`.",
                    facts=self._facts(position),
                )
            elif code:
                raise self._refused(code, position)
            elif answer.preferred_replica >= 0 and answer.end == answer.begin:
                self._use_replica(answer.preferred_replica, deadline)
            elif answer.end > answer.begin:
                return answer, frame[answer.begin : answer.end]
            elif deadline.expired:
                visible = answer.last_stable_offset if self.committed_only else answer.high_watermark
                if position >= answer.high_watermark:
                    return None, nothing
                raise self._timed_out(position, until, visible, answer.high_watermark)

    def _ask(self, position: int, deadline: Deadline) -> None:
        if self.connection is None:
            self._connect(deadline)
        connection = self.connection
        assert connection is not None
        highest = fetch.MAX_VERSION if self.topic_id else fetch.MAX_VERSION_WITHOUT_TOPIC_ID
        self.version = connection.version_of(
            fetch.API_KEY, highest, wanted_min=fetch.MIN_VERSION, name="Fetch"
        )
        question = fetch.FetchQuestion(
            topic=self.wanted.topic,
            partition=self.wanted.partition,
            offset=position,
            topic_id=self.topic_id,
            leader_epoch=-1 if self.replica else self.leader_epoch,
            last_epoch=self.last_epoch,
            max_bytes=self.max_bytes,
            min_bytes=self.settings.fetch_min_bytes,
            max_wait_ms=min(self.settings.fetch_max_wait_ms, int(deadline.remaining_s() * 1000)),
            committed_only=self.committed_only,
            rack=self.settings.client_rack if self.use_rack else "",
        )
        self.correlation_id = connection.next_correlation_id()
        frame = fetch.encode_question(question, self.version, self.correlation_id, connection.client_id)
        connection.send(frame, deadline, waiting_for="Fetch")
        self.reader.fetches += 1

    def _receive(self, deadline: Deadline) -> np.ndarray[Any, np.dtype[np.uint8]]:
        connection = self.connection
        assert connection is not None
        deadline = deadline.or_sooner(self.settings.request_timeout_ms, "request.timeout.ms")
        size = connection.receive_size(deadline, waiting_for="Fetch")
        frame = self.reader.room(size)[:size]
        connection.receive_exactly(frame.data, deadline, waiting_for="Fetch")
        return frame

    def _open(
        self, decoder: RecordDecoder, records: np.ndarray[Any, np.dtype[np.uint8]], position: int
    ) -> None:
        try:
            decoder.open(records)
        except CorruptBatchError as error:
            error.facts.setdefault("offset", position)
            raise

    def _widen(self, position: int, received: int) -> None:
        """Not even one batch was whole: brokers before KIP-74 cut a batch that is larger than the limit."""
        if self.max_bytes >= _LARGEST_FETCH:
            raise CorruptBatchError(
                "CORRUPT_BATCH",
                f"{self.partition}: the batch at offset {position} is not whole in an answer of {received} bytes.",
                hint="Read it from another replica, or start after it with `startingOffsets`.",
                facts=self._facts(position),
            )
        self.max_bytes = min(_LARGEST_FETCH, self.max_bytes * 2)

    # --- connections ----------------------------------------------------------------------------------

    def _connect(self, deadline: Deadline) -> None:
        leader = self.routing.leader(self.wanted.topic, self.wanted.partition, deadline)
        self.leader_epoch = leader.leader_epoch
        self.topic_id = self.wanted.topic_id or leader.topic_id
        host, port = self.replica or (leader.host, leader.port)
        if self.order.use_pool:
            self.connection = borrow(self.settings, host, port, deadline)
        else:
            self.connection = Connection(self.settings, host, port, deadline)

    leader_epoch: int = -1
    topic_id: bytes | None = None

    def _drop(self) -> None:
        if self.connection is not None:
            discard(self.connection)
            self.connection = None

    def _release(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.order.use_pool and connection.in_flight == 0 and not connection.closed:
            give_back(connection)
        else:
            discard(connection)

    def _use_leader(self) -> None:
        self._release()
        self.replica, self.use_rack = None, False

    def _use_replica(self, node_id: int, deadline: Deadline) -> None:
        self._release()
        self.replica = self.routing.address(node_id, deadline)

    # --- what went wrong ------------------------------------------------------------------------------

    def _facts(self, offset: int) -> dict[str, object]:
        return {"topic": self.wanted.topic, "partition": self.wanted.partition, "offset": offset}

    def _wait_or_fail(self, error: BrokerError, position: int, deadline: Deadline) -> None:
        """Ask again with fresh metadata after a short pause, until the deadline; then say what it was."""
        if not error.retriable:
            raise error
        self.trouble = error
        if deadline.remaining_s() * 1000 <= self.settings.retry_backoff_ms:
            raise BrokerError(
                "FETCH_TIMEOUT",
                f"{self.partition}: no records from offset {position} within {self.order.poll_timeout_ms} ms "
                f"(kafkaConsumer.pollTimeoutMs); the last problem: {error.what}",
                hint="Check the brokers; raise kafkaConsumer.pollTimeoutMs if they are only slow.",
                facts={**self._facts(position), "limit_ms": self.order.poll_timeout_ms},
                retriable=True,
            ) from error
        self.routing.invalidate()
        deadline.pause(self.settings.retry_backoff_ms)

    def _refused(self, code: int, position: int) -> BrokerError:
        name = error_name(code)
        hint = "Check the brokers' logs."
        if code == 29:
            hint = f"Grant READ on topic {self.wanted.topic} to this user."
        return BrokerError(
            "FETCH_REFUSED",
            f"{self.partition}: the broker refused a fetch at offset {position} with {name}.",
            hint=hint,
            facts={**self._facts(position), "kafka_error": name},
            retriable=code in _PASSING,
        )

    def _give_up_or_retry(self, code: int, position: int, deadline: Deadline) -> None:
        """A topic that is unknown may only be unknown to this broker yet; another id is certain."""
        if code == 3 or self.wanted.topic_id is None:
            views = self.routing.describe(self.wanted.topic, deadline)
            if views is not None and self.wanted.partition in views.partitions and self.trouble is None:
                self._use_leader()
                self._wait_or_fail(
                    BrokerError("FETCH_REFUSED", f"{self.partition}: {error_name(code)}.", retriable=True),
                    position,
                    deadline,
                )
                return
        raise DataLossError(
            "TOPIC_RECREATED" if code in _OTHER_TOPIC else "PARTITION_GONE",
            f"{self.partition}: the topic was deleted"
            + (" or recreated" if code in _OTHER_TOPIC else "")
            + f" while offsets from {position} were still to be read ({error_name(code)}).",
            hint="Start a new read of the topic that is there now.",
            facts=self._facts(position),
        )

    def _truncated(self, position: int, end: int) -> DataLossError:
        return DataLossError(
            "LOG_TRUNCATED",
            f"{self.partition}: the log was cut back to offset {end} by a leader election; records read "
            f"before offset {position} are no longer part of it.",
            hint="Read the range again from an offset at or below the cut.",
            facts={**self._facts(position), "log_end": end},
        )

    def _timed_out(self, position: int, until: int, visible: int, end: int) -> BrokerError:
        why = f"the log ends at {end}"
        if self.committed_only and visible < end:
            why = f"an open transaction holds back offsets from {visible} (the log ends at {end})"
        return BrokerError(
            "FETCH_TIMEOUT",
            f"{self.partition}: no records from offset {position} (wanted up to {until}) within "
            f"{self.order.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs); {why}.",
            hint="Raise kafkaConsumer.pollTimeoutMs if the brokers are slow; end a hanging transaction.",
            facts={**self._facts(position), "limit_ms": self.order.poll_timeout_ms, "log_end": end},
            retriable=True,
        )

    def _step_over(self, position: int, until: int) -> int:
        """`position` is not in the log any more: fail with the exact range, or go on at what is left of it."""
        self._release()
        earliest, latest = self._bind(Earliest()), self._log_end()
        lost_until = min(until, earliest) if position < earliest else until
        what = (
            f"{self.partition}: offsets {position} to {lost_until} (excluded) are not available; the log "
            f"holds {earliest} to {latest} (excluded)."
        )
        facts = {**self._facts(position), "until": lost_until, "earliest": earliest, "latest": latest}
        if earliest <= position < latest:
            return position  # it was out of range a moment ago and is not now: ask again
        if self.order.fail_on_data_loss:
            raise DataLossError(
                "OFFSET_OUT_OF_RANGE",
                what,
                hint="They aged out or the topic was recreated. Set failOnDataLoss=false to read what is left.",
                facts=facts,
            )
        log.warning("[OFFSET_OUT_OF_RANGE] %s Going on without them (failOnDataLoss=false).", what)
        return lost_until

    def _log_end(self) -> int:
        view = KafkaLogView(self.settings)
        try:
            return view.latest([self.partition])[self.partition]
        finally:
            view.close()
