"""A running stream that is held inside a batch while its log is changed behind its back.

Why not stop it and start it again: a query that kept running is the harder case, and the one that users have.
Why not let it run: it might look at the moment when the old log is gone and the new one does not exist yet,
and that is another kind of loss.

    stream.await_rows(20)   # it has read them, and stays in that batch
    ...                     # the topic is deleted and recreated
    error = stream.let_go()
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.streaming import create_topic, delete_topic
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

Row = tuple[str, int, int, bytes]


class HeldStream:
    """One query that starts at the first offset and is held in each batch until `let_go`."""

    def __init__(
        self, session: SparkSession, source: str, bootstrap: str, topic: str, checkpoint: Path, *, fail: bool
    ) -> None:
        self.batches: dict[int, list[Row]] = {}
        self._free = threading.Event()  # from now on
        self._passes = threading.Semaphore(0)  # one permit per batch

        def keep(batch: DataFrame, number: int) -> None:
            rows = batch.select("topic", "partition", "offset", "value").collect()
            self.batches[number] = [(row.topic, row.partition, row.offset, bytes(row.value)) for row in rows]
            wait_until(lambda: self._free.is_set() or self._passes.acquire(blocking=False), "let go", 400)

        frame = (
            session.readStream.format(source)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", str(fail).lower())
            .load()
        )
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        self._query = writer.trigger(processingTime="0 seconds").start()

    @property
    def values(self) -> list[str]:
        return [row[3].decode() for number in sorted(self.batches) for row in self.batches[number]]

    def await_rows(self, count: int) -> None:
        wait_until(lambda: len(self.values) >= count, f"{count} rows are read", 120)

    def pass_batch(self) -> None:
        """Let the query end the batch it is held in; it is held in the next one again."""
        self._passes.release()

    def let_go(self) -> str:
        """Let the query read everything; return the text of its error, or an empty text."""
        self._free.set()
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as error:
            return str(error)
        return ""

    def stop(self) -> None:
        self._free.set()
        self._query.stop()


# --- what is done to the log meanwhile ------------------------------------------------------------------


def recreate_with_more_rows(bootstrap: str, topic: str, old: int, new: int) -> None:
    """Recreate the topic under its name, with an end above the position that was reached in the old one."""
    assert new > old
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic)
    produce(bootstrap, topic, [f"new-{number}" for number in range(new)])


class TornLog:
    """One partition on two of three brokers, whose follower will become the leader with records missing."""

    def __init__(self, cluster: Any, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def lose(self, lost: list[str], new: list[str], has_read: Callable[[], None]) -> None:
        """Write rows that only the leader has, wait until they are read, lose them, and write others."""
        state = self._state()
        leader = self._broker(state.leader)
        follower = next(self._broker(each) for each in state.replicas if each != state.leader)
        follower.stop()
        try:
            wait_until(lambda: self._state().isrs == [leader.node_id], "the leader is alone", 60)
            produce(self.cluster.bootstrap, self.topic, lost, acks=1, log_level=0)
            has_read()
            leader.kill()
        finally:
            follower.start()
        try:
            wait_until(lambda: self._state().leader == follower.node_id, "the follower leads", 90)
        finally:
            leader.start()
            self.cluster.wait_until_ready()
            wait_until(lambda: len(self._state().isrs) == 2, "both copies are in sync", 90)
        produce(self.cluster.bootstrap, self.topic, new, acks="all", log_level=0)

    def _state(self) -> Any:
        return self._admin.list_topics(self.topic, timeout=30).topics[self.topic].partitions[0]

    def _broker(self, node_id: int) -> Any:
        return next(each for each in self.cluster.brokers if each.node_id == node_id)
