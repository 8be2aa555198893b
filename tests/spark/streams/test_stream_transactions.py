"""Streams over transactions, and what a row of a stream holds."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import window

from tests.spark.conftest import Load
from tests.spark.streaming import Flow, now_ms
from tests.support.kafka.topic_filling import await_markers, open_transaction, produce, send


def write(bootstrap: str, topic: str, values: list[str | None], *, commit: bool) -> None:
    """Write one whole transaction: its rows, then a marker, which has its own offset."""
    producer = open_transaction(bootstrap)
    send(producer, topic, values)
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    await_markers(bootstrap, topic)


def test_committed_only_streams_wait_for_open_transactions_and_skip_what_is_invisible(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B041, B043, B046, B062: batches begin, end or lie entirely on markers and aborted rows.

    A gap is not a loss, although loss checking is on.
    """
    name = topic()
    first = open_transaction(kafka.bootstrap)
    send(first, name, ["a", None])
    assert first.flush(30) == 0
    options = {"startingOffsets": "earliest", "kafka__isolation__level": "read_committed"}
    flow.start(name, maxOffsetsPerTrigger=3, **options)
    assert flow.drain() == []
    produce(kafka.bootstrap, name, ["behind"])
    assert flow.drain() == []  # an open transaction also blocks what comes after it
    first.commit_transaction(30)  # a 0, null 1, behind 2, marker 3
    write(kafka.bootstrap, name, ["no", "no"], commit=False)  # 4, 5, marker 6
    write(kafka.bootstrap, name, ["d"], commit=True)  # 7, marker 8
    rows = flow.drain()
    assert rows == [(name, 0, 0, "a"), (name, 0, 1, None), (name, 0, 2, "behind"), (name, 0, 7, "d")]
    assert [batch.rows for batch in flow.batches if batch.rows][-1] == [(name, 0, 7, "d")]
    write(kafka.bootstrap, name, ["no"], commit=False)  # 9, marker 10: nothing to see at all
    assert flow.drain() == []
    ends = [json.loads(flow.stored(batch.number))["offsets"][name]["0"] for batch in flow.batches]
    assert ends[-1] == 11
    produce(kafka.bootstrap, name, ["e"])
    assert flow.drain() == [(name, 0, 11, "e")]


def test_uncommitted_streams_return_every_row_and_no_marker(flow: Flow, kafka: Any, topic: Any) -> None:
    """B042, B043: open, committed and aborted rows; batches that end on a marker and next to one."""
    name = topic()
    write(kafka.bootstrap, name, ["a", "b"], commit=True)  # marker 2
    write(kafka.bootstrap, name, ["c"], commit=False)  # 3, marker 4
    opened = open_transaction(kafka.bootstrap)
    send(opened, name, ["open"])  # 5
    assert opened.flush(30) == 0
    flow.start(name, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    flow.drain()
    assert [batch.rows for batch in flow.batches] == [
        [(name, 0, 0, "a"), (name, 0, 1, "b")],
        [(name, 0, 3, "c")],
        [(name, 0, 5, "open")],
    ]
    opened.abort_transaction(30)
    await_markers(kafka.bootstrap, name)
    assert flow.drain() == []


def test_a_row_of_a_stream_has_kafkas_columns_with_nulls_and_headers(
    flow: Flow, stream: Load, kafka: Any, topic: Any
) -> None:
    """B046, B047: names, types and order of the columns, with every kind of content."""
    name, base = topic(), now_ms() - 60_000
    headers = [("k", b"1"), ("k", b"2"), ("empty", None)]
    produce(kafka.bootstrap, name, ["v", None], key=b"key", timestamp_ms=base, headers=headers)
    produce(kafka.bootstrap, name, ["v", None], timestamp_ms=base + 1)
    assert stream(name).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int>"
    )

    def whole(frame: DataFrame) -> list[Any]:
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        return [
            (
                row.offset,
                row.key and bytes(row.key),
                row.value and bytes(row.value),
                row.topic,
                row.partition,
                round(row.timestamp.timestamp() * 1000),
                row.timestampType,
                row.headers and [(each.key, each.value and bytes(each.value)) for each in row.headers],
            )
            for row in rows
        ]

    flow.run(name, startingOffsets="earliest", includeHeaders="true", collect=whole)
    (batch,) = flow.batches
    assert batch.rows == [
        (0, b"key", b"v", name, 0, base, 0, headers),
        (1, b"key", None, name, 0, base, 0, headers),
        (2, None, b"v", name, 0, base + 1, 0, None),
        (3, None, None, name, 0, base + 1, 0, None),
    ]


def test_the_timestamp_is_event_time_for_watermarks_and_windows(flow: Flow, kafka: Any, topic: Any) -> None:
    """B048: windows that the watermark has passed are output once, with their content."""
    name = topic()
    base = (now_ms() - 3_600_000) // 10_000 * 10_000
    for after_s in (0, 9, 10, 25):
        produce(kafka.bootstrap, name, ["v"], timestamp_ms=base + 1000 * after_s)

    def count(frame: DataFrame) -> DataFrame:
        late = frame.withWatermark("timestamp", "1 second")
        return late.groupBy(window("timestamp", "10 seconds")).count()

    def whole(frame: DataFrame) -> list[Any]:
        return [(round(row.window.start.timestamp() * 1000) - base, row["count"]) for row in frame.collect()]

    flow.start(name, startingOffsets="earliest", prepare=count, collect=whole)
    assert flow.drain() == [(0, 2), (10_000, 1)]
    produce(kafka.bootstrap, name, ["v"], timestamp_ms=base + 9000)  # too late for its window
    produce(kafka.bootstrap, name, ["v"], timestamp_ms=base + 60_000)
    assert flow.drain() == [(20_000, 1)]
