"""What a batch read does when offsets it was asked for are gone or do not exist yet."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from tests.spark.conftest import Load
from tests.spark.rows import offsets, span
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import delete_before, produce
from tests.support.waiting import wait_until


def start_at(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}})


def test_rows_that_aged_out_fail_the_read_or_are_left_out_once(load: Load, kafka: Any, topic: Any) -> None:
    """B057, F24, F43, I20: deleted by retention below a given start; loss checking on and off."""
    name = topic(retention_ms=86_400_000)
    produce(kafka.bootstrap, name, [f"old-{n}" for n in range(10)], timestamp_ms=1_700_000_000_000)
    view = KafkaLogView(settings_of(kafka.bootstrap))
    first = TopicPartition(name, 0)
    wait_until(lambda: view.earliest([first])[first] == 10, "retention deletes the old rows", 60)
    produce(kafka.bootstrap, name, [f"new-{n}" for n in range(5)])
    with pytest.raises(Exception, match=r"\[KAFKA_DATA_LOSS\] 7 offsets .*-0 \[3, 10\)"):
        load(name, startingOffsets=start_at(name, 3)).collect()
    frame = load(name, startingOffsets=start_at(name, 3), failOnDataLoss="false")
    assert offsets(frame) == span(0, 10, 15)
    split = load(name, startingOffsets=start_at(name, 3), failOnDataLoss="false", minPartitions=4)
    assert offsets(split) == span(0, 10, 15)


def test_retention_between_planning_and_reading_is_an_error_with_the_lost_range(
    load: Load, kafka: Any, topic: Any
) -> None:
    """T15, F43: the frame was planned before the rows went; without loss checking the rest is read once."""
    name = topic()
    produce(kafka.bootstrap, name, [str(n) for n in range(10)])
    strict = load(name, startingOffsets=start_at(name, 2))
    lenient = load(name, startingOffsets=start_at(name, 2), failOnDataLoss="false")
    assert offsets(strict) == offsets(lenient) == span(0, 2, 10)
    delete_before(kafka.bootstrap, name, 6)
    with pytest.raises(Exception, match=r"\[OFFSET_OUT_OF_RANGE\] .*-0: offsets 2 to 6 \(excluded\)"):
        strict.select("offset").collect()
    assert offsets(lenient) == span(0, 6, 10)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_retention_that_overtakes_the_reader_is_met_inside_the_range(
    kafka: Any, topic: Any, fail_on_data_loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """T15, F42: rows already returned stay; the gap is an exact error or log entry; no row comes twice."""
    name = topic()
    for n in range(20):  # one batch each, one per answer
        produce(kafka.bootstrap, name, [b"%02d" % n + bytes(2000)])
    wanted = RangeOrder(name, 0, At(0), At(20))
    order = WorkOrder(
        (wanted,),
        settings_of(kafka.bootstrap, max_partition_fetch_bytes=1024),
        ("offset",),
        fail_on_data_loss=fail_on_data_loss,
        poll_timeout_ms=20_000,
    )
    batches = KafkaReader().read(order)
    seen = next(batches).column("offset").to_pylist()
    delete_before(kafka.bootstrap, name, 15)
    if fail_on_data_loss:
        with pytest.raises(Exception, match=r"\[OFFSET_OUT_OF_RANGE\]") as caught:
            seen.extend(each for batch in batches for each in batch.column("offset").to_pylist())
        facts = caught.value.facts  # type: ignore[attr-defined]
        assert (facts["offset"], facts["until"]) == (len(seen), 15)
        assert seen == list(range(len(seen)))
        assert caplog.messages == []
    else:
        seen.extend(each for batch in batches for each in batch.column("offset").to_pylist())
        read_before = len(seen) - 5
        assert seen == [*range(read_before), *range(15, 20)]
        assert read_before < 15
        (skip,) = caplog.messages
        assert re.search(rf"\[OFFSET_OUT_OF_RANGE\] {name}-0: offsets {read_before} to 15 \(excluded\)", skip)


def test_an_end_beyond_the_log_fails_before_anything_is_read_and_names_the_end(
    load: Load, kafka: Any, topic: Any
) -> None:
    """T17: planned with a user's poll timeout of two minutes; loss checking on and off."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    options = {"endingOffsets": start_at(name, 50), "fetchOffset__retryIntervalMs": 10}
    with pytest.raises(Exception, match=r"\[END_BEYOND_LOG\] .*-0 ends at 3, 50 was asked for") as caught:
        load(name, **options).collect()
    assert ", in partitions\n" in str(caught.value)
    assert offsets(load(name, **options, failOnDataLoss="false")) == span(0, 0, 3)


def test_a_task_whose_range_goes_beyond_the_log_fails_and_never_reads_short(kafka: Any, topic: Any) -> None:
    """T17, F21: the log was cut back after planning; the option limits the wait, whose end is an error."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    order = WorkOrder(
        (RangeOrder(name, 0, At(0), At(50)),),
        settings_of(kafka.bootstrap, max_partition_fetch_bytes=1024),
        ("offset",),
        poll_timeout_ms=700,
    )
    with pytest.raises(Exception, match=r"\[OFFSET_OUT_OF_RANGE\] .*offsets 3 to 50 .* 0 to 3") as caught:
        list(KafkaReader().read(order))
    assert "aged out" not in str(caught.value)


def test_a_topic_deleted_before_it_is_read_is_an_error_that_names_it(
    load: Load, kafka: Any, topic: Any
) -> None:
    """B305: planned, then deleted; the error says which topic is gone, and that `read` found out."""
    from penstock.kafka.metadata import topic_admin

    name = topic()
    produce(kafka.bootstrap, name, ["a"])
    frame = load(name, kafkaConsumer__pollTimeoutMs=20_000)
    assert offsets(frame) == span(0, 0, 1)
    topic_admin.delete_topic(settings_of(kafka.bootstrap), name)
    with pytest.raises(Exception, match=rf"\[PARTITION_GONE\] .*{name}") as caught:
        frame.select("offset").collect()
    assert ", in read\n" in str(caught.value)
