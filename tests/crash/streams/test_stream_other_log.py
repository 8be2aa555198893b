"""A running stream whose log is replaced under the same offsets, on a real Spark and real brokers.

Spark's own connector notices neither case; docs/proof/stream-comparison.json shows what it does instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash.streams.held import HeldStream, TornLog, recreate_with_more_rows
from tests.support.kafka.topic_filling import produce

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Hold = Callable[..., HeldStream]


@pytest.fixture
def hold(spark: SparkSession, tmp_path: Path) -> Iterator[Hold]:
    """Yield a function that starts held streams, and stop them whatever happens."""
    streams: list[HeldStream] = []

    def make(cluster: Any, topic: str, *, fail: bool) -> HeldStream:
        checkpoint = tmp_path / f"checkpoint-{len(streams)}"
        streams.append(HeldStream(spark, "penstock", cluster.bootstrap, topic, checkpoint, fail=fail))
        return streams[-1]

    yield make
    for each in streams:
        each.stop()


def test_a_topic_made_anew_with_a_higher_end_is_noticed_by_a_running_stream(
    kafka: Any, topic: Any, hold: Hold
) -> None:
    """T11, B052: with loss checking an error names it; without, the new topic is read from its start."""
    name = topic()
    produce(kafka.bootstrap, name, [f"old-{number}" for number in range(20)])
    strict, lenient = hold(kafka, name, fail=True), hold(kafka, name, fail=False)
    for each in (strict, lenient):
        each.await_rows(20)
    recreate_with_more_rows(kafka.bootstrap, name, old=20, new=40)
    assert "[TOPIC_RECREATED]" in strict.let_go()
    assert len(strict.values) == 20
    assert lenient.let_go() == ""
    assert lenient.values[20:] == [f"new-{number}" for number in range(40)]


def test_a_log_cut_off_by_an_unclean_election_is_noticed_by_a_running_stream(
    kafka3: Any, topic: Any, hold: Hold
) -> None:
    """T12: with loss checking an error names the cause; without, the log is read on from the cut."""
    config = {"min_insync_replicas": 1, "unclean_leader_election_enable": "true"}
    name = topic(on=kafka3, factor=2, **config)
    produce(kafka3.bootstrap, name, [f"kept-{number}" for number in range(10)], acks="all")
    strict, lenient = hold(kafka3, name, fail=True), hold(kafka3, name, fail=False)
    streams = (strict, lenient)
    for each in streams:
        each.await_rows(10)
        each.pass_batch()

    def has_read() -> None:
        for each in streams:
            each.await_rows(14)

    new = [f"new-{number}" for number in range(10)]
    TornLog(kafka3, name).lose([f"lost-{number}" for number in range(4)], new, has_read)
    assert "[LOG_TRUNCATED]" in strict.let_go()
    assert len(strict.values) == 14
    assert lenient.let_go() == ""
    assert lenient.values[14:] == new
