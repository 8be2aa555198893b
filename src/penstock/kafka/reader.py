"""A work order in, Arrow batches out: the reading side of the data plane.

Rules kept here: a range is finished when the position after the last whole batch has reached its end, not
when so many rows were seen; a short answer is waited for and then an error, never an early end; nothing
resets itself: a position the log no longer holds is a `DataLossError`, or, with loss checking off, a logged
step forward inside the range, never back.

Why the next question is sent before the rows of this answer are decoded: the broker reads its disk and
fills the socket while the kernels work.

    for batch in KafkaReader().read(order):
        ...
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from penstock.core.errors import DataLossError
from penstock.core.model import At, Bound, Earliest, Latest, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.control import KafkaLogView
from penstock.kafka.fetcher import PartitionFetcher, ReceiveBuffer
from penstock.kafka.pool import POOL
from penstock.kafka.records.decode import RecordDecoder
from penstock.kafka.records.warmup import ensure_compiled

log = logging.getLogger(__name__)


class KafkaReader:
    """Reads ranges one after the other over pooled connections. One per thread.

    `fresh` is for a repeated task: it must not meet the connection that failed before.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self.fetches = 0
        self._fresh = fresh
        self._buffer = ReceiveBuffer()

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]:
        try:
            for wanted in order.ranges:
                if not (isinstance(wanted.start, At) and wanted.start == wanted.until):
                    yield from self._read_range(order, wanted)
        finally:
            if not order.use_pool:
                POOL.close()  # questions about leaders and bounds went through it all the same

    def _read_range(self, order: WorkOrder, wanted: RangeOrder) -> Iterator[pa.RecordBatch]:
        position, until = bind(order, wanted, wanted.start), bind(order, wanted, wanted.until)
        if wanted.from_earliest:
            position = max(position, bind(order, wanted, Earliest()))
        if position > until:
            if wanted.from_earliest or isinstance(wanted.start, Earliest):
                return  # all of it has aged out, and `earliest` promised none of it
            raise DataLossError(
                "START_AFTER_END",
                f"{wanted.topic}-{wanted.partition}: the range starts at {position}, after its end {until}.",
                hint="Records were deleted after planning, or the topic was recreated; read again.",
                facts={
                    "topic": wanted.topic,
                    "partition": wanted.partition,
                    "offset": position,
                    "until": until,
                },
            )
        position, until = _narrow(order, wanted, position, until)
        ensure_compiled()
        fetcher = PartitionFetcher(order, wanted, self._buffer, fresh=self._fresh)
        decoder = RecordDecoder(
            wanted.topic,
            wanted.partition,
            order.columns,
            check_crcs=order.client.check_crcs,
            since_ms=order.narrowing.since_ms,
        )
        committed_only = order.client.isolation_level == "read_committed"
        try:
            while position < until:
                fetched = fetcher.fetch(position, until)
                if fetched is None:
                    fetcher.release()
                    position = _step_over(order, wanted, fetcher, position, until)
                    continue
                decoder.open(fetched.records)
                following = decoder.next_offset
                if following is None or following <= position:
                    fetcher.widen(position, fetched.records.size)
                    continue
                if decoder.leader_epoch is not None:
                    fetcher.last_epoch = decoder.leader_epoch
                if following < until:
                    fetcher.ask(following)
                yield from decoder.rows(position, until, fetched.aborted if committed_only else None)
                position = following
                if position >= until and isinstance(wanted.until, Latest) and fetched.held_from is not None:
                    hold = fetcher.explain_hold(fetched.held_from)
                    log.warning("%s: read to %d; %s.", fetcher.partition, until, hold)
        except DataLossError as error:
            if order.fail_on_data_loss or error.condition == "OFFSET_OUT_OF_RANGE":
                raise
            log.warning("%s Going on without the rest of the range (failOnDataLoss=false).", error)
        finally:
            self.fetches += fetcher.questions
            fetcher.release()


def bind(order: WorkOrder, wanted: RangeOrder, bound: Bound) -> int:
    """The offset of a bound. Late ends are looked up when the task starts: a reused frame sees new rows."""
    if isinstance(bound, At):
        return bound.offset
    partition = TopicPartition(wanted.topic, wanted.partition)
    view = KafkaLogView(order.client)
    try:
        ask = view.earliest if isinstance(bound, Earliest) else view.latest
        return ask([partition])[partition]
    finally:
        view.close()


def _narrow(order: WorkOrder, wanted: RangeOrder, position: int, until: int) -> tuple[int, int]:
    """Leave out what a pushed filter drops anyway: ends of the range, and all before the first young row."""
    narrowing = order.narrowing
    if narrowing.from_offset is not None:
        position = max(position, narrowing.from_offset)
    if narrowing.until_offset is not None:
        until = min(until, narrowing.until_offset)
    if narrowing.since_ms is not None and position < until:
        partition = TopicPartition(wanted.topic, wanted.partition)
        view = KafkaLogView(order.client)
        try:
            first = view.at_time({partition: narrowing.since_ms})[partition]
        finally:
            view.close()
        position = until if first is None else max(position, first)
    return position, until


def _step_over(
    order: WorkOrder, wanted: RangeOrder, fetcher: PartitionFetcher, position: int, until: int
) -> int:
    """`position` is not in the log: raise with the exact range, or return where what is left begins."""
    partition = TopicPartition(wanted.topic, wanted.partition)
    view = KafkaLogView(order.client)
    try:
        earliest, latest = view.earliest([partition])[partition], view.latest([partition])[partition]
    finally:
        view.close()
    if earliest <= position < latest:
        return position  # it is there now: a broker was behind for a moment
    lost_until = min(until, earliest) if position < earliest else until
    what = (
        f"{partition}: offsets {position} to {lost_until} (excluded) cannot be read; the log holds "
        f"{earliest} to {latest} (excluded)."
    )
    if order.fail_on_data_loss:
        raise DataLossError(
            "OFFSET_OUT_OF_RANGE",
            what,
            hint="They aged out, or the topic is another one. Set failOnDataLoss=false to read what is left.",
            facts={**fetcher.facts(position), "until": lost_until, "earliest": earliest, "latest": latest},
        )
    log.warning("[OFFSET_OUT_OF_RANGE] %s Going on without them (failOnDataLoss=false).", what)
    return lost_until
