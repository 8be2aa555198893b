"""Direct streams on a real Spark and a real broker: what frames hold."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from penstock.cluster.processes.python_launcher import make_launcher
from penstock.core.errors import BrokerError, DataLossError, OptionError
from penstock.core.outages import find_patience
from penstock.direct import (
    Assign,
    Batch,
    DirectStream,
    OffsetRange,
    Record,
    Subscribe,
    SubscribePattern,
    TopicPartition,
    read_ranges,
)
from penstock.engines.direct.order_frames import ArrowFunction
from penstock.sinks import SqlSink, Table, create_tables
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from tests.conftest import MakeTopic
from tests.support.kafka.topic_filling import await_markers, open_transaction, produce, send
from tests.support.waiting import wait_until

Row = tuple[str, int, int, str]


@pytest.fixture
def settings(kafka: Any) -> dict[str, object]:
    return {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}


def fill(kafka: Any, topic: str, *counts: int, tag: str = "v") -> list[Row]:
    """Write rows to each partition and return them as they will be read."""
    rows = []
    for partition, count in enumerate(counts):
        values = [f"{tag}{partition}-{index}" for index in range(count)]
        produce(kafka.bootstrap, topic, values, partition=partition)
        rows += [(topic, partition, index, value) for index, value in enumerate(values)]
    return rows


def collect(frame: Any) -> list[Row]:
    rows = frame.select("topic", "partition", "offset", sql.col("value").cast("string")).collect()
    return sorted(tuple(row) for row in rows)


def test_several_topics_one_with_a_given_start_and_each_task_holds_exactly_its_range(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B211, D1, D2, D17, D32, D53: a frame's partitions are the batch's ranges that are not empty."""
    first, second = topic(2), topic(1)
    rows = fill(kafka, first, 5, 3) + fill(kafka, second, 4)
    batches: list[tuple[tuple[OffsetRange, ...], list[Row], list[Row]]] = []

    def work(batch: Batch) -> None:
        tasks = batch.frame.select("topic", "partition", sql.spark_partition_id(), sql.col("offset"))
        found = tasks.groupBy("topic", "partition", "SPARK_PARTITION_ID()").agg(sql.count("offset")).collect()
        batches.append((batch.ranges, collect(batch.frame), [tuple(row) for row in found]))

    strategy = Subscribe(first, second, starting={(second, 0): 1})
    stream = DirectStream(spark, strategy, settings, interval=0)
    stream.for_each_batch(work).run(until_idle=True)
    ((ranges, found, tasks),) = batches
    assert found == sorted(row for row in rows if row[:3] != (second, 0, 0))
    assert set(ranges) == {
        OffsetRange(first, 0, 0, 5), OffsetRange(first, 1, 0, 3), OffsetRange(second, 0, 1, 4)
    }  # fmt: skip
    assert sorted(count for *_, count in tasks) == [3, 3, 5]
    assert len({task for _, _, task, _ in tasks}) == 3


def test_a_pattern_takes_whole_names_and_starts_of_some_partitions(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B212, B11: a name that merely contains the pattern is not matched."""
    mine, other = topic(1, name="pat"), topic(1, name="xpat")
    rows = fill(kafka, mine, 4)
    fill(kafka, other, 2)
    found: list[Row] = []
    strategy = SubscribePattern("pat-.*", starting={TopicPartition(mine, 0): 2})
    stream = DirectStream(spark, strategy, settings, interval=0)
    stream.for_each_batch(lambda batch: found.extend(collect(batch.frame))).run(until_idle=True)
    assert found == rows[2:]


def test_a_pattern_that_matches_nothing_yet_can_be_started_again(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B212: a stream without partitions has no position, which is not the same as a lost one."""
    store, found = MemoryOffsetStore(), list[Row]()

    def run() -> None:
        strategy = SubscribePattern("early-.*")
        stream = DirectStream(spark, strategy, settings, interval=0, name="s", offsets=store)
        stream.for_each_batch(lambda batch: found.extend(collect(batch.frame))).run(until_idle=True)

    run()
    assert store.load("s") is None
    rows = fill(kafka, topic(1, name="early"), 3)
    run()
    assert found == rows


@pytest.mark.parametrize("where", ["store", "sink"])
def test_a_first_topic_whose_first_batch_fails_is_read_from_its_beginning_after_a_restart(
    spark: SparkSession, kafka: Any, topic: MakeTopic, tmp_path: Path, where: str
) -> None:
    """F29: `latest` applies to what was there at the start, not to what the stream has found since."""
    prefix, store, found = f"first-{secrets.token_hex(4)}", MemoryOffsetStore(), list[Row]()
    rows: list[Row] = []
    sink = SqlSink(f"sqlite:///{tmp_path / 'results.db'}", Table("rows_read"))
    if where == "sink":
        create_tables(sink, {"rows_read": "value binary"})

    def work(batch: Batch) -> Any:
        if not batch.ranges:
            rows[:] = fill(kafka, topic(1, name=prefix), 3)
        elif len(streams) == 1:
            raise ValueError("the first batch fails")
        else:
            found.extend(collect(batch.frame))
        return batch.frame.select("value") if batch.ranges else {}

    streams: list[DirectStream] = []
    for kind in (ValueError, None):
        stream = DirectStream(
            spark,
            SubscribePattern(f"{prefix}.*"),
            {"bootstrap.servers": kafka.bootstrap},
            interval=0,
            name="s",
            offsets=store if where == "store" else None,
            batch_attempts=1,
            empty_batches=kind is not None,
        )
        streams.append(stream)
        stream.for_each_batch(work) if where == "store" else stream.write(sink, work)
        with pytest.raises(kind) if kind is not None else contextlib.nullcontext():
            stream.run(until_idle=kind is None)
    assert found == rows


def test_assigned_partitions_with_explicit_starts_need_no_reset_rule(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B214, D12: reset `none`, in any case."""
    name = topic(2)
    rows = fill(kafka, name, 3, 3)
    found: list[Row] = []
    strategy = Assign([(name, 1)], starting={(name, 1): 1})
    stream = DirectStream(spark, strategy, {**settings, "auto.offset.reset": "NONE"}, interval=0)
    stream.for_each_batch(lambda batch: found.extend(collect(batch.frame))).run(until_idle=True)
    assert found == rows[4:]


def test_a_batch_is_what_was_decided_though_records_come_and_the_frame_is_used_twice(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """D18, G11, B217: the batch counts once, and its content is the same each time."""
    name = topic(1)
    rows = fill(kafka, name, 3)
    uses: list[list[Row]] = []

    def work(batch: Batch) -> None:
        uses.append(collect(batch.frame))
        produce(kafka.bootstrap, name, ["late"])
        uses.append(collect(batch.frame))

    stream = DirectStream(spark, Subscribe(name), settings, interval=0)
    stream.for_each_batch(work).run(batches=1)
    assert uses == [rows, rows]
    assert stream.reports[0].offsets == 3
    assert stream.planned.offsets == {TopicPartition(name, 0): 3}


def test_columns_headers_and_typed_columns_are_the_options_of_the_source(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    name = topic(1)
    produce(
        kafka.bootstrap, name, ['{"a": 5}'], key=b"k", headers=[("h", b"1")], timestamp_ms=1_700_000_000_123
    )
    rows: list[dict[str, Any]] = []
    options = {
        "columns": "key,timestamp,headers,valueData",
        "valueFormat": "json",
        "valueSchema": "a bigint",
    }
    stream = DirectStream(spark, Subscribe(name), settings, interval=0, options=options)
    stream.for_each_batch(lambda batch: rows.extend(row.asDict(True) for row in batch.frame.collect()))
    stream.run(until_idle=True)
    assert rows[0]["key"] == b"k"
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}]
    assert rows[0]["valueData"] == {"a": 5}


def count_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for each key of a task, as a fused stage."""
    table = pa.Table.from_batches(list(batches))
    counts = pc.value_counts(pc.cast(table.column("key"), pa.string()))
    yield pa.RecordBatch.from_arrays([counts.field("values"), counts.field("counts")], ["item", "n"])


def test_a_fused_stage_runs_once_per_task_on_arrow_batches(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """Partial counts leave the worker that fetches, not records."""
    name = topic(2)
    for partition in (0, 1):
        for key, count in ((b"a", 3), (b"b", 2)):
            produce(kafka.bootstrap, name, ["v"] * count, partition=partition, key=key)
    partial: list[tuple[str, int]] = []
    stream = DirectStream(spark, Subscribe(name), settings, interval=0)
    stream.arrow(count_keys, "item string, n bigint")
    stream.for_each_batch(lambda batch: partial.extend((row.item, row.n) for row in batch.frame.collect()))
    stream.run(until_idle=True)
    assert sorted(partial) == [("a", 3), ("a", 3), ("b", 2), ("b", 2)]


def tell_patience(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what a task would report about how long its stream waits, as a fused stage."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"said": [str(find_patience())]})


def test_tasks_say_that_the_stream_waits_from_when_it_does(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """The stream does not wait for what tasks cannot reach in its first batch."""
    name = topic()
    fill(kafka, name, 2)
    said: list[str] = []
    stream = DirectStream(spark, Subscribe(name), settings, interval=0, options={"maxOffsetsPerTrigger": 1})
    stream.arrow(tell_patience, "said string")
    stream.for_each_batch(lambda batch: said.extend(row.said for row in batch.frame.collect()))
    stream.run(batches=2)
    assert said == ["None", "The stream waits up to 15 min in all (outageTimeout)."]


def test_a_function_per_record_makes_rows_for_small_jobs(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """D48, H16: an element of the stream is made from the message and its metadata."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["x", "y"], key=b"k")
    rows: list[Any] = []

    def handle(record: Record) -> tuple[str, int | None]:
        assert record.value is not None
        return record.value.decode().upper(), record.offset

    stream = DirectStream(spark, Subscribe(name), settings, interval=0)
    stream.map(handle, pa.schema([("text", pa.string()), ("at", pa.int64())]))
    stream.for_each_batch(lambda batch: rows.extend(tuple(row) for row in batch.frame.collect()))
    stream.run(until_idle=True)
    assert rows == [("X", 0), ("Y", 1)]


def test_a_range_read_is_exact_whatever_is_asked_of_it(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B231, B233, B234: count, emptiness and take agree, in any order; later records never appear."""
    name = topic(2)
    rows = fill(kafka, name, 6, 4)
    ranges = [OffsetRange(name, 1, 1, 3), OffsetRange(name, 0, 2, 5), OffsetRange(name, 0, 0, 0)]
    frame = read_ranges(spark, ranges, settings)
    produce(kafka.bootstrap, name, ["late"])
    assert collect(frame) == [rows[index] for index in (2, 3, 4, 7, 8)]
    assert frame.count() == 5
    assert not frame.isEmpty()
    assert len(frame.take(2)) == 2
    assert collect(read_ranges(spark, reversed(ranges), settings)) == collect(frame)
    one = read_ranges(spark, [OffsetRange(name, 0, 5, 6)], settings)
    assert collect(one) == [rows[5]]
    empty = read_ranges(spark, [OffsetRange(name, 0, 3, 3)], settings)
    assert empty.isEmpty()
    assert empty.columns == frame.columns


@pytest.mark.parametrize(
    ("start", "until", "kind", "condition"),
    [
        (0, 99, DataLossError, "RANGE_OUTSIDE_LOG"),
        (3, 1, OptionError, "RANGE_INVALID"),
    ],
)
def test_a_range_outside_its_log_fails_before_anything_runs(
    spark: SparkSession,
    kafka: Any,
    topic: MakeTopic,
    settings: dict[str, object],
    start: int,
    until: int,
    kind: type[Exception],
    condition: str,
) -> None:
    """B231, B232: an end beyond the log fails; T01 of ranges that run backwards."""
    name = topic(1)
    fill(kafka, name, 3)
    with pytest.raises(kind) as raised:
        read_ranges(spark, [OffsetRange(name, 0, start, until)], settings)
    assert raised.value.condition == condition  # type: ignore[attr-defined]
    with pytest.raises(BrokerError) as unknown:
        read_ranges(spark, [OffsetRange(name, 7, 0, 1)], settings)
    assert unknown.value.condition == "UNKNOWN_PARTITION"


def test_gaps_of_a_compacted_topic_are_read_unless_they_are_refused(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B232, B239, D42, D43, D45, I6: surviving records only, or an error that names the setting."""
    name = topic(
        1, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, delete_retention_ms=0
    )
    for number in range(4):
        produce(kafka.bootstrap, name, [f"v{number}"], key=b"same")

    def survivors() -> list[Row]:
        return collect(read_ranges(spark, [OffsetRange(name, 0, 0, 4)], settings))

    def is_compacted() -> bool:
        produce(kafka.bootstrap, name, ["push"], key=b"other")  # a new segment lets the old one be cleaned
        return len(survivors()) < 4

    wait_until(is_compacted, "old records of the key are gone", 60)
    assert [row[2] for row in survivors()][-1] == 3
    strict = read_ranges(
        spark, [OffsetRange(name, 0, 0, 4)], settings, options={"allowNonConsecutiveOffsets": False}
    )
    with pytest.raises(PySparkException, match=r"OFFSET_MISSING.*allowNonConsecutiveOffsets"):
        strict.collect()


def test_two_streams_of_their_own_groups_are_united_in_one_frame(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B224: the ranges of both streams stay readable."""
    one, two = topic(1), topic(1)
    rows = fill(kafka, one, 2) + fill(kafka, two, 3)
    batches: list[Batch] = []
    for name in (one, two):
        stream = DirectStream(spark, Subscribe(name), {**settings, "group.id": f"g-{name}"}, interval=0)
        stream.for_each_batch(batches.append).run(until_idle=True)
    assert collect(batches[0].frame.union(batches[1].frame)) == sorted(rows)
    assert [batch.ranges[0].until for batch in batches] == [2, 3]


def test_two_runs_of_one_name_go_on_and_without_a_store_each_starts_anew(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """C24: without a store each run starts at the given place."""
    name = topic(1)
    fill(kafka, name, 2)
    store = MemoryOffsetStore()
    counts: list[int] = []
    for offsets in (store, store, None, None):
        stream = DirectStream(spark, Subscribe(name), settings, interval=0, name="s", offsets=offsets)
        stream.for_each_batch(lambda batch: counts.append(batch.frame.count()))
        stream.run(until_idle=True)
    assert counts == [2, 2, 2]


def test_a_stream_in_a_thread_is_stopped_and_tells_why_it_failed(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    name = topic(1)
    fill(kafka, name, 2)
    seen: list[int] = []
    stream = DirectStream(spark, Subscribe(name), settings, interval="50ms")
    stream.for_each_batch(lambda batch: seen.append(batch.frame.count())).start()
    wait_until(lambda: seen == [2], "the first batch", 60)
    assert stream.await_termination(0.01) is None
    stream.stop()
    outcome = stream.await_termination(60)
    assert outcome is not None
    assert (outcome.reason, outcome.batches) == ("stop()", 1)
    assert not stream.is_active

    def fail(_batch: Batch) -> None:
        raise ZeroDivisionError("work")

    broken = DirectStream(spark, Subscribe(name), settings, interval=0, batch_attempts=1)
    broken.for_each_batch(fail).start()
    with pytest.raises(ZeroDivisionError):
        broken.await_termination(60)


@pytest.mark.parametrize(
    ("how", "condition"),
    [
        ({"delivery": "exactly-once"}, "OPTION_CONFLICT"),
        ({"delivery": "at-least-once"}, "OPTION_CONFLICT"),
        ({"commit": "manual"}, "OPTION_CONFLICT"),
        ({"delivery": "sometimes"}, "OPTION_INVALID"),
        ({"commit": "manuall"}, "OPTION_INVALID"),
        (
            {"delivery": "at-most-once", "commit": "manual", "offsets": MemoryOffsetStore(), "name": "s"},
            "OPTION_CONFLICT",
        ),
        ({"interval": "often"}, "OPTION_INVALID"),
        ({"offsets": MemoryOffsetStore()}, "NAME_MISSING"),
        ({"offsets": MemoryOffsetStore(), "name": " "}, "STREAM_NAME_INVALID"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    spark: SparkSession, how: dict[str, Any], condition: str
) -> None:
    """G1, C22: each mode needs the means for its promise; a store needs a name."""

    def run() -> None:
        stream = DirectStream(spark, Subscribe("t"), {"bootstrap.servers": "127.0.0.1:9"}, **how)
        stream.for_each_batch(lambda batch: None).run()

    with pytest.raises(OptionError) as raised:
        run()
    assert raised.value.condition == condition


def test_a_stream_runs_once_and_must_be_told_what_to_do(
    spark: SparkSession, kafka: Any, topic: MakeTopic
) -> None:
    stream = DirectStream(spark, Subscribe(topic(1)), {"bootstrap.servers": kafka.bootstrap}, interval=0)
    with pytest.raises(OptionError) as raised:
        stream.run()
    assert raised.value.condition == "NOTHING_TO_DO"
    with pytest.raises(OptionError) as raised:
        stream.for_each_batch(lambda batch: None)
    assert raised.value.condition == "ALREADY_STARTED"
    with pytest.raises(OptionError) as raised:
        stream.await_termination()
    assert raised.value.condition == "NOT_STARTED"


def test_a_consumer_of_the_same_group_stops_the_stream_with_a_clear_message(
    spark: SparkSession, kafka: Any, topic: MakeTopic, settings: dict[str, object]
) -> None:
    """B227, T37: two programs use one group."""
    name = topic(1)
    fill(kafka, name, 2)
    group = f"shared-{name}"
    other = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    other.subscribe([name])
    try:
        wait_until(lambda: other.poll(0.2) is not None, "the other one is a member", 60)
        stream = DirectStream(
            spark, Subscribe(name), {**settings, "group.id": group}, interval=0, offsets="kafka"
        )
        stream.for_each_batch(lambda batch: None)
        with pytest.raises(BrokerError) as raised:
            stream.run(until_idle=True)
        assert raised.value.condition == "GROUP_HAS_MEMBERS"
    finally:
        other.close()


@pytest.mark.parametrize("is_written", [False, True], ids=["collected", "written"])
def test_an_error_of_ours_from_a_task_says_whether_the_batch_is_tried_again(
    spark: SparkSession,
    kafka: Any,
    topic: MakeTopic,
    settings: dict[str, object],
    tmp_path: Path,
    is_written: bool,
) -> None:
    """Spark passes on only a traceback; a permanent error ends the stream, a temporary one the attempt."""
    name = topic(1)
    transaction = open_transaction(kafka.bootstrap)
    send(transaction, name, ["a"])
    transaction.commit_transaction(30)  # leaves a marker, which is not a record
    await_markers(kafka.bootstrap, name)

    def run(function: ArrowFunction, *, allow_gaps: bool) -> list[tuple[int, bool]]:
        stream = DirectStream(
            spark,
            Subscribe(name),
            settings,
            interval=0,
            name="s",
            options={"columns": "offset", "allowNonConsecutiveOffsets": allow_gaps},
        ).arrow(function, "offset bigint")
        if is_written:
            sink = SqlSink(str(tmp_path / "own.db"), Table("rows"))
            create_tables(sink, {"rows": "offset bigint"})
            stream.write(sink)
        else:
            stream.for_each_batch(lambda batch: batch.frame.collect())
        with contextlib.suppress(PySparkException):
            stream.run(until_idle=True)
        told = [*stream.failed_attempts, *stream.reports]
        assert [report.error is None for report in stream.reports] == [True] * len(stream.reports)
        return [(report.attempts, report.error is None) for report in told]

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / f"attempt-{len(list(tmp_path.glob('attempt-*')))}").touch()
        if len(list(tmp_path.glob("attempt-*"))) == 1:
            raise BrokerError("BROKER_TIMEOUT", "Silence.", hint="Wait.", retriable=True)
        yield from batches

    assert run(iter, allow_gaps=False) == [(1, False)]
    assert run(fail_once, allow_gaps=True) == [(1, False), (2, True)]


RETRY = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.direct import DirectStream, Subscribe

bootstrap, topic, folder, master = sys.argv[1:]
spark = (SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())

def fail_once(batches):
    import pyarrow as pa
    rows = list(batches)
    try:
        (Path(folder) / "failed").touch(exist_ok=False)
    except FileExistsError:
        yield from rows
        return
    yield rows[0].slice(0, 3)
    raise ValueError("after some rows")

found = []
stream = DirectStream(
    spark, Subscribe(topic), {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}, interval=0,
    options={"columns": "offset"})
stream.arrow(fail_once, "offset bigint")
stream.for_each_batch(lambda batch: found.append(sorted(row.offset for row in batch.frame.collect())))
stream.run(until_idle=True)
print("FOUND", [report.attempts for report in stream.reports], found)
"""


@pytest.mark.parametrize(("master", "attempts"), [("local[2]", 2), ("local[2,4]", 1)])
def test_with_and_without_retries_of_tasks_a_failure_doubles_nothing(
    kafka: Any, topic: MakeTopic, tmp_path: Path, master: str, attempts: int
) -> None:
    """G8, G9, I10, I11, C11: with one failure allowed, the batch is repeated; with four, only the task is."""
    name = topic(1)
    fill(kafka, name, 20)
    done = subprocess.run(
        [sys.executable, "-c", RETRY, kafka.bootstrap, name, str(tmp_path), master],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYSPARK_PYTHON": make_launcher()},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"FOUND [{attempts}] [{list(range(20))}]" in done.stdout
