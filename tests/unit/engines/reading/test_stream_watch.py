"""The driver's side of a running stream, over a log in memory: what it asks, waits for and reports."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from penstock.core.errors import BrokerError, DataLossError, OffsetStoreError, OptionError
from penstock.core.model import LogView, Reader, TopicPartition, TopicView
from penstock.core.offsets.stream_position import Offsets, StreamPosition, write_position
from penstock.core.options.stream_options import StreamOptions, parse_stream_options
from penstock.engines.reading import stream_watch as engine
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.engines.source.listener_feedback import FeedbackPort, name_end, tell
from penstock.engines.source.stream_backpressure import Pace
from penstock.stores.loss_ledger import open_loss_ledger
from penstock.stores.offsets.commit_thread import CommitThread
from penstock.testing.memory_log import MemoryLog
from tests.support.waiting import wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(**options: str) -> StreamOptions:
    base = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}
    given = {key.replace("__", "."): text for key, text in options.items()}
    if "subscribePattern" in given:
        del base["subscribe"]
    return parse_stream_options({**base, **given}, unique="u")


class Clock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Start = Callable[..., tuple[StreamWatch, "Source"]]


class Source:
    """A log in memory; `change` may replace each new view, and `calls` counts what views are asked."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.calls: list[str] = []
        self.change: Callable[[LogView], LogView] = lambda view: view

    def open_view(self) -> LogView:
        return CountingView(self.change(self.log.view()), self.calls)  # type: ignore[return-value]

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        return self.log.reader(report)


class CountingView:
    def __init__(self, view: LogView, calls: list[str]) -> None:
        self._view, self._calls = view, calls

    def __getattr__(self, name: str) -> Any:
        if name != "close":
            self._calls.append(name)
        return getattr(self._view, name)


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create_topic("t", 2)
    return log


def write(log: MemoryLog, partition: int, count: int) -> None:
    for _ in range(count):
        log.append("t", partition, value=b"v", timestamp_ms=1000)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that makes a watch over a log; close the watches when the test ends."""
    made: list[StreamWatch] = []

    def start(log: MemoryLog, clock: Clock | None = None, **options: str) -> tuple[StreamWatch, Source]:
        source = Source(log)
        parsed, clock = parse(**options), clock or Clock()
        pace = None if parsed.pacing is None else Pace(parsed.pacing, clock)
        made.append(StreamWatch(parsed, source, pace=pace, clock=clock))
        return made[-1], source

    yield start
    for each in made:
        each.close()


# --- starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "offset"), [("latest", 3), ("earliest", 1), ("-1000", 1)])
def test_a_new_stream_resolves_its_start_to_numbers(
    start: Start, log: MemoryLog, option: str, offset: int
) -> None:
    """B021, F23: it keeps them, with the topic's id and the leaders' epochs."""
    write(log, 0, 3)
    log.truncate_before("t", 0, 1)
    position = start(log, startingOffsets=option)[0].resolve_start()
    assert position.offsets == position.starts == {T0: offset, T1: 0}
    assert position.topic_ids == {"t": log.view().topics()["t"].topic_id}
    assert position.leader_epochs == {T0: 0, T1: 0}


def test_a_stream_starts_at_what_a_group_committed_and_falls_back_where_it_is_told_to(
    start: Start, log: MemoryLog
) -> None:
    """T36: a missing commit is an error unless the user says where to start then."""
    write(log, 0, 3)
    write(log, 1, 4)
    log.commit_offsets("g", {T0: 2})
    options = {"startingOffsets": "committed", "kafka__group__id": "g"}
    with pytest.raises(OptionError, match=r"\[NO_COMMITTED_OFFSET\].*t-1"):
        start(log, **options)[0].resolve_start()
    for fallback, offset in (("earliest", 0), ("latest", 4)):
        watch, _ = start(log, **options, startingOffsetsFallback=fallback)
        assert watch.resolve_start().offsets == {T0: 2, T1: offset}


def test_a_start_beyond_the_log_is_an_error_with_both_offsets(start: Start, log: MemoryLog) -> None:
    with pytest.raises(OptionError, match="start offset 9 is greater than the end offset 0"):
        start(log, startingOffsets='{"t":{"0":9,"1":-2}}')[0].resolve_start()


# --- looking --------------------------------------------------------------------------------------


def test_an_idle_trigger_asks_two_questions(start: Start, log: MemoryLog) -> None:
    write(log, 0, 3)
    watch, source = start(log)
    position = watch.resolve_start()
    source.calls.clear()
    assert watch.find_end(position, take_all=False) is position
    assert source.calls == ["describe", "latest"]


def test_a_moved_leader_is_asked_about_once(start: Start, log: MemoryLog) -> None:
    """T12: the answer cannot change while the same leader leads the same topic."""
    write(log, 0, 3)
    watch, source = start(log)
    position = watch.resolve_start()
    log.move_leader("t", 0)
    for _ in range(3):
        assert watch.find_end(position, take_all=False) is position
    assert source.calls.count("epoch_ends") == 1


class Hiding:
    """A broker that lags behind: for some looks it does not know the topic, or reports an earlier end."""

    def __init__(self, view: LogView, *, topic: bool = False, records: int = 0, first: int = 0) -> None:
        self._view, self._topic, self._records, self._first = view, topic, records, first

    def describe(self, names: Any) -> Mapping[str, TopicView]:
        return {} if self._topic else self._view.describe(names)

    def latest(self, partitions: Any) -> Mapping[TopicPartition, int]:
        found = self._view.latest(partitions)
        return {each: end - self._records - self._first * (each == T0) for each, end in found.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


@pytest.mark.parametrize("trouble", [{"topic": True}, {"records": 2}])
def test_what_looks_like_loss_is_looked_at_again_before_it_is_believed(
    start: Start, log: MemoryLog, trouble: dict[str, Any]
) -> None:
    """B063, T13, T14: twice wrong, then right: there is no error, and nothing is read twice."""
    write(log, 0, 3)
    write(log, 1, 3)
    watch, source = start(log)
    position = watch.resolve_start()
    looks: list[int] = []

    def hide(view: LogView) -> LogView:
        looks.append(1)
        return Hiding(view, **trouble) if len(looks) < 3 else view  # type: ignore[return-value]

    source.change = hide
    assert watch.find_end(position, take_all=False) is position
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("trouble", "condition"),
    [({"topic": True}, "PARTITIONS_DELETED"), ({"records": 2}, "PARTITION_OFFSET_CHANGED")],
)
def test_what_stays_lost_is_an_error_with_its_condition(
    start: Start, log: MemoryLog, trouble: dict[str, Any], condition: str
) -> None:
    """B061, B063, F37: an error after three looks."""
    write(log, 0, 3)
    write(log, 1, 3)
    watch, source = start(log)
    position = watch.resolve_start()
    source.change = lambda view: Hiding(view, **trouble)  # type: ignore[return-value,assignment]
    with pytest.raises(DataLossError, match=condition):
        watch.find_end(position, take_all=False)


def test_an_end_that_went_back_and_grows_again_is_one_loss(start: Start, log: MemoryLog) -> None:
    """T13: it is reported once, wherever the end moves below the position, and causes no further looks."""
    write(log, 0, 9)
    watch, source = start(log, failOnDataLoss="false")
    position = watch.resolve_start()
    for hidden in (5, 4, 3):
        source.calls.clear()
        source.change = lambda view, hidden=hidden: Hiding(view, first=hidden)  # type: ignore[return-value,misc]
        assert watch.find_end(position, take_all=False) is position
    assert source.calls.count("latest") == 1
    report = watch.report()
    assert report is not None
    assert report["losses"] == {"ranges": 1, "offsets": 5, "openEnds": 0}


def test_a_topic_deleted_between_two_questions_is_looked_at_again(start: Start, log: MemoryLog) -> None:
    """F37, B061: it is then reported as gone, not as a broker's refusal."""
    write(log, 0, 3)
    log.create_topic("u")
    watch, source = start(log, subscribe="t,u", failOnDataLoss="false")
    position = watch.resolve_start()

    class Deleting(Hiding):
        def latest(self, partitions: Any) -> Mapping[TopicPartition, int]:
            if "u" in log.view().topics():
                log.delete_topic("u")
            return super().latest(partitions)

    source.change = Deleting  # type: ignore[assignment]
    write(log, 0, 1)
    end = watch.find_end(position, take_all=False)
    assert (end.offsets, list(end.gone)) == ({T0: 4, T1: 0}, [TopicPartition("u", 0)])


def test_topics_that_vanish_one_after_the_other_are_no_failure(start: Start, log: MemoryLog) -> None:
    """B058, B061: each look finds another deletion, more often than a failing broker would be retried."""
    others = [f"u{number}" for number in range(6)]
    for each in others:
        log.create_topic(each)
    watch, source = start(
        log, subscribe=",".join(["t", *others]), failOnDataLoss="false", **{"fetchOffset__numRetries": "2"}
    )
    position = watch.resolve_start()
    left = list(others)

    class Deleting(Hiding):
        def latest(self, partitions: Any) -> Mapping[TopicPartition, int]:
            if left:
                log.delete_topic(left.pop())
            return super().latest(partitions)

    source.change = Deleting  # type: ignore[assignment]
    write(log, 0, 1)
    end = watch.find_end(position, take_all=False)
    assert end.offsets == {T0: 1, T1: 0}
    assert sorted(each.topic for each in end.gone) == others


def test_a_partition_that_is_told_of_and_never_there_fails(start: Start, log: MemoryLog) -> None:
    """A broker that lists a partition and refuses it each time is a failure, and is not retried forever."""
    log.create_topic("u")
    watch, source = start(log, subscribe="t,u", **{"fetchOffset__numRetries": "2"})
    position = watch.resolve_start()

    class Refusing(Hiding):
        def latest(self, partitions: Any) -> Mapping[TopicPartition, int]:
            raise BrokerError("UNKNOWN_TOPIC_OR_PARTITION", "There is no partition u-0.")

    source.change = Refusing  # type: ignore[assignment]
    source.calls.clear()
    with pytest.raises(BrokerError, match=r"\[UNKNOWN_TOPIC_OR_PARTITION\]"):
        watch.find_end(position, take_all=False)
    assert source.calls.count("latest") == 3


def test_a_loss_that_was_believed_costs_no_further_looks(start: Start, log: MemoryLog) -> None:
    write(log, 0, 3)
    watch, source = start(log, failOnDataLoss="false")
    position = watch.resolve_start()
    source.change = lambda view: Hiding(view, topic=True)  # type: ignore[return-value,assignment]
    watch.find_end(position, take_all=False)
    source.calls.clear()
    watch.find_end(position, take_all=False)
    assert source.calls.count("describe") == 1


def test_a_broker_that_fails_is_asked_again_with_a_fresh_view(start: Start, log: MemoryLog) -> None:
    write(log, 0, 1)
    watch, source = start(log, startingOffsets="earliest")
    position = watch.resolve_start()
    failures = [BrokerError("BROKER_GONE", "No answer.", retriable=True)] * 2

    class Failing(Hiding):
        def latest(self, partitions: Any) -> Mapping[TopicPartition, int]:
            if failures:
                raise failures.pop()
            return super().latest(partitions)

    source.change = Failing  # type: ignore[assignment]
    assert watch.find_end(position, take_all=False).offsets == {T0: 1, T1: 0}


# --- losses ---------------------------------------------------------------------------------------


def test_a_loss_is_kept_in_the_ledger_before_the_stream_goes_on(
    start: Start, log: MemoryLog, tmp_path: Any
) -> None:
    """G12, B065: once, however often it is found; it is also counted in the progress."""
    write(log, 0, 9)
    place = tmp_path / "losses.db"
    watch, _ = start(log, startingOffsets="earliest", failOnDataLoss="false", lossLedger=str(place))
    position = watch.resolve_start()
    log.truncate_before("t", 0, 4)
    end = watch.find_end(position, take_all=False)
    assert (end.offsets[T0], end.starts[T0]) == (9, 4)
    watch.find_end(position, take_all=False)
    (recorded,) = open_loss_ledger(place, create=False).read()
    assert (recorded.loss.condition, recorded.loss.key) == ("START_OFFSET_RESET", ("t", 0, 0, 4))
    report = watch.report()
    assert report is not None
    assert report["losses"] == {"ranges": 1, "offsets": 4, "openEnds": 0}


def test_a_ledger_that_cannot_be_written_stops_the_query(start: Start, log: MemoryLog, tmp_path: Any) -> None:
    """A user who asks for a ledger wants no loss to be forgotten.

    So it is opened when the query starts, and a loss that cannot be written later ends the query too.
    """
    place = tmp_path / "no" / "such" / "folder" / "losses.db"
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
        start(log, failOnDataLoss="false", lossLedger=str(place))
    write(log, 0, 9)
    folder = tmp_path / "there"
    folder.mkdir()
    watch, _ = start(
        log, startingOffsets="earliest", failOnDataLoss="false", lossLedger=str(folder / "losses.db")
    )
    position = watch.resolve_start()
    log.truncate_before("t", 0, 4)
    (folder / "losses.db").unlink()
    folder.rmdir()
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
        watch.find_end(position, take_all=False)


# --- limits ---------------------------------------------------------------------------------------


def test_the_cap_holds_except_when_the_trigger_wants_all(start: Start, log: MemoryLog) -> None:
    """B037, F27, I18: `Once` ignores our limits."""
    write(log, 0, 90)
    write(log, 1, 10)
    watch, _ = start(log, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    position = watch.resolve_start()
    assert watch.find_end(position, take_all=False).offsets == {T0: 9, T1: 1}
    assert watch.find_end(position, take_all=True).offsets == {T0: 90, T1: 10}


def test_the_wait_for_a_minimum_counts_from_the_last_batch_on_a_monotonic_clock(
    start: Start, log: MemoryLog
) -> None:
    """B038, B039, T49: the wall clock is never used."""
    clock = Clock()
    watch, _ = start(log, clock, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    write(log, 0, 1)
    first = watch.find_end(watch.resolve_start(), take_all=False)
    assert first.offsets[T0] == 1  # the first batch never waits
    write(log, 0, 4)
    clock.now += 9.9
    assert watch.find_end(first, take_all=False) is first
    assert watch.find_end(first, take_all=True).offsets[T0] == 5  # and neither does `Once`
    clock.now += 10.1
    second = watch.find_end(first, take_all=False)
    assert second.offsets[T0] == 5
    write(log, 0, 5)
    assert watch.find_end(second, take_all=False).offsets[T0] == 10


def test_available_now_does_not_wait_for_a_minimum(start: Start, log: MemoryLog) -> None:
    """T47: no more records will come in this run."""
    write(log, 0, 1)
    watch, _ = start(log, startingOffsets="earliest", minOffsetsPerTrigger="5")
    watch.fix_targets()
    first = watch.find_end(watch.resolve_start(), take_all=False)
    write(log, 0, 9)
    assert first.offsets[T0] == 1
    assert watch.find_end(first, take_all=False) is first


def test_available_now_goes_on_without_a_topic_that_was_deleted_since(start: Start, log: MemoryLog) -> None:
    """At its start the run cannot know what the checkpoint says; missing names are resolved later."""
    log.create_topic("u", 1)
    write(log, 0, 3)
    options = {"subscribe": "t,u", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    watch, _ = start(log, **options)
    position = watch.find_end(watch.resolve_start(), take_all=True)
    log.delete_topic("u")
    write(log, 0, 2)
    watch, _ = start(log, **options)
    watch.fix_targets()
    assert watch.find_end(position, take_all=False).offsets == {T0: 5, T1: 0}
    strict, _ = start(log, **{**options, "failOnDataLoss": "true"})
    strict.fix_targets()
    with pytest.raises(DataLossError, match="PARTITIONS_DELETED"):
        strict.find_end(position, take_all=False)


def test_available_now_on_a_name_that_was_never_there_says_so(start: Start, log: MemoryLog) -> None:
    watch, _ = start(log, subscribe="t,nowhere", startingOffsets="earliest")
    watch.fix_targets()
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
        watch.resolve_start()


def test_available_now_on_a_pattern_that_matches_nothing_is_told(
    start: Start, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    watch, _ = start(log, subscribePattern="nothing.*")
    watch.fix_targets()
    assert "nothing to read" in caplog.text


def test_a_limit_in_bytes_becomes_records_by_their_size(start: Start, log: MemoryLog) -> None:
    for _ in range(1000):
        log.append("t", 0, value=b"v" * 93, timestamp_ms=1)
    watch, _ = start(log, startingOffsets="earliest", maxBytesPerTrigger="10000")
    taken = watch.find_end(watch.resolve_start(), take_all=False).offsets[T0]
    assert 90 <= taken <= 110


# --- backpressure -----------------------------------------------------------------------------------


def test_a_cold_start_with_an_initial_rate_is_never_the_whole_backlog(start: Start, log: MemoryLog) -> None:
    """B284, I1, I2, D27: with backpressure the rate then follows what the batches achieve."""
    write(log, 0, 5000)
    clock = Clock()
    options = {"backpressure__enabled": "true", "backpressure__initialRate": "200"}
    watch, _ = start(log, clock, startingOffsets="earliest", **options)
    position = watch.resolve_start()
    taken = []
    for _ in range(4):
        end = watch.find_end(position, take_all=False)
        taken.append(end.offsets[T0] - position.offsets[T0])
        clock.now += taken[-1] / 500  # the query processes 500 records a second
        position = end
    assert taken[:2] == [200, 200]
    assert all(495 <= each <= 500 for each in taken[2:])


def test_what_the_listener_tells_beats_the_readers_own_clock(start: Start, log: MemoryLog) -> None:
    """A batch that is done in 0.1 s and then waits for the next trigger did not take the whole interval."""
    write(log, 0, 5000)
    clock = Clock()
    options = {"backpressure__enabled": "true", "backpressure__initialRate": "100"}
    watch, _ = start(log, clock, startingOffsets="earliest", **options)
    position = watch.resolve_start()
    for _ in range(2):
        end = watch.find_end(position, take_all=False)
        report = watch.report()
        assert report is not None
        tell(report["pace"]["feedback"], write_position(end), 100)
        clock.now += 10
        position = end
    assert watch.find_end(position, take_all=False).offsets[T0] - position.offsets[T0] == 1000


def test_a_word_from_nobody_is_not_believed() -> None:
    """Every user of the computer can send to a port on the loopback."""
    with closing(FeedbackPort()) as port:
        number = port.address.partition("/")[0]
        tell(f"{number}/guess", {"version": 1}, 5)
        tell(port.address, {"version": 1}, -5)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for datagram in (b"[" * 60_000, '{"word":"é"}'.encode(), b"{", b"\xff", b"[]", b""):
                stranger.sendto(datagram, ("127.0.0.1", int(number)))
        tell(port.address, {"version": 1}, 7)
        found: list[Any] = []
        wait_until(lambda: found.extend(port.drain()) or bool(found), "the datagram is here")
    assert [(each.end, each.trigger_ms) for each in found] == [(name_end({"version": 1}), 7)]


# --- what is told -----------------------------------------------------------------------------------


def test_before_the_first_look_there_is_nothing_to_report(start: Start, log: MemoryLog) -> None:
    """B084: and it does not crash."""
    assert start(log)[0].report() is None


def test_the_report_has_the_ends_and_the_lag_behind_them(start: Start, log: MemoryLog) -> None:
    """B081, B083: records, seconds, and bytes as an estimate."""
    write(log, 0, 30)
    write(log, 1, 10)
    watch, _ = start(log, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    watch.find_end(watch.resolve_start(), take_all=False)
    report = watch.report()
    assert report is not None
    assert report["offsets"] == {"t": {"0": 30, "1": 10}}
    lag = report["lag"]
    assert (lag["minOffsetsBehindLatest"], lag["maxOffsetsBehindLatest"]) == (5, 15)
    assert (lag["avgOffsetsBehindLatest"], lag["records"]) == (10.0, 20)
    assert lag["seconds"] > 1_000_000  # the records are from 1970
    assert lag["bytesEstimate"] > 20
    assert lag["partitions"]["t"]["1"]["records"] == 5
    json.dumps(report)


def test_without_a_cap_nothing_is_behind(start: Start, log: MemoryLog) -> None:
    """B082: the metric is zero, not missing."""
    write(log, 0, 30)
    watch, _ = start(log, startingOffsets="earliest")
    watch.find_end(watch.resolve_start(), take_all=False)
    report = watch.report()
    assert report is not None
    assert {**report["lag"], "seconds": 0} == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 0,
        "avgOffsetsBehindLatest": 0.0,
        "records": 0,
        "seconds": 0,
        "bytesEstimate": 0,
    }


def test_new_partitions_are_told_and_counted(
    start: Start, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """F29: by name, once."""
    watch, _ = start(log)
    position = watch.resolve_start()
    log.add_partitions("t", 4)
    write(log, 2, 1)
    end = watch.find_end(position, take_all=False)
    assert watch.find_end(end, take_all=False) is end
    assert caplog.text.count("t-2, t-3") == 1
    report = watch.report()
    assert report is not None
    assert report["newPartitions"] == 2


# --- the group ------------------------------------------------------------------------------------


def test_finished_positions_are_committed_and_failures_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    """F34: the newest position wins, the same one is not committed twice, and an error stops nothing."""
    seen: list[Offsets] = []

    def commit(offsets: Offsets) -> None:
        if offsets == {T0: 2}:
            raise BrokerError("GROUP_HAS_MEMBERS", "Somebody else is in it.")
        seen.append(offsets)

    commits = CommitThread(commit, "g")
    for offset in (1, 1, 2, 3):
        commits.offer({T0: offset})
        assert commits.flush(10)
    assert (seen, commits.done, commits.failed) == ([{T0: 1}, {T0: 3}], 2, 1)
    for _ in range(2):
        commits.offer({T0: 2})  # what failed is retried when it is offered again
        assert commits.flush(10)
    assert commits.failed == 3
    told = [record.levelname for record in caplog.records if "group g" in record.getMessage()]
    assert told == ["WARNING", "WARNING"]  # the first failure, and the first one after a success


def test_a_slow_commit_holds_nobody_up_and_is_overtaken_by_the_newest() -> None:
    entered, release = threading.Event(), threading.Event()
    seen: list[Offsets] = []

    def commit(offsets: Offsets) -> None:
        entered.set()
        assert release.wait(10)
        seen.append(offsets)

    commits = CommitThread(commit, "g")
    commits.offer({T0: 1})
    assert entered.wait(10)
    for offset in (2, 3, 4):
        commits.offer({T0: offset})
    assert not commits.flush(0.01)
    release.set()
    assert commits.flush(10)
    assert seen == [{T0: 1}, {T0: 4}]


def test_a_stream_commits_where_it_stands_before_its_first_batch(
    start: Start, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F34: lag tools see the group at once, and it moves even while no records come."""
    offered: list[Offsets] = []

    class Noting:
        done = failed = 0

        def __init__(self, commit: object, group: str, **more: object) -> None:
            assert group == "g"

        def offer(self, offsets: Offsets) -> None:
            offered.append(offsets)

        def flush(self, timeout_s: float) -> bool:
            return True

    monkeypatch.setattr(engine, "CommitThread", Noting)
    watch, _ = start(log, commitOffsetsToGroup="g")
    position = watch.resolve_start()
    assert offered == [{T0: 0, T1: 0}]
    write(log, 0, 2)
    end = watch.find_end(position, take_all=False)
    watch.find_end(end, take_all=False)
    watch.finish(end)
    assert offered[-1] == {T0: 2, T1: 0}
    assert StreamPosition({}) not in offered


def test_what_is_told_of_a_loss_says_how_the_stream_goes_on(
    start: Start, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that are gone are skipped; a recreated topic is read from its start."""
    write(log, 0, 6)
    watch, _ = start(log, startingOffsets='{"t":{"0":1,"1":0}}', failOnDataLoss="false")
    position = watch.resolve_start()
    log.truncate_before("t", 0, 3)
    end = watch.find_end(position, take_all=True)
    assert "Going on without them (failOnDataLoss=false)." in caplog.text
    caplog.clear()
    log.delete_topic("t")
    log.create_topic("t", 2)
    write(log, 0, 4)
    anew = watch.find_end(end, take_all=True)
    assert anew.start_of(T0, end) == 0
    (told,) = [text for text in caplog.messages if text.startswith("[TOPIC_RECREATED] t-0")]
    assert "The new topic is read from its start, 0 (failOnDataLoss=false)." in told
    assert "without" not in told
    caplog.clear()
    log.delete_topic("t")
    watch.find_end(anew, take_all=True)
    assert "Going on without it (failOnDataLoss=false)." in caplog.text
