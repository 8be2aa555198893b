"""A direct stream whose database is down, or whose brokers are frozen, for longer than one attempt lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.cluster import LocalKafka, LocalPostgres
from penstock.direct import Batch, DirectStream, MemoryOffsetStore, RunOutcome, Subscribe
from penstock.sinks import SqlSink, Table, create_tables
from tests.conftest import IMPATIENT
from tests.sql.databases import OwnDatabase
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

RECORDS = 20
SPAN = "90 s"


def await_words(caplog: pytest.LogCaptureFixture, words: str, then: Callable[[], None]) -> threading.Thread:
    """Start a thread that acts as soon as the stream has logged these words."""

    def watch() -> None:
        wait_until(lambda: any(words in each.getMessage() for each in caplog.records), f"it says {words}")
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.sql
def test_a_database_that_is_down_is_waited_for_longer_than_the_attempts_last(
    spark: SparkSession, kafka: Any, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one attempt per batch. The database stays down until the stream has said how long it waits."""
    name = topic(2)
    for partition in range(2):
        produce(kafka.bootstrap, name, [str(number) for number in range(RECORDS)], partition=partition)
    with LocalPostgres() as server:
        sink = SqlSink(server.url, Table("seen"), strategy="driver")
        create_tables(sink, {"seen": "part int, pos bigint"})
        starters: list[threading.Thread] = []

        def work(batch: Batch) -> DataFrame:
            if batch.id == 1 and not starters:
                server.kill()
                starters.append(
                    await_words(caplog, f"waits up to {SPAN} in all (outageTimeout), ", server.start)
                )
            return batch.frame.selectExpr("partition AS part", "offset AS pos")

        stream = DirectStream(
            spark,
            Subscribe(name),
            {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
            interval=0,
            name="visits",
            batch_attempts=1,
            options={"outageTimeout": "90s", "maxOffsetsPerTrigger": RECORDS},
        )
        try:
            stream.write(sink, work).run(until_idle=True)
        finally:
            for each in starters:
                each.join()
        found = sorted(OwnDatabase(server.url).run("SELECT part, pos FROM seen"))
    assert len(starters) == 1
    assert found == [(part, pos) for part in range(2) for pos in range(RECORDS)]
    told = [each.getMessage() for each in caplog.records if "outageTimeout" in each.getMessage()]
    assert all(each.startswith("visits: ") for each in told)
    assert any("[DATABASE_UNREACHABLE]" in each for each in told)
    assert "goes on" in caplog.text


def test_brokers_that_stand_still_are_waited_for_by_a_stream_that_has_nothing_to_do(
    spark: SparkSession, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A look at the log fails after as long as one request may take; that must not end the stream."""
    with LocalKafka(broker_settings=IMPATIENT) as cluster:
        (broker,) = cluster.brokers
        name = topic(on=cluster)
        produce(cluster.bootstrap, name, ["before"])
        seen: list[str] = []
        stream = DirectStream(
            spark,
            Subscribe(name),
            {
                "bootstrap.servers": cluster.bootstrap,
                "auto.offset.reset": "earliest",
                "default.api.timeout.ms": 2000,
                "request.timeout.ms": 1000,
            },
            interval=0,
            name="s",
            offsets=MemoryOffsetStore(),
            options={"outageTimeout": "90s"},
        )
        stream.for_each_batch(lambda batch: seen.extend(row.value.decode() for row in batch.frame.collect()))
        stream.start()
        try:
            wait_until(lambda: seen == ["before"], "the first batch is read")
            broker.pause()
            try:
                wait_until(lambda: f"waits up to {SPAN} in all" in caplog.text, "it says how long it waits")
            finally:
                broker.resume()
            produce(cluster.bootstrap, name, ["after"])
            wait_until(lambda: seen == ["before", "after"], "it goes on")
        finally:
            stream.stop()
            stream.await_termination(60)
    assert not stream.is_active


def test_a_stop_is_heard_while_brokers_stand_still(
    spark: SparkSession, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """This covers a stream that looks for records and one that looks for its start.

    One request to the brokers may take a minute, and is tried three times.
    """
    with LocalKafka(broker_settings=IMPATIENT) as cluster:
        (broker,) = cluster.brokers
        name = topic(on=cluster)
        seen: list[int] = []

        def start() -> DirectStream:
            stream = DirectStream(
                spark, Subscribe(name), {"bootstrap.servers": cluster.bootstrap}, interval=0
            )
            return stream.for_each_batch(lambda batch: seen.append(batch.frame.count())).start()

        def stop(stream: DirectStream) -> RunOutcome | None:
            wait_until(lambda: "No answer from" in caplog.text, "a question is under way")
            caplog.clear()
            stream.stop()
            return stream.await_termination(30)

        stream = start()
        try:
            wait_until(lambda: stream.planned.offsets != {}, "it has found its start")
            broker.pause()
            assert stop(stream) == RunOutcome("stop()", 0)
            assert stop(start()) == RunOutcome("stop()", 0)
        finally:
            stream.stop()
            broker.resume()
