"""Following partitions without a group: from a position on, what is there, and then what comes.

Rules: a start is resolved once, for all partitions, and must lie in the log: a console that is asked for
offset 5 of a log that begins at 10 says so, it does not show something else. Each look reads to the ends of
that moment and then remembers them, so nothing is shown twice. Why not a consumer that waits in a fetch:
this reads through the same reader as everything here, with its checks, and a look five times a second costs
one small request.

    follower = Follower(settings, topics, find_starts(view, partitions, Earliest(), now_ms=0))
    for batch in follower.read_new():
        ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.bounds import Snapshot, bind, time_of
from penstock.core.client import ClientSettings
from penstock.core.errors import OptionError
from penstock.core.model import (
    At,
    Bound,
    Earliest,
    LogView,
    Position,
    RangeOrder,
    TopicPartition,
    TopicView,
    WorkOrder,
)
from penstock.kafka.control import KafkaLogView
from penstock.kafka.reader import KafkaReader

Headers = tuple[tuple[str, bytes | None], ...]
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """One record as a person reads it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def find_starts(
    view: LogView, partitions: Collection[TopicPartition], position: Position, *, now_ms: int
) -> dict[TopicPartition, int]:
    """Where each partition begins; a time after all records is the end."""
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


class Follower:
    """Positions that move as records are read. One per thread."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Mapping[str, TopicView],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        self._settings, self._topics = settings, topics
        self._view = KafkaLogView(settings)
        self._positions = dict(starts)

    def read_new(self) -> Iterator[pa.RecordBatch]:
        """All that has come since the last look; a caller who has enough may stop in between."""
        ends = self._view.latest(self._positions)
        grown = {each: end for each, end in sorted(ends.items()) if end > self._positions[each]}
        ranges = tuple(
            RangeOrder(
                each.topic,
                each.partition,
                At(self._positions[each]),
                At(end),
                topic_id=self._topics[each.topic].topic_id,
            )
            for each, end in grown.items()
        )
        yield from KafkaReader().read(WorkOrder(ranges, self._settings, _COLUMNS))
        self._positions.update(grown)


def list_records(batch: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The rows one by one, for printing."""
    times_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in _COLUMNS if name != "timestamp"]
    for time_us, (topic, partition, offset, key, value, headers) in zip(
        times_us, zip(*columns, strict=True), strict=True
    ):
        pairs = tuple((each["key"], each["value"]) for each in headers or ())
        yield ConsumedRecord(topic, partition, offset, time_us // 1000, key, value, pairs)
