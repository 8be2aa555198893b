"""A broker that lags behind and is asked first after a restart: what it reports is not a loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.model import LogView, TopicView
from penstock.testing.memory_log import MemoryLog
from tests.support.micro_batches import MemorySource, MicroBatches


class LaggingSource(MemorySource):
    """A log whose topics are described as by an older broker, or by one that lags behind."""

    def __init__(self, log: MemoryLog, *, gives_ids: bool) -> None:
        super().__init__(log)
        self.gives_ids = gives_ids
        self.stale: list[Mapping[str, TopicView]] = []  # returned instead of the truth, one after the other

    def open_view(self) -> LogView:
        source, view = self, super().open_view()

        class View:
            def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
                if source.stale:
                    return source.stale.pop(0)
                found = view.describe(names)
                return found if source.gives_ids else strip_ids(found)

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

        return View()  # type: ignore[return-value]


def strip_ids(found: Mapping[str, TopicView]) -> dict[str, TopicView]:
    return {name: replace(view, topic_id=None) for name, view in found.items()}


def write(source: LaggingSource, *values: bytes) -> None:
    for value in values:
        source.log.append("t", 0, value=value)


def read_all(*, gives_ids: bool, fail: str) -> tuple[LaggingSource, MicroBatches, Mapping[str, TopicView]]:
    """Read to the end under a new leader and stop; return also what a lagging broker says about the topic."""
    log = MemoryLog()
    log.create_topic("t")
    source = LaggingSource(log, gives_ids=gives_ids)
    stale = strip_ids(log.describe())
    log.move_leader("t", 0)
    write(source, b"a", b"b", b"c")
    query = MicroBatches(source, subscribe="t", startingOffsets="earliest", failOnDataLoss=fail)
    query.start()
    query.drain()
    query.kill()
    return source, query, stale


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("written", [0, 2])
@pytest.mark.parametrize("answers", [1, 2])
def test_one_stale_answer_after_a_restart_is_no_recreated_topic(
    fail: str, written: int, answers: int
) -> None:
    """Without topic ids only epochs show it; a lower epoch is checked again before it is believed."""
    source, query, stale = read_all(gives_ids=False, fail=fail)
    new = [b"%d" % number for number in range(written)]
    write(source, *new)
    source.stale = [stale] * answers
    query.start()
    query.drain()
    write(source, b"last")
    query.drain()
    assert query.values == [b"a", b"b", b"c", *new, b"last"]
    assert source.losses == []


@pytest.mark.parametrize("fail", ["true", "false"])
def test_answers_without_an_id_during_an_upgrade_are_no_recreated_topic(fail: str) -> None:
    """Some brokers return ids and others do not yet: where the id is known, its absence means nothing."""
    source, query, stale = read_all(gives_ids=True, fail=fail)
    source.stale = [stale] * 50
    query.start()
    query.drain()
    source.stale = []
    write(source, b"last")
    query.drain()
    assert query.values == [b"a", b"b", b"c", b"last"]
    assert source.losses == []


def test_epochs_that_stay_lower_are_a_recreated_topic() -> None:
    """Every look shows the same, so it is believed, and the new topic is read from its beginning."""
    source, query, _ = read_all(gives_ids=False, fail="false")
    source.log.delete_topic("t")
    source.log.create_topic("t")
    write(source, b"new")
    query.start()
    query.drain()
    assert query.values == [b"a", b"b", b"c", b"new"]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_the_id_of_the_topic_before_is_no_recreated_topic(fail: str) -> None:
    """The query has read the new topic; a broker that lags behind reports the deleted one."""
    log = MemoryLog()
    log.create_topic("t")
    old = log.describe()
    log.delete_topic("t")
    log.create_topic("t")
    source = LaggingSource(log, gives_ids=True)
    write(source, b"a")
    query = MicroBatches(source, subscribe="t", startingOffsets="earliest", failOnDataLoss=fail)
    query.start()
    query.drain()
    query.kill()
    source.stale = [old]
    query.start()
    query.drain()
    write(source, b"b")
    query.drain()
    assert query.values == [b"a", b"b"]
