"""What a stream reports while it waits for servers: regularly, and never more than it has seen."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.core.loggers import in_stream
from penstock.engines.direct import batch_loop
from penstock.engines.direct.direct_batch import Batch
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.stores import waiting_messages
from tests.support.waiting import wait_until
from tests.unit.core.test_outages import AWAY, SILENT, Clock, fail_for, list_warnings, run
from tests.unit.engines.direct.test_batch_loop import World
from tests.unit.engines.direct.test_batch_loop import world as world  # the fixture


def find_tellers() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == waiting_messages.THREAD]


def test_an_attempt_that_takes_long_in_an_outage_is_told_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks wait two minutes for a broker that is frozen, and the driver waits for them."""
    monkeypatch.setattr(batch_loop, "TOLD_AFTER_S", 0.01)
    clock, failures = Clock(), [AWAY]

    def list_told() -> list[str]:
        return [each for each in list_warnings(caplog) if "under way" in each]

    def work(_batch: Batch) -> None:
        if failures:
            raise failures.pop()
        for count in (1, 2, 3):
            clock.now_s += 31
            wait_until(lambda: len(list_told()) >= count, f"told {count} times", 30)  # noqa: B023

    with in_stream("visits"):
        run(world, clock, work, attempts=1)
    told = list_told()
    assert len(told) == 3
    assert "visits: Batch 0 is under way again (attempt 2)" in told[2]
    assert "no success for 94 s" in told[2]
    assert "If it fails, the stream waits 806 s more (outageTimeout is 15 min)" in told[2]
    assert "The last failure: [DATABASE_UNREACHABLE]" in told[2]
    assert not find_tellers()


def test_a_batch_that_takes_long_without_an_outage_is_no_news(world: World) -> None:
    """Many streams have long batches; nobody wants messages about them, or to pay for those messages."""
    seen: list[list[str]] = []
    run(world, Clock(), lambda batch: seen.append(find_tellers()))
    assert seen == [[]]


def test_who_tells_ends_with_an_attempt_that_fails(world: World) -> None:
    failures = [AWAY, ValueError("mine")]
    seen: list[int] = []

    def work(_batch: Batch) -> None:
        seen.append(len(find_tellers()))
        if failures:
            raise failures.pop(0)

    run(world, Clock(), work)
    assert seen == [0, 1, 1]  # the second failure is not an outage, but the first outage is not over yet
    assert not find_tellers()


def test_a_sink_that_answers_again_is_said_at_once_and_the_batch_when_it_is_done(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A database was away for 100 s and brokers after that: both times are reported, each as its own."""
    clock = Clock()
    sink, broker = fail_for(clock, 100, AWAY), fail_for(clock, 300, SILENT)

    def work(_batch: Batch) -> None:
        sink()
        broker()

    run(world, clock, work, reach=sink)
    (back,) = [each for each in list_warnings(caplog) if "answers again" in each]
    assert "The sink answers again, 102 s after the first failure" in back
    assert "Nothing is done yet" in back
    assert "goes on, after 302 s without success" in list_warnings(caplog)[-1]


def test_a_sink_that_was_never_away_is_not_said_to_be_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    broker = fail_for(clock, 100, SILENT)
    run(world, clock, lambda batch: broker())
    assert not [each for each in list_warnings(caplog) if "answers again" in each]


def test_brokers_that_answer_again_are_said_at_once_where_a_batch_follows(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    brokers, database = fail_for(clock, 100, SILENT), fail_for(clock, 300, AWAY)
    find_end = StreamWatch.find_end

    def find_when_there(self: StreamWatch, *args: Any, **more: Any) -> Any:
        brokers()
        return find_end(self, *args, **more)

    monkeypatch.setattr(StreamWatch, "find_end", find_when_there)
    run(world, clock, lambda batch: database())
    told = list_warnings(caplog)
    assert [each for each in told if "The brokers answer again, 102 s after the first failure" in each]
    assert "goes on, after 302 s without success" in told[-1]
