"""The loop of a direct stream over a log in memory: what is planned, stored, retried and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from penstock.core.errors import BrokerError, DataLossError, OffsetStoreError, OptionError, SinkError
from penstock.core.model import At, Earliest, LogView, OffsetRange, Position, Reader, TopicPartition
from penstock.core.offsets.offset_store_contract import goes_back
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_options import DirectOptions, parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.engines.direct import batch_loop as loop_module
from penstock.engines.direct.batch_loop import BatchLoop, Job, LoopSettings
from penstock.engines.direct.direct_backpressure import DirectPace
from penstock.engines.direct.direct_batch import Batch, BatchReport
from penstock.engines.direct.direct_start import find_start
from penstock.engines.direct.offset_keeper import Keeper
from penstock.engines.direct.run_reports import Event
from penstock.engines.direct.stop_requests import StopSwitch
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.testing.memory_log import MemoryLog

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@dataclass(frozen=True)
class Source:
    log: MemoryLog

    def open_view(self) -> LogView:
        return self.log.view()

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        return self.log.reader(report)


@dataclass
class World:
    """One stream over one log; `run` runs it once, like a program that ends afterwards."""

    log: MemoryLog
    store: MemoryOffsetStore = field(default_factory=MemoryOffsetStore)
    told: list[tuple[Event, BatchReport]] = field(default_factory=list)
    batches: list[tuple[OffsetRange, ...]] = field(default_factory=list)
    planned: StreamPosition | None = None
    keeper: Keeper | None = None

    def run(
        self,
        work: Callable[[Batch], int | None] = lambda batch: None,
        *,
        delivery: Any = "at-least-once",
        manual: bool = False,
        attempts: int = 3,
        empty: bool = False,
        batches: int | None = None,
        conf: Mapping[str, str] | None = None,
        reset: str = "earliest",
        starting: Mapping[Any, Any] | None = None,
        seek: Mapping[TopicPartition, Position] | None = None,
        switch: StopSwitch | None = None,
        interval_ms: int = 0,
        clock: Callable[[], float] = time.monotonic,
        outage_s: float = 0.0,
        reach: Callable[[], None] = lambda: None,
        is_written: Callable[[Any, Any], bool] = lambda _before, _end: False,
        **options: object,
    ) -> list[int]:
        """Run the stream and return the sizes of this run's batches."""
        parsed = make_options(conf or {}, reset, starting or {}, options)
        stream = parsed.stream
        pace = None if stream.pacing is None else DirectPace(stream.pacing, learns=stream.learns)
        self.keeper = Keeper(self.store, "s")
        first = len(self.batches)

        def note(batch: Batch) -> int | None:
            self.batches.append(batch.ranges)
            return work(batch)

        watch = StreamWatch(parsed.stream, Source(self.log), pace=pace)
        with closing(switch or StopSwitch()) as stop:
            stored = self.keeper.load()
            start = find_start(watch, parsed, stored, seek or {})
            if stored is None or seek:
                self.keeper.keep(start, may_go_back=bool(seek))
            job = Job(
                lambda before, end: None,  # type: ignore[arg-type, return-value]
                note,
                lambda *told: self.told.append(told),
                reach=reach,
                is_written=is_written,
            )
            settings = LoopSettings(
                interval_ms, attempts, empty, None if manual else delivery, manual, outage_s
            )
            loop = BatchLoop(settings, start, watch, pace, self.keeper, stop, job, clock=clock)
            try:
                loop.run(batches, until_idle=batches is None)
            finally:
                self.planned = loop.planned
        return [sum(each.size for each in ranges) for ranges in self.batches[first:]]

    def stored(self) -> dict[TopicPartition, int]:
        position = self.store.load("s")
        assert position is not None
        return dict(position.offsets)


def make_options(
    conf: Mapping[str, str], reset: str, starting: Mapping[Any, Any], options: Mapping[str, object]
) -> DirectOptions:
    return parse_direct_options(
        Subscribe("t", starting=starting),
        {"bootstrap.servers": "b:9092", "auto.offset.reset": reset},
        {"fetchOffset.retryIntervalMs": 0, **options},
        conf,
        interval_ms=1000,
        unique="u",
    )


@pytest.fixture
def world() -> World:
    log = MemoryLog()
    log.create_topic("t", 3)
    world = World(log)
    write(world, 10, 4, 1)
    return world


def write(world: World, *counts: int) -> None:
    for partition, count in enumerate(counts):
        for _ in range(count):
            world.log.append("t", partition, value=b"v", timestamp_ms=1000)


def test_without_limits_the_first_batch_takes_all_and_the_second_is_empty(world: World) -> None:
    """D23: the cold start, by counts."""
    assert world.run(batches=2, empty=True) == [15, 0]
    write(world, 0, 0, 7)
    assert world.run(batches=1) == [7]


def test_max_poll_records_bounds_nothing(world: World) -> None:
    """D25, I30: the batch has the same size with or without it."""
    parsed = parse_direct_options(
        Subscribe("t"),
        {"bootstrap.servers": "b:9092", "max.poll.records": 1},
        {},
        {},
        interval_ms=1,
        unique="u",
    )
    assert parsed.stream.pacing is None
    assert world.run() == [15]


def test_the_cap_per_partition_beats_the_initial_rate(world: World) -> None:
    """D28, I4, B222: with a cap of 1 and an initial rate of 5, one record of each partition."""
    conf = {
        "spark.streaming.backpressure.enabled": "true",
        "spark.streaming.backpressure.initialRate": "5",
        "spark.streaming.kafka.maxRatePerPartition": "1",
    }
    assert world.run(conf=conf, batches=3) == [3, 2, 2]
    assert [each.start for each in world.batches[2]] == [2, 2, 1]


def test_the_cap_holds_without_backpressure(world: World) -> None:
    """B218, D20: cap times seconds."""
    assert world.run(conf={"spark.streaming.kafka.maxRatePerPartition": "4"}) == [9, 4, 2]


def test_the_initial_rate_bounds_the_first_batch(world: World) -> None:
    """D27, B222: the cold start."""
    conf = {
        "spark.streaming.backpressure.enabled": "true",
        "spark.streaming.backpressure.initialRate": "6",
    }
    assert world.run(conf=conf, batches=1) == [6]


def test_a_small_rate_still_moves_every_partition_and_no_lag_divides_nothing(world: World) -> None:
    """B219, B223: shares that round to zero get one record; without lag nothing is computed."""
    conf = {
        "spark.streaming.backpressure.enabled": "true",
        "spark.streaming.backpressure.initialRate": "1",
    }
    world.run(conf=conf, batches=1)
    assert all(each.size == 1 for each in world.batches[0])
    world.run()
    assert world.run(conf=conf, batches=1, empty=True) == [0]


def test_a_failing_batch_is_tried_again_with_the_same_ranges(world: World) -> None:
    """G9: as a whole; records written meanwhile are not in it."""
    failures = [ValueError("once"), ValueError("twice")]

    def work(_batch: Batch) -> None:
        if failures:
            write(world, 1, 0, 0)
            raise failures.pop()

    assert world.run(work, batches=1) == [15, 15, 15]
    assert len(set(world.batches)) == 1
    assert [event for event, _ in world.told] == [
        "submitted", "started", "failed", "started", "failed", "started", "completed",
    ]  # fmt: skip
    assert world.told[-1][1].attempts == 3
    assert world.stored() == {T0: 10, T1: 4, T2: 1}


def test_what_an_attempt_has_set_is_called_once_when_a_later_one_finds_the_batch_done(world: World) -> None:
    """A COMMIT was not answered: the attempt that made the results failed, and the next makes none."""
    told: list[tuple[str, int]] = []
    attempts: list[int] = []

    def work(batch: Batch) -> int | None:
        attempts.append(batch.id)
        if batch.id == 0 and len(attempts) == 1:
            batch.when_done(lambda report: told.append(("forgotten", report.attempts)))
            batch.when_done(lambda report: told.append(("results", report.attempts)))
            raise ValueError("not answered")
        assert world.told[-1][0] == "started"
        return None

    answers = [True, False]  # for the attempts after the first
    world.run(work, empty=True, batches=2, is_written=lambda _before, _end: bool(attempts) and answers.pop(0))
    assert attempts == [0, 1]
    assert told == [("results", 2)], "nothing of one batch is left for the next"


def test_what_a_failed_attempt_has_set_is_not_called_for_a_later_one_that_sets_nothing(world: World) -> None:
    """The results are the later attempt's; the first one's function would report some that never existed."""
    told: list[BatchReport] = []

    def work(batch: Batch) -> None:
        if not any(event == "failed" for event, _ in world.told):
            batch.when_done(told.append)
            raise ValueError("before anything was written")

    world.run(work, batches=1)
    assert world.told[-1][1].attempts == 2
    assert told == []


def test_a_batch_that_fails_too_often_ends_the_stream_and_its_offsets_are_not_stored(world: World) -> None:
    """D19, H7, G4: planned and committed positions are different things."""

    def work(_batch: Batch) -> None:
        raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        world.run(work, attempts=2)
    assert world.stored() == {T0: 0, T1: 0, T2: 0}
    assert world.planned is not None
    assert world.planned.offsets == {T0: 10, T1: 4, T2: 1}
    assert world.told[-1][1].error == "never"
    assert world.run() == [15]


def test_an_error_that_cannot_pass_is_not_tried_again(world: World) -> None:
    def work(_batch: Batch) -> None:
        raise SinkError("WRITER_FENCED", "Another writer.", hint="Run one.")

    with pytest.raises(SinkError):
        world.run(work)
    assert len(world.batches) == 1


def test_at_most_once_stores_before_the_work_and_never_repeats(world: World) -> None:
    """G3, C1: a failed batch is lost, as the mode says."""

    def work(_batch: Batch) -> None:
        assert world.stored() == {T0: 10, T1: 4, T2: 1}
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        world.run(work, delivery="at-most-once")
    write(world, 0, 2, 0)
    assert world.run(delivery="at-most-once") == [2]
    assert world.batches[-1][1] == OffsetRange("t", 1, 4, 6)


def test_at_least_once_stores_after_the_work(world: World) -> None:
    """G4: while a batch runs, the store has the end of the one before."""
    seen = []
    world.run(lambda batch: seen.append(world.stored()[T0]), maxOffsetsPerTrigger=8)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert world.stored() == {T0: 10, T1: 4, T2: 1}


def test_a_restart_goes_on_where_the_store_says_and_a_given_start_is_ignored_then(world: World) -> None:
    """D7, D38, C8, B17: recovered positions win over the user's start."""
    world.run(maxOffsetsPerTrigger=6, batches=1)
    stored = world.stored()
    world.run(starting={("t", 0): 0}, batches=1)
    assert {each.topic_partition: each.start for each in world.batches[1]} == stored


def test_one_partition_without_a_position_does_not_send_the_others_back(world: World) -> None:
    """C19: a partition added later starts at its own beginning, and no other partition moves."""
    world.run()
    world.log.add_partitions("t", 4)
    world.log.append("t", 3, value=b"new", timestamp_ms=1)
    write(world, 1, 0, 0)
    assert world.run(reset="latest") == [2]
    assert OffsetRange("t", 3, 0, 1) in world.batches[-1]
    assert OffsetRange("t", 0, 10, 11) in world.batches[-1]


def test_partitions_that_appear_while_it_runs_are_included(world: World) -> None:
    """D11: the next batch finds them and reads from their first offset."""

    def work(batch: Batch) -> None:
        if batch.id == 0:
            world.log.add_partitions("t", 4)
            world.log.append("t", 3, value=b"new", timestamp_ms=1)

    assert world.run(work) == [15, 1]


def test_a_seek_overrules_what_is_stored(world: World) -> None:
    """B19, C18: even backwards."""
    world.run()
    assert world.run(seek={T0: At(7), T1: Earliest()}) == [7]
    assert world.stored() == {T0: 10, T1: 4, T2: 1}


def test_a_start_after_the_end_is_an_error_with_facts(world: World) -> None:
    """D16: it never makes a range that runs backwards."""
    with pytest.raises(OptionError) as raised:
        world.run(seek={T0: At(99)})
    assert raised.value.facts == {"partition": "t-0", "start": 99, "end": 10}
    world.store.save("s", StreamPosition({T0: 99, T1: 0, T2: 0}))
    with pytest.raises(DataLossError) as lost:
        world.run()
    assert lost.value.condition == "PARTITION_OFFSET_CHANGED"
    assert world.batches == []


def test_a_batch_can_be_committed_only_while_it_runs(world: World) -> None:
    """D34, T31: a batch that was kept and committed later raises an error."""
    kept = []

    def work(batch: Batch) -> None:
        kept.append(batch)
        if batch.id == 0:
            batch.commit()

    world.run(work, manual=True, maxOffsetsPerTrigger=5, batches=2)
    first = {each.topic_partition: each.until for each in world.batches[0]}
    assert world.stored() == first
    for batch in kept:
        with pytest.raises(OffsetStoreError) as raised:
            batch.commit()
        assert raised.value.condition == "COMMIT_OUTSIDE_BATCH"
    assert world.stored() == first


def test_a_manual_batch_that_is_never_committed_stores_nothing(world: World) -> None:
    """C2, C24: direct mode stores nothing on its own."""
    assert world.run(manual=True) == [15]
    assert world.stored() == {T0: 0, T1: 0, T2: 0}
    assert world.run(manual=True) == [15]


def test_a_stream_that_commits_by_itself_says_so_when_asked_to_commit(world: World) -> None:
    def work(batch: Batch) -> None:
        with pytest.raises(OffsetStoreError) as raised:
            batch.commit()
        assert raised.value.condition == "COMMIT_NOT_MANUAL"

    world.run(work)


def test_this_store_commits_only_synchronously_and_says_so(world: World) -> None:
    def work(batch: Batch) -> None:
        with pytest.raises(OffsetStoreError) as raised:
            batch.commit_async()
        assert raised.value.condition == "COMMIT_NOT_ASYNC"

    world.run(work, manual=True)


def test_storing_is_timed_inside_the_batch(world: World) -> None:
    """C23: the report shows how long storing took."""
    world.run(lambda batch: batch.commit(), manual=True)
    report = world.told[-1][1]
    assert report.storing_ms > 0


def test_a_report_counts_each_range_once_and_cannot_be_changed(world: World) -> None:
    """D18, D41, B217: the text has no empty ranges; the counts submitted, started and completed agree."""
    world.run()
    counts = {event: report.offsets for event, report in world.told}
    assert counts == {"submitted": 15, "started": 15, "completed": 15}
    write(world, 0, 3, 0)
    world.told.clear()
    world.run(batches=1)
    report = world.told[-1][1]
    assert str(report) == "topic: t\tpartition: 1\toffsets: 4 to 7"
    assert [each.size for each in report.ranges] == [0, 3, 0]
    with pytest.raises(FrozenInstanceError):
        report.id = 5  # type: ignore[misc]


def test_a_batch_begins_only_when_the_one_before_is_stored(world: World) -> None:
    """G18: batches come one after another, and commits only grow."""
    world.run(maxOffsetsPerTrigger=4)
    order = [(report.id, event) for event, report in world.told]
    assert order == sorted(order, key=lambda each: each[0])
    commits = [report.committed.offsets[T0] for event, report in world.told if report.committed]
    assert commits == sorted(commits)


def test_a_stored_stream_that_lost_all_its_offsets_is_an_error(world: World) -> None:
    """T36: it never silently starts afresh; a seek, as the error advises, starts afresh deliberately."""
    world.store.save("s", StreamPosition({}))
    with pytest.raises(OffsetStoreError) as raised:
        world.run()
    assert raised.value.condition == "STORED_OFFSETS_LOST"
    assert world.run(seek={T0: At(8), T1: At(4), T2: At(1)}) == [2]


@pytest.mark.parametrize("manual", [False, True])
def test_a_log_that_was_cut_off_is_gone_on_with_where_it_was_cut(world: World, manual: bool) -> None:
    """After an unclean election, with failOnDataLoss=false, the store accepts an earlier position."""

    def work(batch: Batch) -> None:
        if manual:
            batch.commit()

    world.run(work, manual=manual)
    world.log.truncate_after("t", 0, 6)
    write(world, 2)
    assert world.run(work, manual=manual, failOnDataLoss=False) == [2]
    assert world.stored()[T0] == 8
    write(world, 1)
    assert world.run(work, manual=manual, failOnDataLoss=False) == [1]


def test_a_log_that_was_gone_and_comes_back_cut_off_goes_back_as_well() -> None:
    """A Kafka group keeps what was committed for it and would refuse the place where the log was cut."""
    gone = StreamPosition({T1: 4}, gone={T0: 10})
    assert goes_back(gone, StreamPosition({T0: 8, T1: 4}))
    assert not goes_back(gone, StreamPosition({T0: 10, T1: 4}))


def test_a_clock_that_is_set_back_holds_nothing_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next batch comes after one interval, not an hour later when the clock has caught up."""
    waits: list[float] = []

    class Switch(StopSwitch):
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return False

    clock = iter([5_000, 5_000, 5_000 - 3_600_000, *[6_000 - 3_600_000] * 9])
    monkeypatch.setattr(loop_module.time, "time_ns", lambda: next(clock) * 1_000_000)
    world.run(switch=Switch(), batches=2, empty=True, interval_ms=1000)
    assert waits == [0, 1]
    assert [report.time_ms for event, report in world.told if event == "completed"] == [5_000, 6_000]


def test_reset_none_needs_a_start_for_every_partition(world: World) -> None:
    """D12, C7, B214: without a start the error surfaces; with explicit ones it does not."""
    with pytest.raises(OffsetStoreError) as raised:
        world.run(reset="none", starting={("t", 0): 1})
    assert raised.value.condition == "NO_STORED_OFFSET"
    assert raised.value.facts["partitions"] == ["t-1", "t-2"]
    assert world.run(reset="None", starting={("t", 0): 1, ("t", 1): 0, ("t", 2): 0}) == [14]


def test_the_largest_offset_skips_old_rows(world: World) -> None:
    """B213, C5: `latest` is resolved once, at the first run."""
    assert world.run(reset="latest") == []
    write(world, 1, 1, 1)
    assert world.run(reset="latest") == [3]


def test_earliest_is_the_start_of_the_log_not_zero(world: World) -> None:
    """C5, C20: as it is after retention."""
    world.log.truncate_before("t", 0, 6)
    assert world.run() == [9]
    assert world.batches[0][0] == OffsetRange("t", 0, 6, 10)


def test_what_aged_out_while_the_stream_was_down_is_reported(world: World) -> None:
    """C20: it is an error, or a loss that is stepped over and reported."""
    world.run(maxOffsetsPerTrigger=3, batches=1)
    world.log.truncate_before("t", 0, 8)
    with pytest.raises(DataLossError):
        world.run()
    assert world.run(failOnDataLoss=False) == [2 + 3 + 0 + (1 if world.batches[0][2].size == 0 else 0)]


def test_a_batch_without_records_says_nothing_about_speed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no time, so with the records of the previous batch it would look like a very fast one."""
    seen: list[object] = []
    monkeypatch.setattr(DirectPace, "observe", lambda self, *given: seen.append(given))
    assert world.run(conf={"spark.streaming.backpressure.enabled": "true"}, batches=3, empty=True) == [
        15,
        0,
        0,
    ]
    assert len(seen) == 1


def test_backpressure_makes_batches_smaller_when_work_is_slow_and_bigger_when_it_is_fast() -> None:
    """D26, B220, B221, I1: they shrink, then recover; the cap is never exceeded."""
    options = make_options(
        {"spark.streaming.backpressure.enabled": "true"}, "earliest", {}, {"maxRatePerPartition": 600}
    )
    assert options.stream.pacing is not None
    pace = DirectPace(options.stream.pacing, learns=True)
    lags = {T0: 100_000, T1: 100_000}

    def measure(second: int, records: int, took_ms: float) -> int:
        pace._records, pace._was_limited = records, True
        pace.observe(second * 1000, took_ms, 0.0)
        budget = pace.budget(lags)
        assert budget is not None
        assert max(budget.values()) <= 600
        return sum(budget.values())

    measure(1, 1000, 1000)
    assert measure(2, 1000, 1000) == 1000
    slow = measure(3, 1000, 5000)
    assert slow < 400
    assert measure(4, slow, 100) > slow
    assert [measure(second, 1200, 100) for second in range(5, 9)][-1] == 1200


def test_a_stream_that_is_asked_to_stop_finishes_its_batch(world: World) -> None:
    """D30, G18: the running batch is stored, and no other begins."""
    switch = StopSwitch()

    def work(_batch: Batch) -> None:
        switch.set("enough")

    assert world.run(work, switch=switch, maxOffsetsPerTrigger=4, batches=99)[0] <= 4
    assert len(world.batches) == 1
    assert world.stored() == {each.topic_partition: each.until for each in world.batches[0]}


class Counting:
    """A source that counts what views are asked; records are never read here."""

    def __init__(self, log: MemoryLog) -> None:
        self.log, self.asked = log, []  # type: ignore[var-annotated]
        self.failures = 0

    def open_view(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise BrokerError("BROKER_FAILED", "down", hint="wait", retriable=True)
        return Asked(self.log.view(), self.asked)

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        raise AssertionError("looking reads no record")


class Asked:
    def __init__(self, view: LogView, asked: list[str]) -> None:
        self._view, self._asked = view, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        return getattr(self._view, name)


def test_looking_moves_nothing_and_ends_come_from_the_brokers(world: World) -> None:
    """D8, D9, D10, D15, B228, B21: positions stay the same; nothing is read, and no group is joined."""
    source = Counting(world.log)
    options = make_options({}, "earliest", {("t", 1): 2}, {})
    watch = StreamWatch(options.stream, source)
    start = find_start(watch, options, None, {})
    assert start.offsets == {T0: 0, T1: 2, T2: 0}
    first = watch.find_end(start, take_all=False)
    write(world, 1, 0, 0)
    second = watch.find_end(start, take_all=False)
    assert first.offsets == {T0: 10, T1: 4, T2: 1}
    assert second.offsets == {T0: 11, T1: 4, T2: 1}
    assert start.offsets == {T0: 0, T1: 2, T2: 0}
    assert set(source.asked) <= {"describe", "latest", "earliest", "close"}


@pytest.mark.parametrize(("failures", "works"), [(1, True), (2, False)])
def test_a_look_up_is_tried_again_as_often_as_said(world: World, failures: int, works: bool) -> None:
    """D22, I34: it is retried once, as the setting says."""
    source = Counting(world.log)
    options = make_options({"spark.streaming.kafka.maxRetries": "1"}, "earliest", {}, {})
    watch = StreamWatch(options.stream, source)
    start = find_start(watch, options, None, {})
    source.failures = failures
    if works:
        assert watch.find_end(start, take_all=False).offsets[T0] == 10
    else:
        with pytest.raises(BrokerError):
            watch.find_end(start, take_all=False)


class NeverDone(MemoryOffsetStore):
    """A store that accepts asynchronous commits and is killed before it sends them."""

    is_async = True

    def save_async(self, stream: str, position: StreamPosition, callback: object) -> None:
        """Only queue the position."""


def test_an_asynchronous_commit_that_was_never_sent_repeats_its_batch(world: World) -> None:
    """G15, D36: late or lost, so delivery is at least once; what was only queued is not committed."""
    world.store = NeverDone()
    assert world.run(lambda batch: batch.commit_async(), manual=True) == [15]
    assert world.keeper is not None
    assert world.keeper.committed is not None
    assert world.keeper.committed.offsets[T0] == 0
    assert world.run(lambda batch: batch.commit_async(), manual=True) == [15]


def test_what_is_stored_is_the_end_of_the_range_whatever_lies_before_it(world: World) -> None:
    """T34: transaction markers at the end are passed, not waited for and not read again."""
    world.log.skip("t", 0, 3)
    assert world.run() == [18]
    assert world.stored()[T0] == 13
    assert world.run() == []
