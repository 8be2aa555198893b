"""Follows partitions: from a position, reads what is there, and then what arrives.

Rules: start positions are resolved once, for all partitions, and must lie in the log: asked for offset 5 of a
log that begins at 10, a console says so instead of showing something else. Each look reads up to the
current ends and remembers them, so nothing is shown twice. A position moves when its record is handed
over, never before, so a commit never covers a record that was not taken. A log that was truncated,
deleted or recreated is an error that names the partition: a position in it now means other records.

Why not a consumer that waits in a fetch: this uses the same reader as everything here, with its checks and
its decoder, and five looks a second cost one small request each.

    follower = follow(settings, find_starts(view, partitions, Earliest(), now_ms=0))
    records = follower.take(1_000)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError, OptionError, PenstockError
from penstock.core.model import (
    At,
    Bound,
    Earliest,
    LogView,
    Position,
    RangeOrder,
    Reader,
    TopicPartition,
    WorkOrder,
)
from penstock.core.planning.range_bounds import Snapshot, bind, time_of
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader

RecordHeaders = tuple[tuple[str, bytes | None], ...]
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_ADVICE = "Begin again in the log that is there now: at `earliest`, `latest`, or at a time."
#: The maximum age of topic metadata when a look compares it: a recreated topic is noticed this late.
_RECALL_MS = 2_000


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """One record, in a form that a person can read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


def find_starts(
    view: LogView, partitions: Collection[TopicPartition], position: Position, *, now_ms: int
) -> dict[TopicPartition, int]:
    """Return the start offset of each partition; a time after all records gives the end."""
    earliest = view.earliest(partitions)
    time_ms = time_of(position, now_ms)
    at_time: dict[tuple[TopicPartition, int], int | None] = {}
    if time_ms is not None:
        found = view.at_time(dict.fromkeys(partitions, time_ms))
        at_time = {(each, time_ms): offset for each, offset in found.items()}
    latest = view.latest(partitions)
    snapshot = Snapshot({}, earliest, latest, at_time, now_ms=now_ms)
    starts = {}
    for each in partitions:
        start = _number(bind(position, each, snapshot, unmatched="latest"), earliest[each], latest[each])
        if not earliest[each] <= start <= latest[each]:
            raise OptionError(
                "OFFSET_OUTSIDE_LOG",
                f"{each} holds the offsets {earliest[each]} to {latest[each]} (excluded), not {start}.",
                hint="Name one of these, `earliest`, `latest`, or a time.",
                facts={"partition": str(each), "offset": start},
            )
        starts[each] = start
    return starts


def _number(bound: Bound, earliest: int, latest: int) -> int:
    if isinstance(bound, At):
        return bound.offset
    return earliest if isinstance(bound, Earliest) else latest


class TopicTail:
    """Follows partitions; its positions move as records are taken. For one thread.

    An offset that is no longer in the log raises a `DataLossError` with `topic` and `partition` among its
    facts. A caller that can go on sets a new position with `place`.
    """

    def __init__(
        self,
        view: LogView,
        reader: Reader,
        settings: ClientSettings,
        starts: Mapping[TopicPartition, int],
    ) -> None:
        self._view, self._reader, self._settings = view, reader, settings
        self._positions: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}  # leader epochs; no record so far has a newer one
        self._topic_ids: dict[TopicPartition, bytes | None] = {}
        self._open: Iterator[ConsumedRecord] | None = None
        self.place(starts)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the next offset of each partition; all before it was taken or holds no record."""
        return self._positions

    @property
    def epochs(self) -> Mapping[TopicPartition, int]:
        """Return the leader epoch of each partition at its last look, where the log has epochs."""
        return self._epochs

    def place(
        self, starts: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Go on at these offsets. `epochs` are the leader epochs they were reached under, if known."""
        self._open = None
        topics = self._view.describe({each.topic for each in starts})
        for each, start in starts.items():
            self._positions[each] = start
            topic = topics.get(each.topic)
            self._topic_ids[each] = None if topic is None else topic.topic_id
            epoch = None if topic is None else topic.leader_epoch(each.partition)
            epoch = (epochs or {}).get(each, epoch)
            self._epochs.pop(each, None)
            if epoch is not None:
                self._epochs[each] = epoch

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop following these partitions."""
        self._open = None
        for each in partitions:
            for kept in (self._positions, self._epochs, self._topic_ids):
                kept.pop(each, None)

    def take(self, most: int) -> list[ConsumedRecord]:
        """Return records that arrived since the last call, at most `most`, partition by partition."""
        taken: list[ConsumedRecord] = []
        if self._open is None:
            self._open = self._read()
        try:
            taken.extend(islice(self._open, most))
        except PenstockError:
            self._open = None
            if not taken:
                raise  # otherwise the next look meets the error again, if it lasts
        if len(taken) < most:
            self._open = None  # it has ended
        return taken

    def _read(self) -> Iterator[ConsumedRecord]:
        ends = self._look()
        ranges = tuple(
            RangeOrder(
                each.topic,
                each.partition,
                At(self._positions[each]),
                At(end),
                topic_id=self._topic_ids[each],
                leader_epoch=self._epochs.get(each),
            )
            for each, end in sorted(ends.items())
        )
        try:
            for batch in self._reader.read(WorkOrder(ranges, self._settings, _COLUMNS)):
                for record in list_records(batch):
                    self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                    yield record
        except DataLossError as loss:  # the reader's hint is about stream options
            raise DataLossError(loss.condition, loss.what, hint=_ADVICE, facts=loss.facts) from loss
        self._positions.update(ends)  # markers may follow the last record

    def _look(self) -> dict[TopicPartition, int]:
        """Return the ends that have grown, after checking that the log is still the one read so far."""
        ends = dict(self._view.latest(self._positions))
        # Asked after the ends, so whatever lies before an end is at most as new as this epoch.
        topics = self._view.describe({each.topic for each in ends})
        now = {
            each: epoch
            for each in ends
            if each.topic in topics and (epoch := topics[each.topic].leader_epoch(each.partition)) is not None
        }
        for each in ends:
            seen = topics[each.topic].topic_id if each.topic in topics else None
            if None not in (seen, self._topic_ids[each]) and seen != self._topic_ids[each]:
                raise self._lost(
                    "TOPIC_RECREATED", each, "the topic was deleted and created again while it was followed."
                )
        moved = {each: old for each, old in self._epochs.items() if now.get(each, old) > old}
        for each, end in self._view.epoch_ends(moved).items() if moved else ():
            if end < self._positions[each]:
                raise self._lost(
                    "LOG_TRUNCATED",
                    each,
                    f"a leader election cut the log back to {end}; records up to {self._positions[each]} "
                    "were read before that and are no longer in it.",
                    log_end=end,
                )
        self._epochs.update(now)
        # An end may lie before a position: an open transaction holds back readers of committed records.
        return {each: end for each, end in ends.items() if end > self._positions[each]}

    def _lost(self, condition: str, partition: TopicPartition, what: str, **facts: object) -> DataLossError:
        where = {"topic": partition.topic, "partition": partition.partition}
        return DataLossError(
            condition,
            f"{partition}: {what}",
            hint=_ADVICE,
            facts={**where, "offset": self._positions[partition], **facts},
        )


def follow(settings: ClientSettings, starts: Mapping[TopicPartition, int]) -> TopicTail:
    """Return a follower of partitions in a Kafka cluster."""
    view = KafkaLogView(settings, recall_ms=_RECALL_MS)
    return TopicTail(view, KafkaReader(), settings, starts)


def list_records(batch: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """Yield the rows one by one, for printing."""
    times_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in _COLUMNS if name != "timestamp"]
    for time_us, (topic, partition, offset, key, value, headers) in zip(
        times_us, zip(*columns, strict=True), strict=True
    ):
        pairs = tuple((each["key"], each["value"]) for each in headers or ())
        yield ConsumedRecord(topic, partition, offset, time_us // 1000, key, value, pairs)
