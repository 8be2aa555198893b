"""The basic types: partitions, positions, ranges, work orders, and the protocols that a log implements.

Rules: a range is half-open `[start, until)`; an offset is always the next one to read; there are no sentinel
numbers, a position is a type. A work order is complete: its reader needs nothing else, so it can be pickled
to any worker.

Why not Kafka's -1 and -2: as soon as two offsets are subtracted, a sentinel becomes a silent loss.

>>> OffsetRange("t", 0, 5, 8).size
3
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.client.client_settings import ClientSettings
    from penstock.core.errors import DataLossError

#: Spark's names and types for a Kafka row, in Spark's order; `headers` only when asked for.
COLUMNS: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
#: All columns that a read may ask for. `timestampMs` is the record's time as Kafka has it: any number that a
#: producer wrote. `timestamp` takes only those that Spark can represent.
OFFERED: Mapping[str, str] = {**COLUMNS, "timestampMs": "bigint"}


@dataclass(frozen=True, order=True, slots=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_another(then: object, now: object) -> bool:
    """Return whether these ids, of a topic then and now, are of two topics; False if one is unknown."""
    return None not in (then, now) and then != now


# --- positions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """The log's start, wherever retention has moved it."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The log's end: the high watermark, or the last stable offset when reading committed only."""


@dataclass(frozen=True, slots=True)
class At:
    """Exactly this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record whose timestamp is at or after this time."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What a consumer group has committed."""


@dataclass(frozen=True, slots=True)
class RecordsBeforeEnd:
    """A number of offsets before the end, never before the log's start."""

    records: int


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record whose timestamp is at or after this length of time before planning."""

    duration_ms: int


Position: TypeAlias = Earliest | Latest | At | Since | Ago | Committed | RecordsBeforeEnd
#: What a task may receive: fixed, or bound when the task starts (as Spark binds its batch reads).
Bound: TypeAlias = Earliest | Latest | At


# --- ranges and work orders -----------------------------------------------------------------------


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets `[start, until)` of one partition, both known."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def size(self) -> int:
        return max(0, self.until - self.start)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class RangeOrder:
    """One range to read. `topic_id` (16 bytes) lets the broker refuse a recreated topic.

    `from_earliest` means that the range is a piece of one that was asked for from `earliest`, so records that
    age out before its task begins were never promised and are not a loss. `leader_epoch` is the epoch under
    which the range's end was seen. A record of a later epoch in the range is not the one meant: the log was
    cut off in between.
    """

    topic: str
    partition: int
    start: Bound
    until: Bound
    topic_id: bytes | None = None
    from_earliest: bool = False
    leader_epoch: int | None = None

    def holds(self, offset: int) -> bool:
        """Return whether the offset lies in the range, as far as its bounds are numbers."""
        is_before = isinstance(self.start, At) and offset < self.start.offset
        return not is_before and not (isinstance(self.until, At) and offset >= self.until.offset)


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything one task needs: the ranges, their order, where to read them, and the columns to return."""

    ranges: tuple[RangeOrder, ...]
    client: ClientSettings
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    use_pool: bool = True


# --- the view of a log and its reader -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as the brokers describe it. `partitions` are the existing ones, in rising order.

    `leader_epochs` counts how often the leader of each has changed; it is empty where the brokers do not say.
    """

    name: str
    partitions: tuple[int, ...]
    topic_id: bytes | None = None
    internal: bool = False
    leader_epochs: tuple[int, ...] = ()

    def leader_epoch(self, partition: int) -> int | None:
        place = bisect_left(self.partitions, partition)
        known = place < len(self.leader_epochs) and self.partitions[place] == partition
        return self.leader_epochs[place] if known else None


@dataclass(frozen=True, slots=True)
class Peek:
    """The record at a position: when it was written, and the approximate stored size of the records there."""

    timestamp_ms: int
    bytes_per_record: float


@runtime_checkable
class LogView(Protocol):
    """What planning may ask of a log. No call moves any position; every call ends by its deadline."""

    def topics(self) -> Mapping[str, TopicView]:
        """Return all topics, internal ones included and flagged."""

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        """Return the named topics that exist; a missing one is left out and is not an error."""

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log start offset of each partition."""

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each at the view's isolation level: the offset of the next visible record."""

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset whose record is at or after the time; None where there is none."""

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return what the group has committed; None where it has committed nothing."""

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return where the records of this leader epoch, and of all before it, end in today's log.

        A position above that end was read from a log that has since been cut off and written anew. A
        partition is left out if the log has no epochs or does not know the end.
        """

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        """Return a look at the records from each position on, for estimates, without the empty positions."""

    def close(self) -> None:
        """Release the connections. A closed view must not be used."""


@runtime_checkable
class Reader(Protocol):
    """A reader of work orders: it yields Arrow batches of `order.columns`, in offset order per range.

    Batches have exactly these columns. A reader never ends early without an error, and never returns an
    offset outside its range or twice.
    """

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]: ...


class Log(Protocol):
    """A queue, as far as Spark needs it for reading. Picklable: it travels to the workers.

    Implement this, `LogView` and `Reader`, and any queue becomes a source. Kafka is one.
    """

    def open_view(self) -> LogView:
        """Return a fresh view of the log, on the driver."""

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        """Return a reader, in a worker.

        `repeated` says that the task failed before: reuse nothing of that attempt. `report` is called for
        each loss that `fail_on_data_loss=False` steps over.
        """
