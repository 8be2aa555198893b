"""The reading side of the data plane: a work order goes in, Arrow batches come out.

Rules: a range is finished when the position after the last whole batch has reached its end, not
after some number of rows; a short answer is waited for and then an error, never an early end; nothing
resets itself: a position the log no longer holds is a `DataLossError`, or, with loss checking off, a logged
step forward inside the range, never back.

Why the next request is sent before this answer's rows are decoded: the broker reads its disk and
fills the socket while the kernels work. The last rows of a range share an Arrow batch with the first ones of
the next: hundreds of partitions with a few rows each would otherwise be hundreds of Arrow batches, and each
has a cost in Spark.

    for batch in KafkaReader().read(order):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.loggers import get_logger
from penstock.core.model import At, Bound, Earliest, Latest, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.partition_fetcher import Fetched, PartitionFetcher, ReceiveBuffer
from penstock.kafka.reading.small_ranges import FirstAnswers, ask_at_once
from penstock.kafka.records.record_decoder import RecordDecoder
from penstock.kafka.records.record_warmup import ensure_compiled
from penstock.kafka.transport.connection_pool import POOL
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import LEAST_PAUSE_MS

log = get_logger(__name__)


class KafkaReader:
    """Reads ranges one after the other over pooled connections; small ones share fetches. One per thread.

    `fresh` is for a repeated task, which must not reuse the connection that failed before. `report` is
    called with each loss that is stepped over because the order allows it.
    """

    def __init__(self, *, fresh: bool = False, report: Callable[[DataLossError], None] | None = None) -> None:
        self.fetches = 0
        self.fresh = fresh
        self._report = report
        self.buffer = ReceiveBuffer()

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]:
        ranges = [
            each for each in order.ranges if not (isinstance(each.start, At) and each.start == each.until)
        ]
        if not ranges:
            return
        first = ranges[0]
        decoder = RecordDecoder(
            first.topic,
            first.partition,
            order.columns,
            check_crcs=order.client.check_crcs,
        )
        try:
            answers = ask_at_once(order, ranges) if order.use_pool and not self.fresh else FirstAnswers()
            self.fetches += answers.questions
            for wanted in ranges:
                yield from _RangeRead(self, order, wanted, decoder, answers).batches()
            yield from decoder.rest()
        finally:
            if not order.use_pool:
                POOL.close()  # questions about leaders and bounds still used it

    def step_over(self, loss: DataLossError, goes_on: str = "Going on without these offsets") -> None:
        """Log what is lost and how reading goes on, and report it."""
        log.warning("[%s] %s %s (failOnDataLoss=false).", loss.condition, loss.what, goes_on)
        if self._report is not None:
            self._report(loss)


class _RangeRead:
    """One range: its ends, the position reached, and how to handle offsets that are gone."""

    def __init__(
        self,
        reader: KafkaReader,
        order: WorkOrder,
        wanted: RangeOrder,
        decoder: RecordDecoder,
        answers: FirstAnswers,
    ) -> None:
        self._reader, self._order, self._wanted = reader, order, wanted
        self._decoder, self._answers = decoder, answers
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._fetcher = PartitionFetcher(order, wanted, reader.buffer, fresh=reader.fresh)
        self._patience: Deadline | None = None
        self._position: int | None = None  # the end of what was read so far

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read(*self._find_ends())
        except DataLossError as error:
            if self._order.fail_on_data_loss:
                raise
            self._reader.step_over(error)
        except BrokerError as error:
            if error.condition != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            if self._order.fail_on_data_loss:
                raise self._gone() from error
            self._reader.step_over(self._gone())
        finally:
            self._reader.fetches += self._fetcher.questions
            self._fetcher.release()

    def _read(self, position: int, until: int) -> Iterator[pa.RecordBatch]:
        if position >= until:
            return
        ensure_compiled()
        wanted, fetcher, decoder = self._wanted, self._fetcher, self._decoder
        decoder.aim(wanted.topic, wanted.partition)
        committed_only = self._order.client.isolation_level == "read_committed"
        while position < until:
            self._position = position
            fetched = self._answers.take(wanted, position) or self._fetch(position, until)
            if fetched is None:
                position = self._step_over(position, until)
                continue
            decoder.open(fetched.records)
            following = decoder.next_offset
            if following is None or following <= position:
                fetcher.widen(position, fetched.records.size)
                continue
            if decoder.leader_epoch is not None:
                fetcher.last_epoch = decoder.leader_epoch
            aborted = fetched.aborted if committed_only else None
            other = None if wanted.leader_epoch is None else decoder.first_after_epoch(wanted.leader_epoch)
            if other is not None and other < until:
                yield from decoder.rows(position, other, aborted)
                raise self._rewritten(max(position, other), until)
            if following < until:
                fetcher.ask(following)
            yield from decoder.rows(position, until, aborted)
            position, self._patience = following, None
            if position < until:
                yield from decoder.rest()  # rows that are here must not wait while others are fetched
            if position >= until and isinstance(wanted.until, Latest) and fetched.held_from is not None:
                hold = fetcher.explain_hold(fetched.held_from)
                log.warning("%s: read to %d; %s.", self._partition, until, hold)

    # --- ends -----------------------------------------------------------------------------------------

    def _find_ends(self) -> tuple[int, int]:
        """Return where to begin and end. Late ends are looked up now: a reused frame sees new rows."""
        wanted = self._wanted
        if isinstance(wanted.start, At) and isinstance(wanted.until, At) and not wanted.from_earliest:
            position, until = wanted.start.offset, wanted.until.offset
        else:
            with closing(KafkaLogView(self._order.client)) as view:
                position, until = self._look_up(view, wanted.start), self._look_up(view, wanted.until)
                if wanted.from_earliest:
                    position = max(position, self._look_up(view, Earliest()))
            if position >= until:
                # No fetch will carry the topic's id, so the broker cannot notice a recreated topic.
                self._fetcher.raise_if_recreated(position)
        if position > until:
            if wanted.from_earliest or isinstance(wanted.start, Earliest):
                return until, until  # all of it has aged out, and `earliest` promised none of it
            raise DataLossError(
                "START_AFTER_END",
                f"{self._partition}: the range starts at {position}, after its end {until}.",
                hint="Records were deleted after planning, or the topic was recreated; read again.",
                facts={**self._fetcher.facts(position), "until": until},
            )
        return position, until

    def _look_up(self, view: KafkaLogView, bound: Bound) -> int:
        if isinstance(bound, At):
            return bound.offset
        ask = view.earliest if isinstance(bound, Earliest) else view.latest
        return ask([self._partition])[self._partition]

    # --- what is not there ----------------------------------------------------------------------------

    def _fetch(self, position: int, until: int) -> Fetched | None:
        try:
            return self._fetcher.fetch(position, until)
        except DataLossError as error:
            if self._order.fail_on_data_loss or error.condition != "LOG_TRUNCATED":
                raise
            # What was read before the cut is gone from the log; everything from here on is still unread.
            self._reader.step_over(error, f"What stands from {position} on now is read")
            self._fetcher.last_epoch = -1
            self._fetcher.release()
            return self._fetcher.fetch(position, until)

    def _gone(self) -> DataLossError:
        """Return the error for a topic unknown to the whole cluster after several looks: it was deleted."""
        return DataLossError(
            "PARTITION_GONE",
            f"{self._partition}: the topic was deleted while it was still to be read.",
            hint="Set failOnDataLoss=false to go on without it, or start over with the existing topics.",
            facts={
                "topic": self._partition.topic,
                "partition": self._partition.partition,
                **({} if self._position is None else {"offset": self._position}),
            },
        )

    def _rewritten(self, position: int, until: int) -> DataLossError:
        """Return the error for records that were written here after the range was planned."""
        return DataLossError(
            "LOG_TRUNCATED",
            f"{self._partition}: offsets [{position}, {until}) were cut off and rewritten after this read "
            "was planned.",
            hint="Set failOnDataLoss=false to go on: the next batch then reads what is there now.",
            facts={**self._fetcher.facts(position), "until": until},
        )

    def _step_over(self, position: int, until: int) -> int:
        """Raise with the exact lost range, or return where the records that are left begin."""
        self._fetcher.release()
        with closing(KafkaLogView(self._order.client)) as view:
            earliest, latest = self._look_up(view, Earliest()), self._look_up(view, Latest())
        if earliest <= position < latest:
            self._wait_for(position, earliest, latest)
            return position
        has_aged = position < earliest
        lost_until = min(until, earliest) if has_aged else until
        what = (
            f"{self._partition}: offsets {position} to {lost_until} (excluded) cannot be read; the log holds "
            f"{earliest} to {latest} (excluded)."
        )
        loss = DataLossError(
            "OFFSET_OUT_OF_RANGE",
            what,
            hint=("They aged out" if has_aged else "The log ends before them: it was cut off")
            + ", or the topic is another one. Set failOnDataLoss=false to read what is left.",
            facts={
                **self._fetcher.facts(position),
                "until": lost_until,
                "earliest": earliest,
                "latest": latest,
            },
        )
        if self._order.fail_on_data_loss:
            raise loss
        self._reader.step_over(loss)
        return lost_until

    def _wait_for(self, position: int, earliest: int, latest: int) -> None:
        """Wait, up to a limit, when one broker refuses what another says is there: it may be behind."""
        if self._patience is None:
            self._patience = self._fetcher.deadline()
        if self._patience.expired:
            raise BrokerError(
                "FETCH_TIMEOUT",
                f"{self._partition}: for {self._patience.limit_ms} ms ({self._patience.name}) the brokers "
                f"have refused to give offset {position}, but say that the log holds [{earliest}, {latest}).",
                hint="Check the partition's replicas and, with tiered storage, its remote segments.",
                facts={**self._fetcher.facts(position), "limit_ms": self._patience.limit_ms},
                retriable=True,
            )
        self._patience.pause(LEAST_PAUSE_MS)
