"""A log in memory that follows Kafka's rules, for tests of planning and reading.

Rule: it passes the same contract suite as the real log, so that code which works here works there. It has
half-open ranges, offsets that are never assigned twice, holes (compaction, transaction markers, aborted
records), retention that moves the start, recreated topics with a new id, and elections that raise the leader
epoch and may lose the log's end. Why not a mock per test: a mock answers what its author believes, but the
contract suite shows that this log answers as a broker does.

>>> log = MemoryLog()
>>> log.create_topic("orders")
>>> log.append("orders", 0, value=b"one")
0
>>> log.view().latest([TopicPartition("orders", 0)])[TopicPartition("orders", 0)]
1
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.model import (
    At,
    Bound,
    Earliest,
    Peek,
    RangeOrder,
    TopicPartition,
    TopicView,
    WorkOrder,
)
from penstock.kafka.records.record_schema import ARROW_TYPES

_ROWS_PER_BATCH = 1024
_PEEKED_RECORDS = 256
_RECORD_OVERHEAD = 7  # bytes of framing a small record has in Kafka's format

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class _Record:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: Headers
    transaction: str | None


@dataclass(slots=True)
class _Partition:
    records: list[_Record] = field(default_factory=list)  # rising offsets, holes allowed
    start: int = 0
    end: int = 0
    open_since: dict[str, int] = field(default_factory=dict)  # first offset of each open transaction
    aborted: set[int] = field(default_factory=set)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # leader epoch, its first offset

    def begin_epoch(self) -> None:
        self.epochs.append((self.epochs[-1][0] + 1, self.end))

    def visible_end(self, committed_only: bool) -> int:
        return min([self.end, *self.open_since.values()]) if committed_only else self.end


@dataclass(slots=True)
class _Topic:
    topic_id: bytes
    internal: bool
    partitions: list[_Partition]


class MemoryLog:
    """Topics, partitions and consumer groups in this process. It is thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._topics: dict[str, _Topic] = {}
        self._committed: dict[tuple[str, TopicPartition], int] = {}

    # --- writing ------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, internal: bool = False) -> None:
        with self.changed:
            if name in self._topics:
                raise BrokerError("TOPIC_ALREADY_EXISTS", f"Topic {name} already exists.")
            self._topics[name] = _Topic(
                uuid.uuid4().bytes, internal, [_Partition() for _ in range(partitions)]
            )

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of partitions to `count`."""
        with self.changed:
            have = self._topics[name].partitions
            have.extend(_Partition() for _ in range(count - len(have)))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. If it is created again, it gets another id and offsets from 0."""
        with self.changed:
            del self._topics[name]
            self.changed.notify_all()

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None = None,
        value: bytes | None = None,
        timestamp_ms: int = 0,
        headers: Headers = (),
        *,
        timestamp_type: int = 0,
        transaction: str | None = None,
    ) -> int:
        """Add a record and return its offset. `commit` or `abort` settles one in a transaction."""
        with self.changed:
            log = self._topics[topic].partitions[partition]
            offset = log.end
            log.records.append(
                _Record(offset, key, value, timestamp_ms, timestamp_type, tuple(headers), transaction)
            )
            if transaction is not None:
                log.open_since.setdefault(transaction, offset)
            log.end += 1
            self.changed.notify_all()
            return offset

    def skip(self, topic: str, partition: int, offsets: int = 1) -> None:
        """Use up offsets without records, as transaction markers do."""
        with self.changed:
            self._topics[topic].partitions[partition].end += offsets
            self.changed.notify_all()

    def compact(self, topic: str, partition: int, removed: Collection[int]) -> None:
        """Remove these records, as compaction does. Their offsets stay used."""
        with self.changed:
            log = self._topics[topic].partitions[partition]
            log.records = [record for record in log.records if record.offset not in removed]

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        """Drop everything below `offset`, as retention does."""
        with self.changed:
            log = self._topics[topic].partitions[partition]
            log.start = max(log.start, min(offset, log.end))
            log.records = [record for record in log.records if record.offset >= log.start]

    def truncate_after(self, topic: str, partition: int, offset: int) -> None:
        """Drop everything from `offset` onwards, as an unclean election does. New records take its place."""
        with self.changed:
            log = self._topics[topic].partitions[partition]
            log.end = max(log.start, min(offset, log.end))
            log.records = [record for record in log.records if record.offset < log.end]
            log.open_since = {who: first for who, first in log.open_since.items() if first < log.end}
            log.aborted = {each for each in log.aborted if each < log.end}
            # Epochs stay even if they are empty now, but none may begin beyond the log's end.
            log.epochs = [(epoch, min(first, log.end)) for epoch, first in log.epochs]
            log.begin_epoch()
            self.changed.notify_all()

    def move_leader(self, topic: str, partition: int) -> None:
        """Elect another leader cleanly. Nothing is lost."""
        with self.changed:
            self._topics[topic].partitions[partition].begin_epoch()

    def commit(self, transaction: str) -> None:
        self._settle(transaction, keep=True)

    def abort(self, transaction: str) -> None:
        self._settle(transaction, keep=False)

    def _settle(self, transaction: str, *, keep: bool) -> None:
        with self.changed:
            for topic in self._topics.values():
                for log in topic.partitions:
                    first = log.open_since.pop(transaction, None)
                    if first is None:
                        continue
                    if not keep:
                        log.aborted.update(
                            record.offset
                            for record in log.records
                            if record.transaction == transaction and record.offset >= first
                        )
                    log.end += 1  # the marker takes an offset
            self.changed.notify_all()

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self.changed:
            self._committed.update({(group, partition): offset for partition, offset in offsets.items()})

    # --- views and readers --------------------------------------------------------------------------

    def view(self, isolation_level: str = "read_uncommitted") -> MemoryLogView:
        return MemoryLogView(self, isolation_level == "read_committed")

    def reader(self, report: Callable[[DataLossError], None] | None = None) -> MemoryReader:
        """Return a reader. `report` gets each loss that is stepped over because the order says so."""
        return MemoryReader(self, report)

    def find(self, wanted: TopicPartition) -> _Partition:
        if not self.holds(wanted):
            raise BrokerError("UNKNOWN_TOPIC_OR_PARTITION", f"There is no partition {wanted}.")
        return self._topics[wanted.topic].partitions[wanted.partition]

    def describe(self) -> dict[str, TopicView]:
        return {
            name: TopicView(
                name,
                tuple(range(len(topic.partitions))),
                topic.topic_id,
                topic.internal,
                tuple(log.epochs[-1][0] for log in topic.partitions),
            )
            for name, topic in sorted(self._topics.items())
        }

    def holds(self, wanted: TopicPartition) -> bool:
        topic = self._topics.get(wanted.topic)
        return topic is not None and wanted.partition < len(topic.partitions)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._committed.get((group, partition))


class MemoryLogView:
    """A `LogView` of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, committed_only: bool) -> None:
        self._log = log
        self._committed_only = committed_only

    def topics(self) -> Mapping[str, TopicView]:
        with self._log.changed:
            return self._log.describe()

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        return {name: view for name, view in self.topics().items() if name in set(names)}

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self._log.changed:
            return {wanted: self._log.find(wanted).start for wanted in partitions}

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self._log.changed:
            return {wanted: self._log.find(wanted).visible_end(self._committed_only) for wanted in partitions}

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        with self._log.changed:
            return {wanted: self._first_since(wanted, time_ms) for wanted, time_ms in times_ms.items()}

    def _first_since(self, wanted: TopicPartition, time_ms: int) -> int | None:
        log = self._log.find(wanted)
        end = log.visible_end(self._committed_only)
        # Times need not rise with offsets. The first record that is late enough counts, whatever follows it.
        late = (r.offset for r in log.records if r.timestamp_ms >= max(0, time_ms))
        first = next(late, None)
        return first if first is not None and first < end else None

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        with self._log.changed:
            return {wanted: self._log.committed(group, wanted) for wanted in partitions}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        with self._log.changed:
            return {
                wanted: next((first for later, first in log.epochs if later > epoch), log.end)
                for wanted, epoch in epochs.items()
                if self._log.holds(wanted) and epoch <= (log := self._log.find(wanted)).epochs[-1][0]
            }

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        with self._log.changed:
            looks = {wanted: self._look(wanted, position) for wanted, position in positions.items()}
        return {wanted: look for wanted, look in looks.items() if look is not None}

    def _look(self, wanted: TopicPartition, position: int) -> Peek | None:
        log = self._log.find(wanted) if self._log.holds(wanted) else _Partition()
        end = log.visible_end(self._committed_only)
        ahead = [record for record in log.records if position <= record.offset < end][:_PEEKED_RECORDS]
        if position < log.start or not ahead:
            return None
        stored = sum(_RECORD_OVERHEAD + len(each.key or b"") + len(each.value or b"") for each in ahead)
        return Peek(ahead[0].timestamp_ms, stored / (ahead[-1].offset + 1 - position))

    def close(self) -> None:
        """Do nothing: the view holds nothing."""


class MemoryReader:
    """A `Reader` of a `MemoryLog`. Of `order.client` it uses only the isolation level."""

    def __init__(self, log: MemoryLog, report: Callable[[DataLossError], None] | None = None) -> None:
        self._log = log
        self._report = report

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]:
        for wanted in order.ranges:
            try:
                yield from self._read_range(order, wanted)
            except DataLossError as loss:
                self._step_over(order, loss)

    def _step_over(self, order: WorkOrder, loss: DataLossError) -> None:
        if order.fail_on_data_loss:
            raise loss
        if self._report is not None:
            self._report(loss)

    def _read_range(self, order: WorkOrder, wanted: RangeOrder) -> Iterator[pa.RecordBatch]:
        committed_only = order.client.isolation_level == "read_committed"
        partition = TopicPartition(wanted.topic, wanted.partition)
        if isinstance(wanted.start, At) and wanted.start == wanted.until:
            return
        with self._log.changed:
            log = self._same_log(wanted, partition)
            position = _bind(wanted.start, log, committed_only)
            if wanted.from_earliest:
                position = max(position, log.start)
            until = _bind(wanted.until, log, committed_only)
            if position > until:
                if wanted.from_earliest or isinstance(wanted.start, Earliest):
                    return
                raise DataLossError(
                    "START_AFTER_END", f"{partition}: the range starts at {position}, after its end {until}."
                )
            if position < log.start or position > log.end:
                self._step_over(order, _out_of_range(partition, position, until, log))
                position = min(until, log.start) if position < log.start else until
        while position < until:
            with self._log.changed:
                if not self._grows(order, partition, position, log, committed_only):
                    self._step_over(order, _out_of_range(partition, position, until, log))
                    return
                seen = min(until, log.visible_end(committed_only))
                other = _first_of_later_epoch(wanted, log)
                if other is not None and other < seen:
                    seen = max(position, other)
                rows = [
                    record
                    for record in log.records
                    if position <= record.offset < seen
                    and not (committed_only and record.offset in log.aborted)
                ]
            for begin in range(0, len(rows), _ROWS_PER_BATCH):
                yield _batch(partition, rows[begin : begin + _ROWS_PER_BATCH], order.columns)
            if other is not None and seen < until and seen >= other:
                raise DataLossError(
                    "LOG_TRUNCATED",
                    f"{partition}: offsets [{seen}, {until}) were written anew after this read was planned.",
                    facts={**_facts(wanted), "offset": seen, "until": until},
                )
            position = seen

    def _same_log(self, wanted: RangeOrder, partition: TopicPartition) -> _Partition:
        found = self._log.describe().get(wanted.topic)
        facts = _facts(wanted)
        if found is None or wanted.partition not in found.partitions:
            raise DataLossError("PARTITION_GONE", f"{partition}: the topic was deleted.", facts=facts)
        if wanted.topic_id is not None and wanted.topic_id != found.topic_id:
            raise DataLossError(
                "TOPIC_RECREATED", f"{partition}: another topic has this name now.", facts=facts
            )
        return self._log.find(partition)

    def _grows(
        self,
        order: WorkOrder,
        partition: TopicPartition,
        position: int,
        log: _Partition,
        committed_only: bool,
    ) -> bool:
        """Wait for a record at `position`; return False if the log ends there and does not grow."""
        deadline = time.monotonic() + order.poll_timeout_ms / 1000
        while log.visible_end(committed_only) <= position:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                if log.end <= position:
                    return False
                raise BrokerError(
                    "FETCH_TIMEOUT",
                    f"{partition}: an open transaction held back offset {position} for "
                    f"{order.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs).",
                    facts={"topic": partition.topic, "partition": partition.partition, "offset": position},
                    retriable=True,
                )
            self._log.changed.wait(remaining)
        return True


def _facts(wanted: RangeOrder) -> dict[str, object]:
    return {"topic": wanted.topic, "partition": wanted.partition}


def _first_of_later_epoch(wanted: RangeOrder, log: _Partition) -> int | None:
    if wanted.leader_epoch is None:
        return None
    return next((first for epoch, first in log.epochs if epoch > wanted.leader_epoch), None)


def _bind(bound: Bound, log: _Partition, committed_only: bool) -> int:
    if isinstance(bound, At):
        return bound.offset
    return log.start if isinstance(bound, Earliest) else log.visible_end(committed_only)


def _out_of_range(partition: TopicPartition, position: int, until: int, log: _Partition) -> DataLossError:
    return DataLossError(
        "OFFSET_OUT_OF_RANGE",
        f"{partition}: offset {position} is not available; the log holds {log.start} to {log.end} "
        "(excluded).",
        hint="Set failOnDataLoss=false to read what is left.",
        facts={
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": position,
            "until": min(until, log.start) if position < log.start else until,
            "earliest": log.start,
            "latest": log.end,
        },
    )


def _batch(partition: TopicPartition, rows: list[_Record], columns: tuple[str, ...]) -> pa.RecordBatch:
    values: dict[str, list[Any]] = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [partition.topic] * len(rows),
        "partition": [partition.partition] * len(rows),
        "offset": [row.offset for row in rows],
        "timestamp": [row.timestamp_ms * 1000 for row in rows],
        "timestampMs": [row.timestamp_ms for row in rows],
        "timestampType": [row.timestamp_type for row in rows],
        # Spark's connector gives null, not an empty list, to a record without headers.
        "headers": [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows],
    }
    arrays = [pa.array(values[name], ARROW_TYPES[name]) for name in columns]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([(name, ARROW_TYPES[name]) for name in columns])
    )
