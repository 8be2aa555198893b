"""A leader is elected while a stream looks at its log, between the requests of one look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from penstock.core.model import LogView, TopicPartition, TopicView
from penstock.testing.memory_log import MemoryLog
from tests.support.micro_batches import MemorySource, MicroBatches


class InterruptedSource(MemorySource):
    """A log to which something happens just before its ends are reported, as often as it is asked to."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.happenings: list[Callable[[], None]] = []
        self.hidden: set[str] = set()

    def open_view(self) -> LogView:
        source, view = self, super().open_view()

        class View:
            def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
                return view.describe(set(names) - source.hidden)

            def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
                if source.happenings:
                    source.happenings.pop(0)()
                return view.latest(partitions)

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

        return View()  # type: ignore[return-value]


@pytest.fixture
def source() -> InterruptedSource:
    log = MemoryLog()
    log.create_topic("t")
    return InterruptedSource(log)


def write(source: InterruptedSource, *values: bytes) -> None:
    for value in values:
        source.log.append("t", 0, value=value)


def elect_and_write(source: InterruptedSource, *values: bytes) -> Callable[[], None]:
    def happen() -> None:
        source.log.move_leader("t", 0)
        write(source, *values)

    return happen


def start(source: InterruptedSource, where: str = "earliest") -> MicroBatches:
    query = MicroBatches(source, subscribe="t", startingOffsets=where)
    query.start()
    return query


def test_rows_of_a_leader_elected_during_the_look_are_read_and_are_no_loss(source: InterruptedSource) -> None:
    """The new leader reported the end; stored with the old leader's epoch, its rows would look rewritten."""
    write(source, b"a")
    query = start(source)
    query.trigger()
    source.happenings = [elect_and_write(source, b"b"), elect_and_write(source, b"c")]
    query.drain()
    assert query.values == [b"a", b"b", b"c"]


def test_a_start_at_latest_told_by_a_leader_elected_during_the_look_is_no_loss(
    source: InterruptedSource,
) -> None:
    write(source, b"a")
    source.happenings = [elect_and_write(source, b"b")]
    query = start(source, "latest")
    query.drain()
    write(source, b"c")
    query.drain()
    assert query.values == [b"c"]


def test_a_cut_during_the_look_is_still_noticed(source: InterruptedSource) -> None:
    """T12: a second look shows that what was read has been cut off."""
    write(source, b"a", b"b", b"c")
    query = start(source)
    query.trigger()

    def cut_and_write() -> None:
        source.log.truncate_after("t", 0, 1)
        write(source, b"d", b"e", b"f", b"g")

    source.happenings = [cut_and_write]
    with pytest.raises(Exception, match=r"\[LOG_TRUNCATED\]"):
        query.drain()


@pytest.mark.parametrize("written", [0, 1, 5])
def test_a_partition_that_comes_back_cut_off_goes_on_at_the_cut(
    source: InterruptedSource, written: int
) -> None:
    """T12: gone for a while, it is the same topic by its id; its new leader lost what was read last."""
    source.log.create_topic("u")
    write(source, b"a", b"b", b"c")
    query = MicroBatches(source, subscribe="t,u", startingOffsets="earliest", failOnDataLoss="false")
    query.start()
    query.drain()
    source.hidden = {"t"}
    source.log.append("u", 0, value=b"u")
    query.drain()
    source.hidden = set()
    source.log.truncate_after("t", 0, 1)
    write(source, *[b"new %d" % number for number in range(written)])
    query.drain()
    query.kill()
    query.start()
    write(source, b"last")
    query.drain()
    new = [b"new %d" % number for number in range(written)]
    assert query.values == [b"a", b"b", b"c", b"u", *new, b"last"]
