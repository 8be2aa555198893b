"""A small message queue in one SQLite file, and how it becomes a Spark source.

`Queue` is the queue: topics with partitions, records with offsets, retention. `QueueLog` opens it for
Penstock, `QueueView` shows what is there, `QueueReader` reads ranges, and `QueueSource` is what Spark sees:

    spark.dataSource.register(QueueSource)
    spark.readStream.format("own-queue").option("path", "queue.db").option("subscribe", "lines").load()
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.model import At, Bound, Earliest, Peek, RangeOrder, TopicPartition, TopicView, WorkOrder
from penstock.queues import QueueDataSource, make_schema

_TABLES = """
CREATE TABLE IF NOT EXISTS partitions (topic TEXT, id BLOB, partition INT, first INT, next INT,
    PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS records (id BLOB, partition INT, offset INT, key BLOB, value BLOB, time_ms INT,
    PRIMARY KEY (id, partition, offset));
CREATE TABLE IF NOT EXISTS commits (consumer TEXT, topic TEXT, partition INT, offset INT,
    PRIMARY KEY (consumer, topic, partition));
"""
_ROWS_AT_ONCE = 4096
_POLL_S = 0.02


# --- the queue --------------------------------------------------------------------------------------------


class Queue:
    """A queue in a file. Any number of processes may use it at once."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        with self.connect() as database:
            database.executescript(_TABLES)

    def connect(self) -> closing[sqlite3.Connection]:  # type: ignore[type-arg]
        return closing(sqlite3.connect(self.path, timeout=30, isolation_level=None))

    def create(self, topic: str, partitions: int = 1) -> None:
        topic_id = uuid.uuid4().bytes
        with self.connect() as database:
            database.executemany(
                "INSERT INTO partitions VALUES (?, ?, ?, 0, 0)",
                [(topic, topic_id, number) for number in range(partitions)],
            )

    def delete(self, topic: str) -> None:
        with self.connect() as database:
            database.execute("DELETE FROM partitions WHERE topic = ?", [topic])

    def append(
        self, topic: str, value: bytes | None, key: bytes | None = None, partition: int = 0, time_ms: int = -1
    ) -> int:
        """Add a record and return its offset."""
        when = time.time_ns() // 1_000_000 if time_ms < 0 else time_ms
        with self.connect() as database:
            database.execute("BEGIN IMMEDIATE")
            topic_id, offset = database.execute(
                "UPDATE partitions SET next = next + 1 WHERE topic = ? AND partition = ?"
                " RETURNING id, next - 1",
                [topic, partition],
            ).fetchone()
            database.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
                [topic_id, partition, offset, key, value, when],
            )
            database.execute("COMMIT")
        return int(offset)

    def forget_before(self, topic: str, partition: int, offset: int) -> None:
        """Forget the records before this offset, as retention does."""
        with self.connect() as database:
            database.execute(
                "UPDATE partitions SET first = max(first, min(?, next)) WHERE topic = ? AND partition = ?",
                [offset, topic, partition],
            )

    def commit(self, consumer: str, topic: str, partition: int, offset: int) -> None:
        with self.connect() as database:
            database.execute(
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)", [consumer, topic, partition, offset]
            )


# --- the queue as Penstock sees it ------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueLog:
    """The queue, to be opened wherever Spark needs it: a path travels, a connection would not."""

    path: str

    def open_view(self) -> QueueView:
        return QueueView(Queue(self.path))

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> QueueReader:
        return QueueReader(Queue(self.path), report)


class QueueView:
    """A view of what is there. A queue without elections or groups shows that by leaving things out."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def topics(self) -> Mapping[str, TopicView]:
        found: dict[str, tuple[bytes, list[int]]] = {}
        with self._queue.connect() as database:
            for name, topic_id, partition in database.execute(
                "SELECT topic, id, partition FROM partitions ORDER BY topic, partition"
            ):
                found.setdefault(name, (topic_id, []))[1].append(partition)
        return {name: TopicView(name, tuple(numbers), key) for name, (key, numbers) in found.items()}

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        return {name: view for name, view in self.topics().items() if name in names}

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {each: self.bounds(each)[0] for each in partitions}

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {each: self.bounds(each)[1] for each in partitions}

    def bounds(self, each: TopicPartition) -> tuple[int, int]:
        with self._queue.connect() as database:
            found = database.execute(
                "SELECT first, next FROM partitions WHERE topic = ? AND partition = ?",
                [each.topic, each.partition],
            ).fetchone()
        if found is None:
            raise BrokerError("UNKNOWN_TOPIC_OR_PARTITION", f"There is no partition {each}.")
        return int(found[0]), int(found[1])

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        with self._queue.connect() as database:
            for each, time_ms in times_ms.items():
                found[each] = database.execute(
                    "SELECT min(offset) FROM records JOIN partitions USING (id, partition)"
                    " WHERE topic = ? AND partition = ? AND offset >= first AND time_ms >= ?",
                    [each.topic, each.partition, time_ms],
                ).fetchone()[0]
        return found

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        with self._queue.connect() as database:
            rows = database.execute(
                "SELECT topic, partition, offset FROM commits WHERE consumer = ?", [group]
            ).fetchall()
        known = {TopicPartition(topic, partition): int(offset) for topic, partition, offset in rows}
        return {each: known.get(each) for each in partitions}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return {}  # nobody leads, so nobody can be replaced

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        found: dict[TopicPartition, Peek] = {}
        with self._queue.connect() as database:
            for each, position in positions.items():
                row = database.execute(
                    "SELECT time_ms, length(coalesce(key, '')) + length(coalesce(value, '')) FROM records"
                    " JOIN partitions USING (id, partition)"
                    " WHERE topic = ? AND partition = ? AND offset >= max(?, first) ORDER BY offset LIMIT 1",
                    [each.topic, each.partition, position],
                ).fetchone()
                if row is not None:
                    found[each] = Peek(int(row[0]), float(row[1]))
        return found

    def close(self) -> None:
        """Do nothing: no connection is held."""


class QueueReader:
    """A reader of ranges as Arrow batches. It never ends early without an error or repeats an offset."""

    def __init__(self, queue: Queue, report: Callable[[DataLossError], None] | None = None) -> None:
        self._queue = queue
        self._view = QueueView(queue)
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
        each = TopicPartition(wanted.topic, wanted.partition)
        if isinstance(wanted.start, At) and wanted.start == wanted.until:
            return
        topic_id = self._find_topic(wanted, each)
        position, until = self._bind(wanted.start, each), self._bind(wanted.until, each)
        first = self._view.bounds(each)[0]
        if wanted.from_earliest:
            position = max(position, first)
        if position > until:
            if wanted.from_earliest or isinstance(wanted.start, Earliest):
                return
            raise DataLossError(
                "START_AFTER_END",
                f"{each}: starts at {position}, after its end {until}.",
                facts={"topic": each.topic, "partition": each.partition},
            )
        if position < first:
            self._step_over(order, self._lost(each, position, min(first, until)))
            position = min(first, until)
        deadline = time.monotonic() + order.poll_timeout_ms / 1000
        while position < until:
            end = min(until, self._view.bounds(each)[1], position + _ROWS_AT_ONCE)
            if end <= position:
                if position > self._view.bounds(each)[1] or time.monotonic() > deadline:
                    raise self._lost(each, position, until)
                time.sleep(_POLL_S)  # the record that was promised is on its way
                continue
            batch = self._fetch(each, topic_id, position, end, order.columns)
            if batch.num_rows:
                yield batch
            position = end

    def _find_topic(self, wanted: RangeOrder, each: TopicPartition) -> bytes | None:
        facts = {"topic": each.topic, "partition": each.partition}
        found = self._view.topics().get(each.topic)
        if found is None or each.partition not in found.partitions:
            raise DataLossError("PARTITION_GONE", f"{each}: the topic was deleted.", facts=facts)
        if wanted.topic_id is not None and wanted.topic_id != found.topic_id:
            raise DataLossError("TOPIC_RECREATED", f"{each}: another topic has this name now.", facts=facts)
        return found.topic_id

    def _bind(self, bound: Bound, each: TopicPartition) -> int:
        if isinstance(bound, At):
            return bound.offset
        return self._view.bounds(each)[0 if isinstance(bound, Earliest) else 1]

    def _lost(self, each: TopicPartition, position: int, until: int) -> DataLossError:
        first, end = self._view.bounds(each)
        return DataLossError(
            "OFFSET_OUT_OF_RANGE",
            f"{each}: offsets [{position}, {until}) are not there; the queue holds [{first}, {end}).",
            facts={
                "topic": each.topic,
                "partition": each.partition,
                "offset": position,
                "until": until,
                "earliest": first,
                "latest": end,
            },
        )

    def _fetch(
        self, each: TopicPartition, topic_id: bytes | None, start: int, until: int, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        with self._queue.connect() as database:
            rows = database.execute(
                "SELECT key, value, offset, time_ms FROM records WHERE id = ? AND partition = ?"
                " AND offset >= ? AND offset < ? ORDER BY offset",
                [topic_id, each.partition, start, until],
            ).fetchall()
        keys, values, offsets, times = zip(*rows, strict=True) if rows else ((), (), (), ())
        made = {
            "key": keys,
            "value": values,
            "topic": [each.topic] * len(rows),
            "partition": [each.partition] * len(rows),
            "offset": offsets,
            "timestamp": [time_ms * 1000 for time_ms in times],
            "timestampType": [0] * len(rows),
            "headers": [None] * len(rows),
        }
        schema = make_schema(columns)
        return pa.RecordBatch.from_arrays([pa.array(made[f.name], f.type) for f in schema], schema=schema)


# --- what Spark sees --------------------------------------------------------------------------------------


class QueueSource(QueueDataSource):
    """The format `own-queue`; its own option is `path`."""

    @classmethod
    def name(cls) -> str:
        return "own-queue"

    def open_log(self) -> QueueLog:
        return QueueLog(self.own_options["path"])
