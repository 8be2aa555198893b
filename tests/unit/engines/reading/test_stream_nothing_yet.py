"""Streams over topics that do not exist yet: they wait, are stopped and started, and then read every row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.core.errors import BrokerError, OptionError
from penstock.core.model import LogView, TopicView
from penstock.core.offsets.stream_position import StreamPosition, write_position
from penstock.testing.memory_log import MemoryLog
from tests.support.micro_batches import MemorySource, MicroBatches

PATTERN = {"subscribePattern": "orders-.*"}
ASSIGN = {"assign": '{"known": [2, 3]}'}
STARTS = ["latest", "earliest", "-5", "-10m"]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create_topic("known", 2)
    log.create_topic("orders-internal", internal=True)
    return log


def appear(log: MemoryLog, how: Mapping[str, str]) -> None:
    """Create what was selected, with three rows."""
    if how is PATTERN:
        log.create_topic("orders-eu")
    else:
        log.add_partitions("known", 4)
    write(log, how, b"a", b"b", b"c")


def write(log: MemoryLog, how: Mapping[str, str], *values: bytes) -> None:
    for value in values:
        log.append(*(("orders-eu", 0) if how is PATTERN else ("known", 2)), value=value, timestamp_ms=1)


@pytest.mark.parametrize("how", [PATTERN, ASSIGN])
@pytest.mark.parametrize("where", STARTS)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_query_over_nothing_yet_waits_and_reads_what_comes_from_its_first_offset(
    log: MemoryLog, how: dict[str, str], where: str, stopped: bool
) -> None:
    """B011, F29: even when the topic appears while the query is stopped; internal topics are not read."""
    query = MicroBatches(MemorySource(log), startingOffsets=where, **how)
    query.start()
    query.drain()
    if stopped:
        query.kill()
    appear(log, how)
    if stopped:
        query.start()
    query.drain()
    write(log, how, b"d")
    query.drain()
    assert query.values == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("how", [PATTERN, ASSIGN])
@pytest.mark.parametrize("ours", [True, False])
def test_a_first_batch_without_partitions_that_was_not_finished_is_gone_on_with(
    log: MemoryLog, how: dict[str, str], ours: bool
) -> None:
    """F23: where there is no partition, no start is missing, whichever connector wrote the checkpoint."""
    query = MicroBatches(MemorySource(log), **how)
    query.ends[0] = json.dumps(write_position(StreamPosition({}))) if ours else "{}"
    appear(log, how)
    query.start()
    query.drain()
    assert query.values == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", [PATTERN, ASSIGN])
def test_a_run_over_nothing_yet_that_is_to_end_by_itself_ends_and_the_next_one_reads(
    log: MemoryLog, how: dict[str, str]
) -> None:
    """B033: with AvailableNow."""
    query = MicroBatches(MemorySource(log), **how)
    query.start(available_now=True)
    query.drain()
    query.kill()
    appear(log, how)
    query.start(available_now=True)
    query.drain()
    assert query.values == [b"a", b"b", b"c"]


def test_topics_that_appear_while_an_ending_run_has_just_begun_wait_for_the_next_one(log: MemoryLog) -> None:
    query = MicroBatches(MemorySource(log), startingOffsets="earliest", **PATTERN)
    query.start(available_now=True)
    appear(log, PATTERN)
    query.drain()
    assert query.values == []
    query.kill()
    query.start(available_now=True)
    query.drain()
    assert query.values == [b"a", b"b", b"c"]


@pytest.mark.parametrize("subscribe", [{"subscribe": "orders-eu"}, {"assign": '{"orders-eu": [0]}'}])
def test_a_topic_that_is_named_and_does_not_exist_is_told_before_anything_is_stored(
    log: MemoryLog, subscribe: dict[str, str]
) -> None:
    """As with Spark's own connector: only patterns, and partitions of existing topics, are waited for."""
    query = MicroBatches(MemorySource(log), **subscribe)
    query.start()
    with pytest.raises(BrokerError, match=r"\[UNKNOWN_TOPIC\]"):
        query.trigger()
    assert query.ends == {}
    appear(log, PATTERN)
    query.drain()
    write(log, PATTERN, b"d")
    query.drain()
    assert query.values == [b"d"]


def test_offsets_named_for_a_topic_that_does_not_exist_are_refused_before_anything_is_stored(
    log: MemoryLog,
) -> None:
    query = MicroBatches(MemorySource(log), startingOffsets='{"orders-eu": {"0": 1}}', **PATTERN)
    query.start()
    with pytest.raises(OptionError, match=r"\[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED\]"):
        query.trigger()
    assert query.ends == {}


def test_topics_that_all_vanish_keep_the_position_that_was_reached(log: MemoryLog) -> None:
    """B027, T14: a position without partitions is not stored; a recreated topic is read in full."""
    appear(log, PATTERN)
    query = MicroBatches(MemorySource(log), startingOffsets="earliest", failOnDataLoss="false", **PATTERN)
    query.start()
    query.drain()
    log.delete_topic("orders-eu")
    query.drain()
    query.kill()
    query.start()
    query.drain()
    assert len(query.ends) == 1
    log.create_topic("orders-eu")
    write(log, PATTERN, b"d")
    query.drain()
    assert query.values == [b"a", b"b", b"c", b"d"]


class ForgetfulSource(MemorySource):
    """A log whose first brokers to answer do not know any topic yet, as often as set."""

    def __init__(self, log: MemoryLog, looks: int) -> None:
        super().__init__(log)
        self.looks = looks

    def open_view(self) -> LogView:
        source, view = self, super().open_view()

        class View:
            def topics(self) -> Mapping[str, TopicView]:
                source.looks -= 1
                return {} if source.looks >= 0 else view.topics()

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

        return View()  # type: ignore[return-value]


def test_brokers_that_know_no_topic_for_a_moment_do_not_make_all_of_them_new(log: MemoryLog) -> None:
    """T14: otherwise a stream from `latest` would read old rows as new ones."""
    appear(log, PATTERN)
    query = MicroBatches(ForgetfulSource(log, looks=2), **PATTERN)
    query.start()
    query.drain()
    write(log, PATTERN, b"d")
    query.drain()
    assert query.values == [b"d"]
