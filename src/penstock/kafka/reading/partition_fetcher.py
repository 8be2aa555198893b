"""Fetches one partition: asks, receives, and finds the broker again when it has moved.

Rules: a fetch is retried with fresh metadata when the leader moves, the broker hangs up or no answer comes,
but only until the deadline of this step of progress; then the error names topic, partition, offset and limit.
Offsets the log no longer has are not handled here: `fetch` returns None, and the reader decides. A connection
with an unanswered question is closed, never given back.

Why one question for one partition at a time: the answer is one partition's bytes in one buffer, the next
question can be sent as soon as its batch headers are read, and a slow partition delays no other. Where
a task has many small ranges, `penstock.kafka.reading.small_ranges` first asks for all of them at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import BrokerError, CorruptBatchError, DataLossError, PenstockError
from penstock.core.model import RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.metadata.broker_errors import refusal
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
    read_answer,
)
from penstock.kafka.reading.open_transactions import find_open_transactions
from penstock.kafka.transport.connection import MAX_FRAME_BYTES, Connection
from penstock.kafka.transport.connection_pool import POOL
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import LEAST_PAUSE_MS, Attempts

_OUT_OF_RANGE, _CORRUPT_MESSAGE, _UNKNOWN_TOPIC = 1, 2, 3
_OTHER_TOPIC = frozenset({100, 103})  # UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID

FrameBytes = np.ndarray[Any, np.dtype[np.uint8]]
_NO_BYTES: FrameBytes = np.empty(0, np.uint8)


class ReceiveBuffer:
    """Memory for one answer at a time, kept from fetch to fetch: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._memory: FrameBytes = np.empty(0, np.uint8)

    def room(self, size: int) -> FrameBytes:
        if self._memory.size < size:
            self._memory = np.empty(max(size, 1 << 20), np.uint8)
        return self._memory[:size]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Record batches as received, valid until the next fetch, and the aborted transactions among them."""

    records: FrameBytes
    aborted: tuple[tuple[int, int], ...]
    held_from: int | None  # where an open transaction holds back readers of committed rows, if one does


class PartitionFetcher:
    """Fetches one range, one question ahead of the decoder. Always call `release()` at the end."""

    def __init__(
        self, order: WorkOrder, wanted: RangeOrder, buffer: ReceiveBuffer, *, fresh: bool = False
    ) -> None:
        self.partition = TopicPartition(wanted.topic, wanted.partition)
        self.last_epoch = -1  # of the last batch read: lets the broker notice a truncated log
        self.questions = 0
        self._settings, self._wanted, self._buffer = order.client, wanted, buffer
        self._poll_timeout_ms = order.poll_timeout_ms
        self._use_pool, self._fresh = order.use_pool, fresh
        self._committed_only = order.client.isolation_level == "read_committed"
        self._routing = routing_for(order.client)
        self._connection: Connection | None = None
        self._correlation_id = self._version = 0
        self._leader_epoch = -1
        self._topic_id = wanted.topic_id
        self._empty: FetchAnswer | None = None  # the last answer in this step that held nothing yet
        self._widened_bytes = 0  # used instead of the limits when not even one batch fits them
        self._rack = order.client.client_rack
        self._replica: tuple[str, int] | None = None  # a follower near us, when the leader names one

    def ask(self, position: int) -> None:
        """Send the question for `position` now; the next `fetch` receives its answer.

        Retriable errors are left to the next `fetch`, which tries again: the rows at hand come first.
        """
        try:
            self._ask(position, self.deadline())
        except BrokerError as error:
            if not error.retriable:
                raise
            self._drop()

    def fetch(self, position: int, until: int) -> Fetched | None:
        """Return record batches from `position` on; None when the log does not hold `position`."""
        pause_ms = max(LEAST_PAUSE_MS, self._settings.retry_backoff_ms)
        what = f"records of {self.partition} from offset {position} on"
        attempts = Attempts(self.deadline(), what, pause_ms, longest_pause_ms=pause_ms)
        self._empty = None
        for number in attempts:
            if number:
                self._routing.invalidate([self._wanted.topic])
            with attempts.forgiving():
                frame, answer = self._converse(position, attempts.deadline)
                break
        else:
            last = attempts.last or attempts.given_up()
            raise self._silent(position, last) from last
        if answer.error_code:
            return None
        if answer.end > answer.begin:
            stable = answer.last_stable_offset
            is_held = self._committed_only and 0 <= stable < answer.high_watermark
            return Fetched(frame[answer.begin : answer.end], answer.aborted, stable if is_held else None)
        if position < answer.high_watermark:  # the log has more and withholds it: it does not simply end here
            raise self._starved(position, until, answer)
        if self._replica is not None:
            self.release()
            self._stay_with_leader()  # it may only be behind; the leader knows
        return None

    def _converse(self, position: int, deadline: Deadline) -> tuple[FrameBytes, FetchAnswer]:
        """Return the first answer with records or that refuses `position`; at the deadline, an empty one.

        A broker with nothing yet has not failed, and is asked again at once: it holds the question itself.
        """
        while True:
            try:
                if self._connection is None or self._connection.in_flight == 0:
                    self._ask(position, deadline)
                frame = self._receive(deadline)
            except BrokerError as error:
                self._drop()
                self._stay_with_leader()
                # The cluster was asked several times for the leader of a topic that it does not know.
                is_gone = error.condition == "UNKNOWN_TOPIC_OR_PARTITION"
                if self._empty is None or is_gone or not deadline.expired:
                    raise
                # The broker did answer: there is nothing yet. A last question cut short changes nothing.
                return _NO_BYTES, self._empty
            try:
                answer = read_answer(frame.data, self._version, self._correlation_id)
            except CorruptBatchError:
                self._drop()  # its next bytes may belong to anything
                raise
            if answer.diverging_end is not None:
                raise self._truncated(position, answer.diverging_end)
            if answer.error_code == _OUT_OF_RANGE and self._replica is None:
                return frame, answer
            if answer.error_code:
                raise self._refused(answer.error_code, position)
            if answer.end > answer.begin:
                return frame, answer
            if answer.preferred_replica >= 0:
                self.release()
                try:
                    self._replica = self._routing.address(answer.preferred_replica, deadline)
                except BrokerError:
                    self._rack = ""  # the follower has just stopped; without a rack the leader names none
                continue
            self._empty = answer
            if deadline.expired:
                return frame, answer

    def widen(self, position: int, received: int) -> None:
        """Double the size to ask for: old brokers cut even a first batch that exceeds the limit."""
        if self._widened_bytes >= MAX_FRAME_BYTES:
            raise CorruptBatchError(
                "CORRUPT_BATCH",
                f"{self.partition}: the batch at offset {position} is not whole in {received} bytes.",
                hint="Start after it with `startingOffsets`.",
                facts=self.facts(position),
            )
        now = max(self._widened_bytes, self._settings.max_partition_fetch_bytes)
        self._widened_bytes = min(MAX_FRAME_BYTES, now * 2)

    def release(self) -> None:
        """Give the connection back if it has no unanswered question, else close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            (POOL.give_back if self._use_pool else POOL.discard)(connection)

    def explain_hold(self, stable_end: int) -> str:
        """Return whose open transaction holds back committed rows, and how long it has been silent."""
        deadline = Deadline.after_ms(self._settings.request_timeout_ms, "request.timeout.ms")
        found = find_open_transactions(self._routing, self.partition, deadline)
        if not found:
            return f"an open transaction holds back everything from {stable_end} on"
        return found[0].describe(time.time_ns() // 1_000_000)

    def raise_if_recreated(self, position: int) -> None:
        """Raise if the topic's id is not the one that the work order, or else the first leader, named."""
        if self._topic_id is None:
            return
        view = self._routing.describe(self._wanted.topic, self.deadline())
        if view is not None and view.topic_id is not None and view.topic_id != self._topic_id:
            raise DataLossError(
                "TOPIC_RECREATED",
                f"{self.partition}: the topic was deleted and created again while offsets from {position} on "
                "were still to be read.",
                hint="Set failOnDataLoss=false to go on with the topic that is there now, or start over.",
                facts=self.facts(position),
            )

    def facts(self, offset: int) -> dict[str, object]:
        return {"topic": self._wanted.topic, "partition": self._wanted.partition, "offset": offset}

    # --- the wire -------------------------------------------------------------------------------------

    def deadline(self) -> Deadline:
        """Return the deadline of one step of progress."""
        return Deadline.after_ms(self._poll_timeout_ms, "kafkaConsumer.pollTimeoutMs")

    def _connect(self, deadline: Deadline) -> Connection:
        leader = self._routing.leader(self._wanted.topic, self._wanted.partition, deadline)
        self._leader_epoch = leader.leader_epoch
        self._topic_id = self._wanted.topic_id or leader.topic_id
        host, port = self._replica or (leader.host, leader.port)
        if not self._use_pool:
            return Connection(self._settings, host, port, deadline)
        fresh, self._fresh = self._fresh, False
        return POOL.borrow(self._settings, host, port, deadline, fresh=fresh)

    def _ask(self, position: int, deadline: Deadline) -> None:
        if self._connection is None:
            self._connection = self._connect(deadline)
        highest = MAX_VERSION if self._topic_id else MAX_VERSION_WITHOUT_TOPIC_ID
        self._version = self._connection.version_of(API_KEY, highest, wanted_min=MIN_VERSION, name="Fetch")
        wanted = PartitionQuestion(
            topic=self._wanted.topic,
            partition=self._wanted.partition,
            offset=position,
            topic_id=self._topic_id,
            leader_epoch=self._leader_epoch,
            last_epoch=self.last_epoch,
            max_bytes=max(self._settings.max_partition_fetch_bytes, self._widened_bytes),
        )
        question = FetchQuestion(
            partitions=(wanted,),
            max_bytes=max(self._settings.fetch_max_bytes, self._widened_bytes),
            # Zero would mean "answer at once", and asking again at once would keep both sides busy.
            min_bytes=max(1, self._settings.fetch_min_bytes),
            # Half of the time left: a broker that uses all of this wait answers after it.
            max_wait_ms=min(
                max(LEAST_PAUSE_MS, self._settings.fetch_max_wait_ms), int(deadline.remaining_s() * 500)
            ),
            committed_only=self._committed_only,
            rack=self._rack,
        )
        self._correlation_id = self._connection.next_correlation_id()
        frame = encode_question(question, self._version, self._correlation_id, self._connection.client_id)
        self._connection.send(frame, deadline, waiting_for="Fetch")
        self.questions += 1

    def _receive(self, deadline: Deadline) -> FrameBytes:
        assert self._connection is not None
        deadline = deadline.or_sooner(self._settings.request_timeout_ms, "request.timeout.ms")
        size = self._connection.receive_size(deadline, waiting_for="Fetch")
        frame = self._buffer.room(size)
        self._connection.receive_exactly(frame.data, deadline, waiting_for="Fetch")
        return frame

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            POOL.discard(connection)

    # --- what went wrong ------------------------------------------------------------------------------

    def _refused(self, code: int, position: int) -> PenstockError:
        """Return the error for a code. A follower's refusal can always be retried, with the leader."""
        if code == _CORRUPT_MESSAGE:
            return CorruptBatchError(
                "CORRUPT_BATCH",
                f"{self.partition}: the broker itself finds the record batch at offset {position} damaged.",
                hint="Let the broker restore it from a replica, or start after it with `startingOffsets`.",
                facts=self.facts(position),
            )
        if code == _UNKNOWN_TOPIC or code in _OTHER_TOPIC:
            # Recreated is certain; unknown may pass, and looking up the leader again shows whether it does.
            self.raise_if_recreated(position)
        address = "a follower" if self._replica else "the leader"
        error = refusal(code, "Fetch", address, f"partition {self.partition} at offset {position}")
        error.retriable |= self._replica is not None
        self._stay_with_leader()
        self.release()
        return error

    def _stay_with_leader(self) -> None:
        """Ask only the leader from now on: a follower has failed, lags or has lost the partition."""
        if self._replica is not None:
            self._replica, self._rack = None, ""

    def _silent(self, position: int, last: BrokerError) -> BrokerError:
        return BrokerError(
            "FETCH_TIMEOUT",
            f"{self.partition}: nothing from offset {position} on for group {self._settings.group_id} within "
            f"{self._poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs). The last failure was: {last}",
            facts={**self.facts(position), "limit_ms": self._poll_timeout_ms},
            retriable=True,
        )

    def _starved(self, position: int, until: int, answer: FetchAnswer) -> BrokerError:
        why = f"the log ends at {answer.high_watermark}"
        hint = "Raise kafkaConsumer.pollTimeoutMs if the brokers are slow."
        if self._committed_only and answer.last_stable_offset <= position:
            why += f", but {self.explain_hold(answer.last_stable_offset)}"
            hint = "End the hanging transaction (its producer must commit or abort), then run again."
        return BrokerError(
            "FETCH_TIMEOUT",
            f"{self.partition}: nothing from offset {position} on (wanted up to {until}) within "
            f"{self._poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs); {why}.",
            hint=hint,
            facts={
                **self.facts(position),
                "limit_ms": self._poll_timeout_ms,
                "log_end": answer.high_watermark,
                "stable_end": answer.last_stable_offset,
            },
            retriable=True,
        )

    def _truncated(self, position: int, end: int) -> DataLossError:
        return DataLossError(
            "LOG_TRUNCATED",
            f"{self.partition}: a leader election cut the log back to offset {end}; records read before "
            f"offset {position} are no longer part of it.",
            hint="Set failOnDataLoss=false to go on with what the log holds now, or read the range again.",
            facts={**self.facts(end), "until": position, "log_end": end},
        )
