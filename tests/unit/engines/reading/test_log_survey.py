"""Asking the log for what planning needs: only that, exactly so often, with a fresh view after failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from penstock.core.errors import BrokerError, OptionError
from penstock.core.model import At, Latest, LogView, OffsetRange, Peek, TopicPartition, TopicView
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.shared_options import ReadOptions
from penstock.core.planning.offset_planning import explain_unwritten, step
from penstock.core.planning.range_bounds import Snapshot
from penstock.engines.reading import log_survey as engine
from penstock.testing.memory_log import MemoryLog

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def survey(
    open_view: Callable[[], LogView],
    options: ReadOptions,
    *,
    now_ms: int,
    pause: Callable[[float], None],
) -> Snapshot:
    patience = engine.LookRetries(options.fetch_offset_retries, options.fetch_offset_retry_interval_ms, pause)
    return engine.survey(
        open_view,
        options.reading,
        options.limits,
        patience,
        group=options.client.group_id or "",
        now_ms=now_ms,
    )


class WatchedView:
    """A view of the log in memory that records what it is asked, and can fail."""

    def __init__(self, log: MemoryLog, calls: list[str], failing: str | None) -> None:
        self._view = log.view()
        self._calls = calls
        self._failing = failing

    def _note(self, name: str, partitions: Collection[Any] = ()) -> None:
        self._calls.append(" ".join([name, *sorted(str(each) for each in partitions)]))
        if name == self._failing:
            raise BrokerError(
                "BROKER_GONE", f"{name} failed.", facts={"call": len(self._calls)}, retriable=True
            )

    def topics(self) -> Mapping[str, TopicView]:
        self._note("topics")
        return self._view.topics()

    def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
        self._note("describe", names)
        return self._view.describe(names)

    def earliest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._note("earliest", partitions)
        return self._view.earliest(partitions)

    def latest(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._note("latest", partitions)
        return self._view.latest(partitions)

    def at_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        self._note("at_time", times_ms)
        return self._view.at_time(times_ms)

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        self._note(f"committed by {group}", partitions)
        return self._view.committed(group, partitions)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        self._note("epoch_ends", epochs)
        return self._view.epoch_ends(epochs)

    def peek(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Peek]:
        self._note("peek", positions)
        return self._view.peek(positions)

    def close(self) -> None:
        self._calls.append("close")
        self._view.close()


class WatchedLog:
    """Topic `t` with two partitions of five records, times 0, 10, .. 40; the first views can fail."""

    def __init__(self, *, failing: str | None = None, failures: int = 0) -> None:
        self.log = MemoryLog()
        self.log.create_topic("t", 2)
        for partition in range(2):
            for number in range(5):
                self.log.append("t", partition, value=b"x", timestamp_ms=10 * number)
        self.calls: list[str] = []
        self.pauses: list[float] = []
        self.opened = 0
        self._failing, self._failures = failing, failures

    def open_view(self) -> LogView:
        self.opened += 1
        failing = self._failing if self.opened <= self._failures else None
        return WatchedView(self.log, self.calls, failing)

    def survey(self, options: ReadOptions, now_ms: int = 0) -> Any:
        return survey(self.open_view, options, now_ms=now_ms, pause=self.pauses.append)


def parse(**options: str) -> ReadOptions:
    base = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    return parse_batch_options({**base, **options}, unique="u")


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, ["describe t"]),
        ({"minPartitions": "2"}, ["describe t"]),
        ({"minPartitions": "3"}, ["describe t", "earliest t-0 t-1", "latest t-0 t-1"]),
        ({"maxRecordsPerPartition": "3"}, ["describe t", "earliest t-0 t-1", "latest t-0 t-1"]),
        ({"startingTimestamp": "20"}, ["describe t", "at_time t-0 t-1", "latest t-0 t-1"]),
        ({"endingTimestamp": "20"}, ["describe t", "at_time t-0 t-1"]),
        ({"endingTimestamp": "99"}, ["describe t", "at_time t-0 t-1", "latest t-0 t-1"]),
        ({"endingOffsets": '{"t":{"0":4,"1":-1}}'}, ["describe t", "latest t-0"]),
        (
            {"startingOffsets": '{"t":{"0":1,"1":-2}}'},
            ["describe t", "earliest t-0", "latest t-0"],
        ),
        (
            {"startingOffsets": "committed", "kafka.group.id": "g"},
            ["describe t", "committed by g t-0 t-1", "earliest t-0 t-1", "latest t-0 t-1"],
        ),
    ],
)
def test_only_what_the_rules_need_is_asked(options: dict[str, str], calls: list[str]) -> None:
    """F15, F20, F28: afterwards the view is given back."""
    log = WatchedLog()
    log.survey(parse(**options))
    assert log.calls == [*calls, "close"]


def test_a_pattern_asks_for_all_topics() -> None:
    log = WatchedLog()
    options = parse_batch_options({"kafka.bootstrap.servers": "b:1", "subscribePattern": "t"}, unique="u")
    log.survey(options)
    assert log.calls == ["topics", "close"]


@pytest.mark.parametrize("failing", ["describe", "earliest", "latest", "at_time"])
def test_a_failing_call_is_repeated_with_a_fresh_view_and_then_succeeds(failing: str) -> None:
    """B134: for every kind of call; each failed view is closed."""
    log = WatchedLog(failing=failing, failures=2)
    snapshot = log.survey(parse(startingTimestamp="20", maxRecordsPerPartition="3", endingOffsets="-3"))
    assert snapshot.latest == {T0: 5, T1: 5}
    assert log.opened == 3
    assert log.calls.count("close") == 3
    assert log.pauses == [1.0, 1.0]


@pytest.mark.parametrize("options", [{"startingOffsets": "-3"}, {"startingTimestamp": "40"}], ids=str)
def test_an_end_that_went_back_is_asked_for_again(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F26: below the log's start, or below a record just found by its time; the next view is up to date."""
    log = WatchedLog()
    log.log.truncate_before("t", 0, 3)
    fresh, answers = WatchedView.latest, [{T0: 2, T1: 2}]

    def stale_once(view: WatchedView, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return answers.pop() if answers else fresh(view, partitions)

    monkeypatch.setattr(WatchedView, "latest", stale_once)
    snapshot = log.survey(parse(**options, maxRecordsPerPartition="3"))
    assert snapshot.latest == {T0: 5, T1: 5}
    assert log.opened == 2


@pytest.mark.parametrize("attempts", [1, 3, 5])
def test_after_the_last_attempt_the_original_error_is_raised(attempts: int) -> None:
    """B135: exactly this many attempts, and no pause after the last."""
    log = WatchedLog(failing="describe", failures=99)
    options = parse(**{"fetchOffset.numRetries": str(attempts), "fetchOffset.retryIntervalMs": "250"})
    with pytest.raises(BrokerError) as caught:
        log.survey(options)
    assert caught.value.condition == "BROKER_GONE"
    assert log.opened == attempts
    assert log.calls == ["describe t", "close"] * attempts
    assert log.pauses == [0.25] * (attempts - 1)


def test_a_view_that_cannot_be_opened_counts_as_an_attempt() -> None:
    """B135: a broker that cannot be reached is not tried more often."""
    tried: list[int] = []

    def open_view() -> LogView:
        tried.append(1)
        raise BrokerError("BROKER_UNREACHABLE", "No broker answers.", retriable=True)

    with pytest.raises(BrokerError, match="BROKER_UNREACHABLE"):
        survey(open_view, parse(), now_ms=0, pause=lambda seconds: None)
    assert len(tried) == 3


@pytest.mark.parametrize("last", ["BROKER_UNREACHABLE", "BROKER_TIMEOUT"])
def test_an_address_where_nobody_answers_for_all_of_a_calls_time_is_not_tried_again(last: str) -> None:
    """The call itself has used all of `default.api.timeout.ms`.

    A wrong address takes no longer, nor does a frozen broker: otherwise a stream would report no outage for
    three minutes.
    """
    tried: list[int] = []

    def open_view() -> LogView:
        tried.append(1)
        facts = {"last_condition": last}
        raise BrokerError("BROKER_TIMEOUT", "Waited in vain.", facts=facts, retriable=True)

    with pytest.raises(BrokerError, match="BROKER_TIMEOUT"):
        survey(open_view, parse(), now_ms=0, pause=lambda seconds: None)
    assert len(tried) == 1


def test_a_users_mistake_is_raised_at_once() -> None:
    log = WatchedLog()
    with pytest.raises(OptionError, match="DOES_NOT_MATCH_ASSIGNED"):
        log.survey(parse(startingOffsets='{"t":{"0":1}}'))
    assert log.opened == 1
    assert log.calls[-1] == "close"


def test_a_topic_that_is_not_known_yet_is_looked_for_again() -> None:
    """B134: the first broker asked may not know a topic that was created a moment ago."""
    log = WatchedLog()

    def create_while_waiting(_seconds: float) -> None:
        log.log.create_topic("new")

    snapshot = survey(log.open_view, parse(subscribe="new"), now_ms=0, pause=create_while_waiting)
    assert set(snapshot.topics) == {"new"}


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"startingTimestamp": "20", "endingTimestamp": "40"}, (At(2), At(4))),
        ({"startingOffsets": "-3"}, (At(2), Latest())),
        ({"startingOffsets": "-30s", "endingOffsets": '{"t":"latest"}'}, (At(2), Latest())),
        ({"startingOffsets": "committed", "kafka.group.id": "g"}, (At(4), Latest())),
        ({"startingTimestamp": "99", "startingOffsetsByTimestampStrategy": "latest"}, (At(5), Latest())),
    ],
)
def test_a_survey_answers_all_a_plan_asks(options: dict[str, str], bounds: tuple[object, object]) -> None:
    """B088, F20, F28: from option text to bounds, over a log that behaves like Kafka's."""
    log = WatchedLog()
    log.log.commit_offsets("g", {T0: 4, T1: 4})
    parsed = parse(**options)
    decided = step(parsed.reading, log.survey(parsed, now_ms=30_020), parsed.limits)
    assert [(each.start, each.until) for (each,) in decided.tasks] == [bounds, bounds]


def test_a_time_finds_the_first_record_at_or_after_it_though_times_go_back() -> None:
    """The times are 5, 3, 9, 4: for 4 the answer is the first record, not the one with time 4."""
    log = MemoryLog()
    log.create_topic("t")
    for time_ms in (5, 3, 9, 4):
        log.append("t", 0, value=b"x", timestamp_ms=time_ms)
    options = parse(startingTimestamp="4")
    decided = step(
        options.reading, survey(log.view, options, now_ms=0, pause=lambda seconds: None), options.limits
    )
    assert decided.tasks[0][0].start == At(0)


def test_a_refused_login_is_not_tried_again() -> None:
    """Repeating a wrong password can lock an account."""
    tried = 0

    def open_view() -> LogView:
        nonlocal tried
        tried += 1
        raise BrokerError("AUTHENTICATION_FAILED", "The broker refuses alice.")

    options = parse_batch_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x")
    with pytest.raises(BrokerError, match="AUTHENTICATION_FAILED"):
        survey(open_view, options, now_ms=0, pause=lambda seconds: None)
    assert tried == 1


@pytest.mark.parametrize(
    "end", [{"endingOffsets": '{"t":{"0":9,"1":-1}}'}, {"endingOffsets": "committed", "kafka.group.id": "g"}]
)
def test_an_end_beyond_the_log_is_asked_for_again_because_it_may_be_on_its_way(end: dict[str, str]) -> None:
    """A transaction that was just committed is visible a moment later; so are records not yet replicated."""
    log = WatchedLog()
    log.log.commit_offsets("g", {T0: 9, T1: 5})
    options = parse(**end)

    def write_while_waiting(_seconds: float) -> None:
        for _ in range(4):
            log.log.append("t", 0, value=b"x")

    snapshot = survey(log.open_view, options, now_ms=0, pause=write_while_waiting)
    decided = step(options.reading, snapshot, options.limits)
    assert snapshot.latest[T0] == 9
    assert decided.unwritten == ()
    assert log.opened == 2


@pytest.mark.parametrize("limits", [{}, {"maxRecordsPerPartition": "2"}], ids=str)
def test_an_end_that_stays_beyond_the_log_is_told_with_both_ends(limits: dict[str, str]) -> None:
    log = WatchedLog()
    options = parse(startingOffsets='{"t":{"0":7,"1":-2}}', endingOffsets='{"t":{"0":9,"1":8}}', **limits)
    snapshot = log.survey(options)
    assert log.pauses == [1.0, 1.0]
    decided = step(options.reading, snapshot, options.limits)
    assert decided.unwritten == (OffsetRange("t", 0, 7, 9), OffsetRange("t", 1, 5, 8))
    assert {each.partition for task in decided.tasks for each in task} == {1}
    assert decided.tasks[-1][-1].until == At(5)
    error = explain_unwritten(decided.unwritten, snapshot.latest, committed_only=False)
    assert error.condition == "END_BEYOND_LOG"
    told = str(error)
    assert "t-0 ends at 5, 9 was asked for" in told
    assert "t-1 ends at 5, 8 was asked for" in told
    assert "transaction" not in told
    committed = explain_unwritten(decided.unwritten, snapshot.latest, committed_only=True)
    assert "transaction" in str(committed)
