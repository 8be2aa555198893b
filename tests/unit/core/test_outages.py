"""A server that goes away for a while: how long a direct stream waits for it, and what it says meanwhile."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import BrokerError, OffsetStoreError, OptionError, PenstockError, SinkError
from penstock.core.loggers import in_stream
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_option_table import DirectTable
from penstock.core.options.direct_options import parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.core.options.option_table import option_specs, read_surface
from penstock.core.options.storage_addresses import parse_place
from penstock.core.options.stream_options import parse_stream_options
from penstock.core.outages import Patience, find_stop, is_outage, waiting_for_servers, write_span
from penstock.engines.direct.direct_batch import Batch
from penstock.engines.direct.stop_requests import StopSwitch
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.kafka.transport import deadlines
from penstock.kafka.transport.deadlines import Deadline
from penstock.stores.sql.connections import database_outages
from tests.support.waiting import wait_until
from tests.unit.engines.direct.test_batch_loop import T0, T1, T2, World, write
from tests.unit.engines.direct.test_batch_loop import world as world  # the fixture

AWAY = OffsetStoreError("DATABASE_UNREACHABLE", "It is away.", hint="Start it.", retriable=True)
SILENT = BrokerError("BROKER_TIMEOUT", "Nobody answers.", hint="Start them.", retriable=True)
BUSY = OffsetStoreError("DATABASE_BUSY", "Locked.", hint="Wait.", retriable=True)
FROM_TASK = RuntimeError(f"Job aborted:\n  {AWAY}\nPenstock: trying again may help.\n")  # as Spark reports it
LIMIT_S = DirectTable().outage_timeout_ms / 1000


class Clock:
    """A clock that moves only when the loop waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)


class PatientSwitch(StopSwitch):
    """Waits by advancing the clock; asks to stop at `stop_at_s`."""

    def __init__(self, clock: Clock, stop_at_s: float = float("inf")) -> None:
        super().__init__()
        self.clock, self.stop_at_s = clock, stop_at_s

    def wait(self, seconds: float) -> bool:
        self.clock.move(seconds)
        if self.clock.now_s >= self.stop_at_s:
            self.set("the test")
        return self.is_set


def fail_for(clock: Clock, seconds: float, error: Exception) -> Callable[[], None]:
    """Return a function that fails until this many seconds have passed."""
    back_at_s = clock() + seconds

    def ask() -> None:
        if clock() < back_at_s:
            raise error

    return ask


def run(
    world: World, clock: Clock, work: Callable[[Batch], Any] = lambda batch: None, **more: Any
) -> list[int]:
    more.setdefault("switch", PatientSwitch(clock))
    return world.run(work, clock=clock, outage_s=LIMIT_S, **more)


def test_the_default_outlives_a_restart_of_ten_minutes(world: World) -> None:
    """Even when the first failure is noticed late: half of the limit is left for the batch itself."""
    assert LIMIT_S == 15 * 60
    clock = Clock()
    ask = fail_for(clock, 10 * 60, AWAY)
    sizes = run(world, clock, lambda batch: ask())
    assert len(sizes) > 3  # more often than `batch_attempts`
    assert world.stored() == {T0: 10, T1: 4, T2: 1}
    assert max(clock.pauses) <= 5  # so it continues soon after the server is back


def test_an_outage_that_outlasts_the_limit_ends_the_stream_with_its_cause(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ask = fail_for(clock, LIMIT_S + 100, AWAY)
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
        run(world, clock, lambda batch: ask())
    assert LIMIT_S <= clock() - 1000 < LIMIT_S + 10
    assert "outageTimeout" in caplog.messages[-1]
    assert world.stored() == {T0: 0, T1: 0, T2: 0}
    assert run(world, Clock()) == [15]  # and nothing is lost


def test_brokers_that_are_away_while_a_batch_is_planned_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the brokers does not end a stream that has nothing to do but look at the log."""
    clock = Clock()
    ask = fail_for(clock, 10 * 60, SILENT)
    find_end = StreamWatch.find_end

    def find_when_there(self: StreamWatch, *args: Any, **more: Any) -> Any:
        ask()
        return find_end(self, *args, **more)

    monkeypatch.setattr(StreamWatch, "find_end", find_when_there)
    assert run(world, clock) == [15]
    monkeypatch.setattr(StreamWatch, "find_end", find_when_there)
    ask = fail_for(clock, LIMIT_S + 100, SILENT)
    with pytest.raises(BrokerError, match="BROKER_TIMEOUT"):
        run(world, clock)


def test_a_stream_that_is_asked_to_stop_while_it_looks_for_its_brokers_stops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is in flight then, so there is nothing that could fail."""

    def find_nobody(_self: StreamWatch, *args: Any, **more: Any) -> Any:
        raise SILENT

    monkeypatch.setattr(StreamWatch, "find_end", find_nobody)
    clock = Clock()
    assert run(world, clock, switch=PatientSwitch(clock, 1030), batches=None) == []
    assert clock() < 1040


def test_a_stop_that_ends_a_question_to_silent_brokers_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deadlines, "STOP_PATIENCE_S", 0.0)
    clock = Clock()
    switch = PatientSwitch(clock)

    def wait_and_stop(_self: StreamWatch, *args: Any, **more: Any) -> Any:
        limit = Deadline.after_ms(60_000)
        switch.set("the test")
        raise AssertionError(f"It would wait {limit.wait_s('an answer')} s more.")

    monkeypatch.setattr(StreamWatch, "find_end", wait_and_stop)
    assert run(world, clock, switch=switch, batches=None, empty=True) == []
    assert list_warnings(caplog) == []


def test_a_stop_is_heard_where_stored_offsets_are_renewed_and_nowhere_else_after_a_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal stores nothing new, but giving up a batch's offsets would lose what the batch has done."""
    world.store.save("s", StreamPosition(dict.fromkeys((T0, T1, T2), 0)))
    heard: list[tuple[str, bool]] = []
    save = type(world.store).save

    def save_and_note(self: Any, *args: Any, **more: Any) -> None:
        heard.append(("save", find_stop() is not None))
        save(self, *args, **more)

    def renew(_self: Any, *args: Any) -> None:
        heard.append(("renew", find_stop() is not None))

    monkeypatch.setattr(type(world.store), "save", save_and_note)
    monkeypatch.setattr(type(world.store), "renew", renew, raising=False)
    run(world, Clock(), lambda batch: heard.append(("work", find_stop() is not None)), batches=1)
    assert heard == [("work", False), ("save", False), ("renew", True)]


def test_no_empty_batch_begins_after_a_stop_that_came_while_brokers_were_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch without records would be an extra one, and its work might need the brokers that are away."""
    assert run(world, Clock()) == [15]

    def find_nobody(_self: StreamWatch, *args: Any, **more: Any) -> Any:
        raise SILENT

    monkeypatch.setattr(StreamWatch, "find_end", find_nobody)
    clock = Clock()
    assert run(world, clock, switch=PatientSwitch(clock, 1030), batches=5, empty=True) == []


def test_no_batch_begins_after_a_stop_that_came_while_it_was_planned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    switch, find_end = PatientSwitch(clock), StreamWatch.find_end

    def find_and_stop(self: StreamWatch, *args: Any, **more: Any) -> Any:
        switch.set("the test")
        return find_end(self, *args, **more)

    monkeypatch.setattr(StreamWatch, "find_end", find_and_stop)
    assert run(world, clock, switch=switch, batches=None) == []
    assert world.planned is not None
    assert dict(world.planned.offsets) == world.stored() == {T0: 0, T1: 0, T2: 0}


def test_the_limit_is_told_at_the_first_failure_and_every_half_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ask = fail_for(clock, 120, AWAY)
    caplog.set_level(logging.INFO, logger="penstock.engines.direct.batch_loop")
    run(world, clock, lambda batch: ask())
    *told, last = list_warnings(caplog)
    assert len(told) == 4  # at 0, 32, 62 and 92 s: attempts come every 5 s
    assert "after 122 s without success" in last
    for each in told:
        assert "waits up to 15 min in all (outageTimeout)" in each
        assert "[DATABASE_UNREACHABLE]" in each
    assert "A server does not answer. The" in told[0]
    assert "A server does not answer: no success for 32 s. The" in told[1]


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_what_is_told_counts_from_the_beginning_of_the_attempt_that_failed_first(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request to silent brokers takes a minute to fail, and that minute was waiting time too."""
    clock = Clock()
    find_end, looks = StreamWatch.find_end, iter([60.0, 60.0, 0.0])

    def find_late(self: StreamWatch, *args: Any, **more: Any) -> Any:
        took_s = next(looks, 0.0)
        clock.now_s += took_s
        if took_s:
            raise SILENT
        return find_end(self, *args, **more)

    monkeypatch.setattr(StreamWatch, "find_end", find_late)
    run(world, clock)
    first, second, answered, last = list_warnings(caplog)
    assert "no success for 60 s" in first
    assert "waits up to 15 min in all (outageTimeout), 900 s more" in first
    assert "no success for 121 s" in second  # one second between them
    assert "waits up to 15 min in all (outageTimeout), 839 s more" in second
    assert "The brokers answer again, 123 s after the first failure" in answered
    assert "after 123 s without success" in last  # two seconds later a batch is done


@pytest.mark.parametrize("where", ["work", "store"])
def test_what_an_attempt_has_waited_is_told_wherever_it_waited(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    clock = Clock()
    world.store.save("s", StreamPosition(dict.fromkeys((T0, T1, T2), 0)))
    save, failures = type(world.store).save, [AWAY]

    def fail_late(*args: Any) -> None:
        if failures:
            clock.now_s += 112.4
            raise failures.pop()

    def save_late(self: Any, *args: Any, **more: Any) -> None:
        if where == "store":
            fail_late()
        save(self, *args, **more)

    monkeypatch.setattr(type(world.store), "save", save_late)
    run(world, clock, fail_late if where == "work" else lambda batch: None)
    first, last = list_warnings(caplog)
    assert "no success for 113 s" in first  # never less than it really was
    assert "after 114 s without success" in last


def test_work_that_took_long_and_fails_at_its_end_uses_up_no_time_to_wait(world: World) -> None:
    """How much of it was waiting is unknown, so the limit counts from the failure."""
    clock = Clock()
    failures = [AWAY]

    def work(_batch: Batch) -> None:
        clock.now_s += 2 * LIMIT_S
        if failures:
            raise failures.pop()

    assert run(world, clock, work, attempts=1) == [15, 15]


def test_an_outage_ends_with_the_batch_that_is_done(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Not only when nothing is left: a busy stream is never idle, and its next outage is a new one."""
    clock = Clock()
    ask = fail_for(clock, 20, AWAY)
    run(world, clock, lambda batch: ask(), batches=1)
    assert "The stream goes on, after 22 s without success." in list_warnings(caplog)[-1]


def test_an_outage_ends_when_there_is_nothing_new(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle stream runs no batch that could end the outage."""
    run(world, Clock())
    clock = Clock()
    ask, find_end = fail_for(clock, 20, SILENT), StreamWatch.find_end

    def find_when_there(self: StreamWatch, *args: Any, **more: Any) -> Any:
        ask()
        return find_end(self, *args, **more)

    monkeypatch.setattr(StreamWatch, "find_end", find_when_there)
    assert run(world, clock) == []
    assert "The stream goes on, after 22 s without success." in list_warnings(caplog)[-1]


def test_no_batch_is_worked_out_again_before_the_sink_answers(world: World) -> None:
    """It would be useless to read a batch and compute its results only to find the database still away."""
    clock = Clock()
    ask = fail_for(clock, 300, AWAY)
    assert run(world, clock, lambda batch: ask(), reach=ask) == [15, 15]


def test_a_sink_that_answers_and_fails_each_batch_is_not_tried_for_ever(world: World) -> None:
    """If our own statements crash a database, the time counts from the first failure."""
    clock = Clock()

    def work(_batch: Batch) -> None:
        clock.now_s += 200
        raise AWAY

    with pytest.raises(OffsetStoreError):
        run(world, clock, work, reach=lambda: None)
    assert len(world.batches) == 6


def test_other_failures_are_tried_as_often_as_said(world: World) -> None:
    """A deadlock, a lock timeout or a user's own error is not an outage."""
    for error in (ValueError("mine"), BUSY):
        clock = Clock()
        world.batches.clear()
        ask = fail_for(clock, 600, error)
        with pytest.raises(type(error)):
            run(world, clock, lambda batch, ask=ask: ask(), attempts=2)
        assert len(world.batches) == 2


def test_an_outage_uses_up_no_attempt(world: World) -> None:
    """The database is back after a restart, but the lock of a session that died with it is still held."""
    clock = Clock()
    failures = [AWAY] * 6 + [BUSY] * 2

    def work(_batch: Batch) -> None:
        if failures:
            raise failures.pop(0)

    assert run(world, clock, work, attempts=3, batches=1) == [15] * 9
    assert clock.pauses[-2:] == [1, 5]  # as after any first and second failure
    write(world, 1, 0, 0)
    failures = [BUSY, AWAY, BUSY, AWAY, BUSY]
    with pytest.raises(OffsetStoreError, match="DATABASE_BUSY"):
        run(world, clock, work, attempts=3)
    assert not failures


def test_the_pause_before_another_attempt_is_half_a_minute_at_most(world: World) -> None:
    clock = Clock()
    ask = fail_for(clock, 1_000_000, BUSY)
    with pytest.raises(OffsetStoreError, match="DATABASE_BUSY"):
        run(world, clock, lambda batch: ask(), attempts=8)
    assert clock.pauses == [1, 5, 25, 30, 30, 30, 30]


@pytest.mark.parametrize("has_empty_batch", [False, True])
def test_what_no_task_has_ever_reached_is_no_outage(world: World, has_empty_batch: bool) -> None:
    """If only the driver can reach an address, the user should learn that at once."""
    if has_empty_batch:
        run(world, Clock())
    clock = Clock()
    world.batches.clear()
    done: list[int] = []

    def work(batch: Batch) -> None:
        if any(each.size for each in batch.ranges):
            raise FROM_TASK
        done.append(batch.id)
        write(world, 1, 0, 0)

    with pytest.raises(RuntimeError, match="DATABASE_UNREACHABLE"):
        run(world, clock, work, attempts=3, empty=True, batches=5)
    assert len(done) == has_empty_batch  # a batch without records has no tasks
    assert len(world.batches) == 3 + len(done)
    assert clock() < 1010


def test_what_tasks_have_reached_once_is_waited_for(world: World) -> None:
    clock = Clock()
    ask = fail_for(clock, 10 * 60, FROM_TASK)
    sizes = run(
        world,
        clock,
        lambda batch: ask() if batch.id else None,
        attempts=1,
        maxOffsetsPerTrigger=10,
        batches=2,
    )
    assert len(sizes) > 3
    assert clock() >= 1600


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once", "manual"])
def test_a_store_that_is_away_is_waited_for_and_the_work_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """Repeating a batch only for its offsets would double it."""
    clock = Clock()
    world.store.save("s", StreamPosition(dict.fromkeys((T0, T1, T2), 0)))
    ask, save = fail_for(clock, 300, AWAY), type(world.store).save

    def save_when_there(self: Any, *args: Any, **more: Any) -> None:
        ask()
        save(self, *args, **more)

    monkeypatch.setattr(type(world.store), "save", save_when_there)
    if delivery == "manual":
        assert run(world, clock, lambda batch: batch.commit(), manual=True) == [15]
    else:
        assert run(world, clock, delivery=delivery) == [15]
    assert world.stored() == {T0: 10, T1: 4, T2: 1}
    assert clock() > 1300


def test_at_most_once_never_repeats_work_whatever_is_away(world: World) -> None:
    def work(_batch: Batch) -> None:
        raise AWAY

    with pytest.raises(OffsetStoreError):
        run(world, Clock(), work, delivery="at-most-once")
    assert len(world.batches) == 1


def test_an_outage_is_known_by_its_condition_wherever_it_was_met() -> None:
    """On the driver it is the cause of another error; from a task it is the text of a traceback."""
    wrapped = SinkError("COMMIT_IN_DOUBT", "No answer.", hint="Wait.", retriable=True)
    wrapped.__cause__ = RuntimeError("a step")
    wrapped.__cause__.__cause__ = AWAY
    fenced = SinkError("WRITER_FENCED", "Another writer.", hint="Run one.")
    fenced.__cause__ = AWAY  # the code that wrapped it knew more
    for error in (AWAY, SILENT, wrapped, FROM_TASK, pickle.loads(pickle.dumps(AWAY))):
        assert is_outage(error), error
    refused = OffsetStoreError("DATABASE_REFUSED", "No.", hint="Log in.")
    for error in (ValueError("x"), fenced, refused, RuntimeError(f"{AWAY}")):
        assert not is_outage(error), error


SPEC = option_specs(DirectTable)["outage_timeout_ms"]


@pytest.mark.parametrize("text", SPEC.accepts)
def test_an_accepted_limit_is_accepted_by_a_direct_stream_and_by_no_other(text: str) -> None:
    parsed = parse(text)
    assert parsed.outage_timeout_ms == read_surface(DirectTable, {SPEC.key: text}).outage_timeout_ms
    with pytest.raises(OptionError) as refused:
        parse_stream_options(
            {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", SPEC.key: text}, unique="u"
        )
    assert refused.value.condition == "OPTION_UNKNOWN"


@pytest.mark.parametrize(("text", "condition"), SPEC.rejects)
def test_a_limit_that_is_none_is_refused(text: str, condition: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse(text)
    assert refused.value.condition == condition


def parse(text: str) -> Any:
    kafka = {"bootstrap.servers": "b:9092"}
    return parse_direct_options(Subscribe("t"), kafka, {"OutageTimeout": text}, {}, interval_ms=1, unique="u")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (5, "5 s"), (90, "90 s"), (900, "15 min"), (7200, "2 h"), (0, "0 s")],
)
def test_a_span_is_written_with_the_unit_that_fits(seconds: float, text: str) -> None:
    assert write_span(seconds) == text


def test_a_database_that_takes_a_statement_and_stands_still_is_told_and_told_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_outages, "TOLD_AFTER_S", 0.01)
    monkeypatch.setattr(database_outages, "TOLD_EVERY_S", 0.01)
    place = parse_place("postgresql://ann:secret@db.example/stats")
    with in_stream("visits"), waiting_for_servers(Patience(900)), database_outages.warn_of_silence(place):
        wait_until(lambda: len(caplog.messages) >= 2, "it was told twice")
    for each in caplog.messages:
        assert each.startswith("visits: postgresql://ann@db.example:5432/stats has not answered for 0 s")
        assert "The stream waits up to 15 min in all (outageTimeout)." in each


def test_one_step_waits_for_a_moment_where_the_stream_waits_itself_and_else_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise nobody could stop a stream meanwhile, and the driver would learn late of tasks' troubles."""
    assert database_outages.find_wait_s() == 30
    with waiting_for_servers(Patience(900)):
        assert database_outages.find_wait_s() == 5
    with waiting_for_servers(Patience(0)):
        assert database_outages.find_wait_s() == 30  # it does not wait itself
    clock = Clock()
    monkeypatch.setattr(database_outages, "time", SimpleNamespace(monotonic=clock, sleep=clock.move))
    place = parse_place("postgresql://ann:secret@db.example/stats")

    def connect() -> None:
        raise AWAY

    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
        database_outages.wait_out(place, connect, 30.0)
    assert len(caplog.messages) == 1
    assert "postgresql://ann@db.example:5432/stats, up to 30 s: [DATABASE_UNREACHABLE]" in caplog.text
