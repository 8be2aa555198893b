"""Runs stream queries for tests: starts them, keeps what each batch held, and always stops them.

A `Flow` is one query with one checkpoint folder over its whole life: it is started, stopped and started again
with other options. The contents of its batches are kept in the order they ran, so a batch that was repeated
is there twice. Rows are complete: (topic, partition, offset, value).

    flow.start(topic, startingOffsets="earliest")
    assert flow.drain() == expect(topic, 0, ["a", "b"])
    flow.stop()
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from tests.support.waiting import wait_until

Rowish = tuple[str, int, int, str | None]


def expect(topic: str, partition: int, values: Iterable[str | None], *, start: int = 0) -> list[Rowish]:
    """Return the rows of one partition that holds these values from an offset on."""
    return [(topic, partition, start + index, value) for index, value in enumerate(values)]


@dataclass
class Batch:
    """The content of one run of one micro-batch."""

    number: int
    rows: list[Rowish]


@dataclass
class Flow:
    """One query over its whole life. `stream` makes the frame; `checkpoint` is its folder."""

    stream: Callable[..., DataFrame]
    checkpoint: Path
    batches: list[Batch] = field(default_factory=list)
    query: StreamingQuery | None = None
    _told: int = 0

    def start(
        self,
        topic: str | None,
        *,
        trigger: dict[str, Any] | None = None,
        prepare: Callable[[DataFrame], DataFrame] | None = None,
        before: Callable[[int], object] | None = None,
        during: Callable[[int], object] | None = None,
        collect: Callable[[DataFrame], list[Any]] | None = None,
        **options: object,
    ) -> Flow:
        """Start the query.

        `before` is called in each batch when it is planned but no row of it was read, `during` when its rows
        are kept but it is not done; both may raise. `collect` returns what to keep of a batch.
        """
        assert self.query is None, "stop it first"
        frame = self.stream(topic, **options)

        def keep(batch: DataFrame, number: int) -> None:
            if before is not None:
                before(number)
            self.batches.append(Batch(number, (collect or collect_rows)(batch)))
            if during is not None:
                during(number)

        writer = (prepare(frame) if prepare else frame).writeStream.foreachBatch(keep)
        writer.option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        return self

    def drain(self) -> list[Rowish]:
        """Wait until everything has been read; return the rows since the last call, in order."""
        assert self.query is not None
        self.query.processAllAvailable()
        return self.take()

    def finish(self, timeout_s: float = 60) -> list[Rowish]:
        """Wait until the query ends on its own and return its rows; raise its error, if it failed."""
        assert self.query is not None
        assert self.query.awaitTermination(int(timeout_s)), "the query does not end"
        self.query = None
        return self.take()

    def failure(self, timeout_s: float = 60) -> str:
        """Wait until the query fails; return the text of its error."""
        assert self.query is not None
        try:
            ended = self.query.awaitTermination(int(timeout_s))
        except StreamingQueryException as error:
            self.query = None
            return str(error)
        raise AssertionError("the query ended without an error" if ended else "the query does not fail")

    def take(self) -> list[Rowish]:
        """Return the rows of the batches since the last call, in order."""
        new, self._told = self.batches[self._told :], len(self.batches)
        return sorted(row for batch in new for row in batch.rows)

    def stop(self) -> None:
        query, self.query = self.query, None
        if query is not None:
            query.stop()

    def run(self, topic: str | None, **options: Any) -> list[Rowish]:
        """Start the query, read everything, stop it and return the rows."""
        self.start(topic, **options)
        rows = self.drain()
        self.stop()
        return rows

    # --- what it left behind ---------------------------------------------------------------------------

    @property
    def progress(self) -> list[dict[str, Any]]:
        """Return the reports of the batches that ran, oldest first."""
        assert self.query is not None
        return [json.loads(each.json) for each in self.query.recentProgress]

    def wait_for_batch(self, number: int) -> None:
        """Wait until this batch is committed."""
        wait_until((self.checkpoint / "commits" / str(number)).exists, f"batch {number} is done")

    def stored(self, number: int, source: int = 0) -> str:
        """Return the position that a batch ends at, as its file in the checkpoint has it."""
        return self.offset_file(number).read_text().splitlines()[2 + source]

    def offset_file(self, number: int) -> Path:
        return self.checkpoint / "offsets" / str(number)

    def replace_stored(self, number: int, text: str) -> None:
        """Store another position there, and delete the checksum that would reveal it."""
        lines = self.offset_file(number).read_text().splitlines()
        self.rewrite(number, "\n".join([*lines[:2], text, *lines[3:]]))

    def rewrite(self, number: int, text: str) -> None:
        path = self.offset_file(number)
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        path.write_text(text)


def collect_rows(frame: DataFrame) -> list[Rowish]:
    rows = frame.select("topic", "partition", "offset", "value").collect()
    return sorted(
        (row.topic, row.partition, row.offset, None if row.value is None else bytes(row.value).decode())
        for row in rows
    )


# --- changes to topics, made with another client than the one under test ---------------------------------


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Raise the number of partitions and wait until all have leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(timeout=30)
    wait_until(lambda: _count_led(admin, topic) == count, f"{topic} has {count} partitions")


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(timeout=30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, f"{topic} is gone")


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create a topic of a given name: one that a pattern matches, or one that existed before."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=30)
    wait_until(lambda: _count_led(admin, topic) == partitions, f"{topic} is there")


def _count_led(admin: Any, topic: str) -> int:
    found = admin.list_topics(topic=topic, timeout=10).topics[topic].partitions.values()
    return sum(each.leader >= 0 for each in found)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
