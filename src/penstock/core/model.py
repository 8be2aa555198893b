"""The nouns: partitions, positions, ranges, work orders, and the two protocols that open the house.

Rules kept here, said once: a range is half-open `[start, until)`; an offset is always the next one to
read; there are no sentinel numbers, a position is a type. A work order is complete: whoever reads it
needs nothing else, so it can be pickled to any worker.

Why not Kafka's -1 and -2: the day somebody subtracts two offsets, a sentinel becomes a silent loss.

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
#: All that a read may ask for. `timestampMs` is the record's time as Kafka has it: any number that a producer
#: wrote, where `timestamp` takes only those that Spark has a time for.
OFFERED: Mapping[str, str] = {**COLUMNS, "timestampMs": "bigint"}


@dataclass(frozen=True, order=True, slots=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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
    """So many offsets before the end, never before the log's start."""

    records: int


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record whose timestamp is at or after this long before the moment of planning."""

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
    """One range to read. `topic_id` (16 bytes) lets the broker itself refuse a recreated topic.

    `from_earliest`: the range is a piece of one that was asked from `earliest`, so what has aged out before
    its task begins was never promised and is no loss. `leader_epoch`: under which the range's end was seen;
    a record in it of a later epoch is another one than was meant, for the log was cut off in between.
    """

    topic: str
    partition: int
    start: Bound
    until: Bound
    topic_id: bytes | None = None
    from_earliest: bool = False
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything one task needs: which ranges, in which order, from where, as which columns."""

    ranges: tuple[RangeOrder, ...]
    client: ClientSettings
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    use_pool: bool = True


# --- the view of a log and its reader -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as the brokers describe it. `partitions` are those that exist, in rising order.

    `leader_epochs` counts, for each of them, how often its leader has changed; empty where nobody tells.
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
    """What lies at a position: when it was written, and how big records are about there, as stored."""

    timestamp_ms: int
    bytes_per_record: float


@runtime_checkable
class LogView(Protocol):
    """What planning may ask of a log. No call moves any position; every call ends by its deadline."""

    def topics(self) -> Mapping[str, TopicView]:
        """All topics, internal ones included and flagged."""

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        """The named topics that exist; a missing one is left out, not an error."""

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The log start offset of each."""

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The end of each at the view's isolation level: the offset the next visible record gets."""

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset whose record is at or after the time; None where there is none."""

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """What the group has committed; None where nothing is."""

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Where the records of this leader epoch, and of all before it, end in today's log.

        A position above that end was read from a log that has since been cut off and written anew. A log
        without epochs, or one that cannot tell for a partition, leaves it out.
        """

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        """A look at the records from each position on, for estimates. What is not there is left out."""

    def close(self) -> None:
        """Give connections back. A closed view must not be used."""


@runtime_checkable
class Reader(Protocol):
    """Turns a work order into Arrow batches with exactly `order.columns`, in offset order per range.

    Never ends early without an error, never returns an offset outside its range, never the same twice.
    """

    def read(self, order: WorkOrder) -> Iterator[pa.RecordBatch]: ...


class Log(Protocol):
    """A queue as a whole: what Spark needs of it to read it. Picklable, for it travels to the workers.

    Implement this, `LogView` and `Reader`, and any queue becomes a source; Kafka is one of them.
    """

    def open_view(self) -> LogView:
        """A fresh look at the log, on the driver."""

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        """A reader, in a worker. `repeated`: the task failed before, meet nothing of that attempt again.

        `report` is called for each loss that `fail_on_data_loss=False` steps over.
        """
