"""A producer whose writes to several topics become visible together, or not at all.

Rule: between `begin` and `commit` everything is one transaction: readers of committed records see all of it
or none. `fence` comes first: it ends whatever an earlier run with the same transactional id left open, and
revokes that run's right to write. When `commit` gets no answer, the outcome is unknown here, and
the error says so; the remedy is the same as after a crash: `fence`, then read what is there.

Why not answer an unknown outcome by committing again with a new id: the first commit may still succeed, and
both would be seen. Why a separate request (AddPartitionsToTxn) names each partition to the coordinator,
although new brokers learn of them from the records: that works with every broker from 2.1 on.

    writer = TransactionalWriter(settings, "shipper-web1")
    writer.fence()
    with writer.transaction():
        writer.write("lines", lines)
        writer.write("positions", position)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, SinkError
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import by_topic
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.records.codecs import NONE
from penstock.kafka.records.record_encoder import ProducerStamp
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from penstock.kafka.transport.retries import Attempts
from penstock.kafka.writing.batch_delivery import DeliveredRecords
from penstock.kafka.writing.plain_producer import Writer

#: A later run has the right to write, or the transaction took too long and was aborted.
FENCED = "PRODUCER_FENCED"
#: `commit` got no answer: fence, then read what is there.
OUTCOME_UNKNOWN = "TRANSACTION_OUTCOME_UNKNOWN"
#: This transaction is over but this writer is not: fence, then do it again.
TRANSACTION_LOST = frozenset(
    {
        OUTCOME_UNKNOWN,
        "INVALID_TXN_STATE",
        "INVALID_PRODUCER_ID_MAPPING",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "TRANSACTION_ABORTABLE",
        "UNKNOWN_PRODUCER_ID",
    }
)

_FENCING_CODES = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH, and its newer name
_CONCURRENT_TRANSACTIONS, _NOT_ATTEMPTED = 51, 55
# Later versions are for brokers (AddPartitionsToTxn), change the epoch with each transaction (EndTxn), or
# are not settled yet (InitProducerId).
_ADD_VERSION, _END_VERSION, _INIT_VERSION = 3, 4, 5
# The previous transaction's markers take a few milliseconds; the pause after a failed request is too long.
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 2, 100
#: How long the coordinator's answer is waited for.
_MAX_BLOCK_MS = 60_000

_State = Literal["new", "ready", "open", "doubtful"]


class TransactionalWriter(Writer):
    """The only producer with this transactional id. For one thread."""

    def __init__(
        self,
        settings: ClientSettings,
        transactional_id: str,
        *,
        codec: int = NONE,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        super().__init__(settings, codec=codec)
        self.transactional_id: str = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._state: _State = "new"
        self._added: set[TopicPartition] = set()
        self._partition_counts: dict[str, tuple[int, float]] = {}

    # --- the life of a transaction ------------------------------------------------------------------

    def fence(self) -> None:
        """Become the only writer with this id: refuse earlier ones, and abort what they left open.

        On return, their last transaction is settled, so a read of committed records shows its outcome.
        This also settles a transaction of this writer whose outcome is unknown.
        """
        self._forget()
        self._state = "new"

        def build() -> Any:
            return InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._transaction_timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )

        response, broker = self._ask(build, _read_code, _INIT_VERSION)
        if response.error_code:
            raise self._refused(response.error_code, "InitProducerId", broker)
        self._producer = ProducerStamp(response.producer_id, response.producer_epoch, 0, transactional=True)
        self._state = "ready"

    def begin(self) -> None:
        """Begin a transaction: all writes until it ends belong to it. Send nothing before the first write."""
        if self._state != "ready":
            raise self._misuse("begin")
        self._state = "open"

    def write(self, topic: str, data: pa.RecordBatch | pa.Table) -> DeliveredRecords:
        """Write all rows as part of the transaction; after an error, call `abort` or `fence`."""
        if self._state != "open":
            raise self._misuse("write")
        self._state = "doubtful"  # until all of it is acknowledged
        try:
            written = self._write_all(topic, data)
        except BrokerError as error:
            if error.facts.get("code") in _FENCING_CODES:
                raise self._fenced(str(error.facts.get("broker", "A broker")), "Produce") from error
            raise
        self._state = "open"
        return written

    def commit(self, *, timeout_ms: int | None = None) -> None:
        """Make the transaction visible, within a minute unless `timeout_ms` is given.

        On TRANSACTION_OUTCOME_UNKNOWN it may or may not be visible; see `fence`.
        """
        if self._state != "open":
            raise self._misuse("commit")
        self._end(committed=True, timeout_ms=timeout_ms)

    def abort(self) -> None:
        """Abort the transaction. If no broker can be reached, `fence` aborts it later."""
        if self._state not in ("open", "doubtful"):
            raise self._misuse("abort")
        self._end(committed=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction; commit at the end of the block, abort when it raises.

        If the abort fails, too, it is left to `fence`, or to the coordinator's time limit: the caller must
        see the original error.
        """
        self.begin()
        try:
            yield
        except BaseException:
            self._abort_quietly()
            raise
        self.commit()

    def _abort_quietly(self) -> None:
        try:
            if self._state in ("open", "doubtful"):
                self.abort()
        except BrokerError:
            self._state = "doubtful"

    def _end(self, *, committed: bool, timeout_ms: int | None = None) -> None:
        assert self._producer is not None
        stamp = self._producer
        if not self._added:  # the coordinator does not know of this transaction
            self._state = "ready"
            return
        self._state = "doubtful"

        def build() -> Any:
            return EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=stamp.producer_id,
                producer_epoch=stamp.epoch,
                committed=committed,
            )

        try:
            # A repeated request gets the same answer: the coordinator remembers how the transaction ended.
            response, broker = self._ask(build, _read_code, _END_VERSION, timeout_ms)
        except BrokerError as error:
            if not error.retriable or not committed:
                raise
            raise BrokerError(
                OUTCOME_UNKNOWN,
                f"It is unknown how the transaction of {self.transactional_id} ended. {error.what}",
                hint="Fence and read what is there before anything is written again.",
                facts={**error.facts, "transactional_id": self.transactional_id},
                retriable=True,
            ) from error
        if response.error_code:
            raise self._refused(response.error_code, "EndTxn", broker)
        self._added.clear()
        self._state = "ready"

    def close(self) -> None:
        """Abort an open transaction if a broker answers; else `fence` or the time limit aborts it."""
        self._abort_quietly()
        self._forget()
        self._state = "new"

    # --- one batch ------------------------------------------------------------------------------------

    def _count_partitions(self, topic: str, deadline: Deadline) -> int:
        """Return the number of partitions, asking again after `metadata.max.age.ms`."""
        count, until = self._partition_counts.get(topic, (0, 0.0))
        if time.monotonic() >= until:
            count = super()._count_partitions(topic, deadline)
            until = time.monotonic() + self._settings.metadata_max_age_ms / 1000
            self._partition_counts[topic] = (count, until)
        return count

    def _announce(self, partitions: Collection[TopicPartition]) -> None:
        """Name this transaction's new partitions to its coordinator, which has to end it there."""
        assert self._producer is not None
        stamp = self._producer
        new = [each for each in partitions if each not in self._added]
        if not new:
            return
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def build() -> Any:
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=stamp.producer_id,
                v3_and_below_producer_epoch=stamp.epoch,
                v3_and_below_topics=[
                    topic(name=name, partitions=[each.partition for each in some])
                    for name, some in by_topic(new)
                ],
            )

        # Set before the request: if its answer is lost, the coordinator may have a transaction to end.
        self._added.update(new)
        response, broker = self._ask(build, _first_code, _ADD_VERSION)
        code = _first_code(response)
        if code:
            names = ", ".join(sorted({each.topic for each in new}))
            raise self._refused(code, "AddPartitionsToTxn", broker, f"topic {names}")

    # --- asking the coordinator ------------------------------------------------------------------------

    def _ask(
        self,
        build: Callable[[], Any],
        read: Callable[[Any], int],
        version: int,
        timeout_ms: int | None = None,
    ) -> tuple[Any, str]:
        limit_ms = _MAX_BLOCK_MS if timeout_ms is None else timeout_ms
        deadline = Deadline.after_ms(limit_ms, "max.block.ms")
        what = f"the transaction of {self.transactional_id} before this one to end"
        attempts = Attempts(
            deadline,
            what,
            _FIRST_PAUSE_MS,
            least_pause_ms=_FIRST_PAUSE_MS,
            longest_pause_ms=_LONGEST_PAUSE_MS,
        )
        for _ in attempts:
            response, broker = self._routing.call_coordinator(
                self.transactional_id,
                build,
                deadline,
                lambda answer: 0 if read(answer) == _CONCURRENT_TRANSACTIONS else read(answer),
                transactional=True,
                max_version=version,
            )
            if read(response) != _CONCURRENT_TRANSACTIONS:
                return response, broker
        raise attempts.given_up()

    def _refused(self, code: int, request: str, broker: str, what: str | None = None) -> BrokerError:
        if code in _FENCING_CODES:
            return self._fenced(broker, request)
        return refusal(code, request, broker, what or f"transactional id {self.transactional_id}")

    def _fenced(self, broker: str, request: str) -> BrokerError:
        return BrokerError(
            FENCED,
            f"{broker} refused {request}: transactional id {self.transactional_id} has a later writer, or "
            f"this one's transaction took longer than {self._transaction_timeout_ms} ms.",
            hint="Let only one program at a time use the id; give several programs an id each.",
            facts={"broker": broker, "request": request, "transactional_id": self.transactional_id},
        )

    def _misuse(self, call: str) -> SinkError:
        now = {
            "new": "this writer has not fenced yet",
            "ready": "no transaction has begun",
            "open": "a transaction is open",
            "doubtful": "the transaction failed, and only `abort` or `fence` are left",
        }
        return SinkError(
            "TRANSACTION_MISUSED",
            f"`{call}` was called while {now[self._state]}.",
            hint="The order is fence, then begin, write and commit or abort, again and again.",
            facts={"state": self._state},
        )

    def _forget(self) -> None:
        super()._forget()
        self._added.clear()
        self._partition_counts.clear()


def _read_code(response: Any) -> int:
    return int(response.error_code)


def _first_code(response: Any) -> int:
    """Return the refused partition's code, or 0; the request's other partitions are then not attempted."""
    codes = [
        int(part.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
    return next((code for code in codes if code not in (0, _NOT_ATTEMPTED)), 0)
