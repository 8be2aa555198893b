"""What Spark promises about the files of a checkpoint, with our positions in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.streaming import Flow, expect
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Any]:
    """Return `settings(key, text)`, which sets a setting of this session until the test is over."""
    before: dict[str, str | None] = {}

    def change(key: str, text: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, text)

    yield change
    for key, text in before.items():
        if text is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, text)


def test_old_positions_are_purged_and_two_writers_collide(
    flow: Flow, settings: Any, kafka: Any, topic: Any
) -> None:
    """B031, B290, B293: the configured number is kept, a restart needs no more; no batch is overwritten."""
    settings("spark.sql.streaming.minBatchesToRetain", "2")
    name = topic()
    produce(kafka.bootstrap, name, ["0", "1", "2", "3", "4"])
    flow.run(name, startingOffsets="earliest", maxOffsetsPerTrigger=1)

    def list_batches() -> list[int]:
        return sorted(int(each.name) for each in (flow.checkpoint / "offsets").glob("[0-9]*"))

    wait_until(lambda: list_batches()[0] >= 2, "old positions are purged")
    assert list_batches()[-1] == 4
    assert len(list_batches()) >= 2
    (flow.checkpoint / "offsets" / "77").mkdir()  # a folder whose name is a number is not a batch
    flow.start(name)
    produce(kafka.bootstrap, name, ["5"])
    assert flow.drain() == expect(name, 0, ["5"], start=5)
    shutil.copy(flow.offset_file(5), flow.offset_file(6))  # another writer has planned batch 6
    produce(kafka.bootstrap, name, ["6"])
    assert "CONCURRENT_STREAM_LOG_UPDATE" in flow.failure()
    assert flow.take() == []
    assert flow.stored(6) == flow.stored(5)  # the first entry stays


def test_a_position_that_cannot_be_written_stops_the_query_with_the_reason(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B294, T46: no batch runs whose end is not on disk."""
    name = topic()
    flow.start(name, startingOffsets="earliest")
    flow.drain()
    offsets = flow.checkpoint / "offsets"
    offsets.rename(flow.checkpoint / "elsewhere")
    offsets.write_text("")  # blocks the folder
    produce(kafka.bootstrap, name, ["a"])
    assert str(offsets) in flow.failure()
    assert flow.take() == []


def test_a_format_that_a_checkpoint_began_with_wins_over_the_session(
    flow: Flow, settings: Any, kafka: Any, topic: Any
) -> None:
    """B296: what is stored beside our positions stays as it was."""
    key = "spark.sql.streaming.aggregation.stateFormatVersion"

    def stored(number: int) -> str:
        conf: dict[str, str] = json.loads(flow.offset_file(number).read_text().splitlines()[1])["conf"]
        return conf[key]

    name = topic()
    settings(key, "1")
    flow.run(name, startingOffsets="earliest")
    settings(key, "2")
    produce(kafka.bootstrap, name, ["a"])
    assert flow.run(name) == expect(name, 0, ["a"])
    assert (stored(0), stored(1)) == ("1", "1")
