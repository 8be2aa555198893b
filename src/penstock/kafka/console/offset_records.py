"""Reads `__consumer_offsets`: the records in which a cluster stores what its groups have committed.

Rules: a record of an unknown version is shown as unknown, never guessed at; a record without a value is
a deletion. Kafka compacts the topic whenever it likes: it also holds older commits of the same partition,
and only the last one counts. To learn a group's position, ask its coordinator (`committed_offsets.py`); this
module is for people who want to see what happened.

>>> read_offset_record(b"\\x00\\x01\\x00\\x01g\\x00\\x01t\\x00\\x00\\x00\\x00", None)
OffsetRecord(group='g', kind='offset', topic='t', partition=0, offset=None, metadata='', commit_time_ms=None)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.wire_cursor import WireCursor

TOPIC = "__consumer_offsets"
_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_OFFSET_KEYS = (0, 1)
#: The subjects of the other keys; all begin with the group's name.
_OTHER_KEYS = {
    2: "group",
    3: "consumer group",
    4: "consumer group partitions",
    5: "member",
    6: "target assignment",
    7: "target assignment of a member",
    8: "current assignment",
}
OFFSET, UNKNOWN = "offset", "unknown"


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """One record. Without an `offset` it is a deletion, or not about an offset at all (`kind`)."""

    group: str
    kind: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    metadata: str = ""
    commit_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and its place in the topic."""

    log_partition: int
    log_offset: int
    timestamp_ms: int
    record: OffsetRecord


def partition_of_group(group: str, partitions: int) -> int:
    """Return the partition of a group's records: Java's hash of its name, as the brokers compute it."""
    number = 0
    units = group.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFF_FFFF
    signed = number - (1 << 32) if number & 0x8000_0000 else number
    return (0 if number == 0x8000_0000 else abs(signed)) % partitions


def read_offset_record(key: bytes | None, value: bytes | None) -> OffsetRecord:
    """Return the decoded record; if it is unknown or damaged, its kind is `unknown`."""
    try:
        cursor = WireCursor(key or b"")
        version = cursor.integer(2)
        if version not in _OFFSET_KEYS:
            kind = _OTHER_KEYS.get(version)
            return OffsetRecord(cursor.text() if kind else "", kind or UNKNOWN)
        group, topic, partition = cursor.text(), cursor.text(), cursor.integer(4)
        if value is None:
            return OffsetRecord(group, OFFSET, topic, partition)
        offset, metadata, time_ms = _read_value(WireCursor(value))
    except ValueError:
        return OffsetRecord("", UNKNOWN)
    return OffsetRecord(group, OFFSET, topic, partition, offset, metadata, time_ms)


def _read_value(cursor: WireCursor) -> tuple[int, str, int]:
    version = cursor.integer(2)
    if not 0 <= version <= 4:
        raise ValueError(f"version {version} of a committed offset is not known")
    offset = cursor.integer(8)
    if version >= 3:
        cursor.skip(4)  # the leader epoch
    cursor.flexible = version >= 4
    return offset, cursor.text(), cursor.integer(8)


def read_offset_topic(settings: ClientSettings, *, group: str | None = None) -> Iterator[StoredRecord]:
    """Yield everything now in the topic, by partition; for one group, only from that group's partition."""
    view = KafkaLogView(settings)
    topics = view.describe([TOPIC])
    if TOPIC not in topics:
        return  # no group has ever committed here
    numbers = topics[TOPIC].partitions
    if group is not None:
        numbers = (partition_of_group(group, len(numbers)),)
    wanted = [TopicPartition(TOPIC, number) for number in numbers]
    starts, ends = view.earliest(wanted), view.latest(wanted)
    ranges = tuple(
        RangeOrder(TOPIC, each.partition, At(starts[each]), At(ends[each]), from_earliest=True)
        for each in wanted
        if starts[each] < ends[each]
    )
    for batch in KafkaReader().read(WorkOrder(ranges, settings, _COLUMNS)):
        columns = batch.to_pydict()
        times = batch.column("timestamp").cast("int64").to_pylist()
        for key, value, partition, offset, time_us in zip(
            *(columns[name] for name in _COLUMNS[:4]), times, strict=True
        ):
            record = read_offset_record(key, value)
            if group in (None, record.group):
                yield StoredRecord(partition, offset, time_us // 1000, record)
