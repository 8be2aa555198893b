"""What a running stream reports: rows, backlog, and the offsets it commits for Kafka's own tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as At

from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.source.stream_reader import StreamReader
from penstock.listener import read_report
from tests.spark.conftest import MakeFlow
from tests.spark.streaming import Flow, expect
from tests.support.kafka.topic_filling import COORDINATOR_STARTS, commit_positions, produce
from tests.support.waiting import wait_until


def told(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the source's own part of a report."""
    (source,) = progress["sources"]
    latest: dict[str, Any] = source["latestOffset"]
    return latest


def fetch_committed(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """Return the group's commits by librdkafka: negative where there is none; [] while it cannot be asked."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = consumer.committed([At(topic, partition) for partition in range(partitions)], timeout=30)
    except KafkaException as error:
        if error.args[0].code() not in COORDINATOR_STARTS:
            raise
        return []
    finally:
        consumer.close()
    return [each.offset for each in found]


@contextmanager
def member_of(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """Make another client an active member of the group, so that no outsider may commit for it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    wait_until(is_assigned, "the member has its partitions", 60)
    yield
    consumer.close()


def test_a_program_that_watches_the_lag_lives_through_a_batch_that_is_repeated(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """Spark asks no source about a batch that it repeats after a restart, so the source report is missing."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b"])

    def refuse(_number: int) -> None:
        raise ValueError("the sink is down")

    flow.start(name, startingOffsets="earliest", during=refuse)
    assert "the sink is down" in flow.failure()
    flow.start(name, startingOffsets="earliest")
    assert flow.query is not None
    flow.drain()
    assert read_report(flow.query.recentProgress[0]) is None
    assert flow.query.recentProgress[0].sources[0].latestOffset == "null"
    produce(kafka.bootstrap, name, ["c"])
    flow.drain()
    report = read_report(flow.query.lastProgress)
    assert report is not None
    assert report["lag"]["records"] == 0
    assert report["offsets"] == {name: {"0": 3}}


def test_a_report_counts_the_rows_that_were_read_and_those_that_wait(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B080, B081, B082, B083, B301: under a cap, over two partitions; at the end no rows wait."""
    name = topic(2)
    produce(kafka.bootstrap, name, ["v" * 100] * 10)
    produce(kafka.bootstrap, name, ["w" * 100] * 5, partition=1)
    flow.start(name, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    flow.drain()
    reports = [each for each in flow.progress if each["numInputRows"]]
    assert [each["numInputRows"] for each in reports] == [len(batch.rows) for batch in flow.batches]
    assert sum(each["numInputRows"] for each in reports) == 15
    first, last = told(reports[0]), told(reports[-1])
    assert first["offsets"] == {name: {"0": 10, "1": 5}}
    lag = first["lag"]
    backlog = [lag[f"{which}OffsetsBehindLatest"] for which in ("min", "max", "avg")]
    assert (backlog, lag["records"]) == ([4, 7, 5.5], 11)
    assert {p: each["records"] for p, each in lag["partitions"][name].items()} == {"0": 7, "1": 4}
    assert 0 < lag["seconds"] < 600
    assert 11 * 100 < lag["bytesEstimate"] < 11 * 300
    assert (last["lag"]["maxOffsetsBehindLatest"], last["lag"]["records"]) == (0, 0)
    assert (last["lag"]["seconds"], last["lag"]["bytesEstimate"]) == (0, 0)
    assert last["losses"] == {"ranges": 0, "offsets": 0, "openEnds": 0}
    flow.stop()
    produce(kafka.bootstrap, name, ["x"])
    flow.start(name)
    flow.drain()
    (report,) = [each for each in flow.progress if each["numInputRows"]]
    assert told(report)["lag"]["maxOffsetsBehindLatest"] == 0


def test_a_report_before_the_first_look_says_nothing() -> None:
    """B084: and it asks no broker."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    assert StreamReader(parse_stream_options(options, unique="u")).reportLatestOffset() is None


def test_positions_are_committed_to_a_group_before_the_first_batch_and_after_each(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """Checked with another client; a query never continues from these commits."""
    name = topic(2)
    group = f"group-of-{name}"
    produce(kafka.bootstrap, name, ["a", "b"])

    def is_committed(*offsets: int) -> bool:
        return fetch_committed(kafka.bootstrap, group, name, 2) == list(offsets)

    def see_start(number: int) -> None:
        if number == 0:
            wait_until(lambda: is_committed(1, 0), "the start is committed while the first batch runs")

    start = f'{{"{name}":{{"0":1,"1":-2}}}}'
    flow.start(name, startingOffsets=start, commitOffsetsToGroup=group, before=see_start)
    assert flow.drain() == expect(name, 0, ["b"], start=1)
    wait_until(lambda: is_committed(2, 0), "the end of the first batch is committed")
    produce(kafka.bootstrap, name, ["x"], partition=1)
    flow.drain()
    wait_until(lambda: is_committed(2, 1), "the end of the second batch is committed")
    flow.stop()
    commit_positions(kafka.bootstrap, group, [At(name, 0, 0)])
    produce(kafka.bootstrap, name, ["c"])
    assert flow.run(name, commitOffsetsToGroup=group) == expect(name, 0, ["c"], start=2)


def test_a_commit_that_is_refused_is_counted_and_holds_nothing_up(flow: Flow, kafka: Any, topic: Any) -> None:
    """The group has a member; the query commits only to make its progress visible."""
    name = topic()
    group = f"group-of-{name}"
    produce(kafka.bootstrap, name, ["a"])
    with member_of(kafka.bootstrap, group, name):
        flow.start(name, startingOffsets="earliest", commitOffsetsToGroup=group)
        assert flow.drain() == expect(name, 0, ["a"])

        def is_counted() -> bool:
            produce(kafka.bootstrap, name, ["more"])
            flow.drain()
            return bool(told(flow.progress[-1])["groupCommits"]["failed"] > 0)

        wait_until(is_counted, "the refusal is counted")
        assert told(flow.progress[-1])["groupCommits"]["done"] == 0


def test_a_query_may_start_where_a_group_has_committed(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """T36, F19: a partition without a commit is an error, or what the fallback says."""
    name = topic(2)
    group = f"group-of-{name}"
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    produce(kafka.bootstrap, name, ["x"], partition=1)
    commit_positions(kafka.bootstrap, group, [At(name, 0, 2)])
    options = {"startingOffsets": "committed", "kafka__group__id": group}
    failed = flow.start(name, **options).failure()
    assert f"[NO_COMMITTED_OFFSET] The group has committed nothing for {name}-1." in failed
    rows = flow.run(name, startingOffsetsFallback="earliest", **options)
    assert rows == expect(name, 0, ["c"], start=2) + expect(name, 1, ["x"])
    assert make_flow().run(name, startingOffsetsFallback="latest", **options) == expect(
        name, 0, ["c"], start=2
    )
