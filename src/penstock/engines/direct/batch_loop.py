"""The loop of a direct stream: runs one batch after another, each when it is due, and retries failing ones.

Rules: a batch begins only when the previous one is over, so what is stored only grows. A failing batch is
retried as a whole, with the same ranges and the same frame. When it has failed too often the stream ends, and
the stored offsets are the end of the previous batch (with at-most-once, of this one). When asked to stop, the
loop finishes its batch and takes as long as it needs to store the offsets: only looks at the log are cut
short. Where the first partitions begin is stored before they are read, because after a crash `latest` would
mean another place. The loop waits for an unavailable server no matter how often a batch has failed because of
it; `core.outages` says how long. It waits for a server that tasks cannot reach only if tasks have reached it
before: the driver reached it before the loop began, but tasks may use another address or run on another host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError, comes_from_task, find_verdict
from penstock.core.loggers import get_logger
from penstock.core.offsets.offset_store_contract import goes_back
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_options import DeliveryMode
from penstock.core.outages import TOLD_AFTER_S, Outage, has_stopped, is_outage, write_span
from penstock.core.streaming.batch_ticks import next_tick
from penstock.core.streaming.next_batch import list_ranges
from penstock.engines.direct.direct_backpressure import DirectPace
from penstock.engines.direct.direct_batch import Batch, BatchReport, BatchRun
from penstock.engines.direct.offset_keeper import Keeper
from penstock.engines.direct.run_reports import Event
from penstock.engines.direct.stop_requests import StopSwitch
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.stores.waiting_messages import repeating

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = get_logger(__name__)

#: The pause before a failed batch is tried again; it grows with each failure.
_RETRY_PAUSE_S = 0.2
#: The pauses after a server has failed the driver or a task: 1 s, then 5 s. By then a restarted database is
#: usually back.
_SERVER_PAUSE_S = 1.0
_SERVER_PATIENCE = 5.0
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop. If `delivery` is None, the loop itself stores nothing. `is_manual` says that the
    user's functions commit, and `outage_s` how long to wait for servers that are away."""

    interval_ms: int
    attempts: int
    empty_batches: bool
    delivery: DeliveryMode | None
    is_manual: bool
    outage_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """What to do with a batch. `work` returns the rows written, if a sink counts them. `tell` takes events.
    `register` stores where a stream begins if it finds its first partitions while it runs. `reach` raises an
    error while the sink does not answer. `is_written` says whether an attempt that got no answer wrote the
    batch."""

    make_frame: Callable[..., DataFrame]
    work: Callable[[Batch], int | None]
    tell: Callable[[Event, BatchReport], None]
    read_state: Callable[[str], DataFrame | None] = lambda _table: None
    register: Callable[[StreamPosition], None] = lambda _start: None
    reach: Callable[[], None] = lambda: None
    is_written: Callable[[StreamPosition, StreamPosition], bool] = lambda _before, _end: False


class BatchLoop:
    """One run of the loop. It belongs to one thread, but other threads may read `planned`. `tasks_answered`
    says that a batch with records is done, so that tasks have reached the servers they need."""

    def __init__(
        self,
        settings: LoopSettings,
        start: StreamPosition,
        watch: StreamWatch,
        pace: DirectPace | None,
        keeper: Keeper,
        switch: StopSwitch,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planned = start
        self.tasks_answered = False
        self._settings, self._watch, self._pace = settings, watch, pace
        self._keeper, self._switch, self._job = keeper, switch, job
        self._done = 0
        self._tick: int | None = None
        self._unregistered: StreamPosition | None = None
        self._clock = clock
        self._outage = Outage(settings.outage_s)
        self._last_failure = ""

    def run(self, most: int | None, until_idle: bool) -> int:
        """Run the batches and return how many are done, counting empty ones if those were asked for."""
        while not self._switch.is_set and (most is None or self._done < most):
            if not self._wait_for_tick():
                break
            is_new = self._run_batch()
            with self._switch.hearing():  # whatever is renewed is already stored
                self._keeper.renew()
            if not is_new and until_idle:
                break
        return self._done

    def _wait_for_tick(self) -> bool:
        """Wait until the next batch is due; return False if asked to stop meanwhile."""
        now_ms = time.time_ns() // 1_000_000
        if not self._settings.interval_ms:
            self._tick = now_ms
            return True
        self._tick = next_tick(self._tick, now_ms, self._settings.interval_ms)
        # At most one interval: if the clock was set back, it must not wait until the clock has caught up.
        wait_ms = min(max(0, self._tick - now_ms), self._settings.interval_ms)
        return not self._switch.wait(wait_ms / 1000)

    def _run_batch(self) -> bool:
        """Plan and run one batch; return False if there was nothing new."""
        begun_ms, begun = time.time_ns() / 1e6, time.monotonic()
        before = self.planned
        end = self._find_end(before)
        if self._switch.is_set:
            return False  # nothing has begun yet
        is_new = end is not before
        assert self._tick is not None
        if not is_new and not self._settings.empty_batches:
            if not self._settings.interval_ms:
                self._switch.wait(0.01)  # there is no blocking wait for records: look again soon
            return False
        if not before.offsets and end.offsets:
            before = self._unregistered = replace(end, offsets=end.starts)
        self.planned = end
        report = BatchReport(
            self._done,
            self._tick,
            list_ranges(before, end),
            planned=end,
            committed=self._keeper.committed,
            delay_ms=max(0.0, begun_ms - self._tick),
            planning_ms=(time.monotonic() - begun) * 1000,
        )
        self._job.tell("submitted", report)
        report, run = self._try_batch(report, before, end)
        self._done += 1
        self.tasks_answered |= bool(report.offsets)
        self._job.tell("completed", report)
        if run.when_done is not None:
            run.when_done(report)
        if self._pace is not None and is_new:  # a batch without records says nothing about speed
            took_ms = report.planning_ms + report.processing_ms + report.storing_ms
            self._pace.observe(int(time.monotonic() * 1000), took_ms, report.delay_ms)
        log.info("Batch %d: %d offsets in %.0f ms.", report.id, report.offsets, report.processing_ms)
        return is_new

    def _find_end(self, before: StreamPosition) -> StreamPosition:
        """Return the end of the next batch, or `before` if asked to stop while the brokers are away."""
        end = before

        def look() -> None:
            nonlocal end
            with self._switch.hearing():
                end = self._watch.find_end(before, take_all=False)
            if end is before:
                self._end_outage()  # if a batch follows, the outage ends only once that is done

        try:
            self._sit_out(look, "The brokers answer")
        except PenstockError as error:
            if not has_stopped(error):
                raise
        return end

    def _sit_out(self, act: Callable[[], None], answer: str = "") -> PenstockError | None:
        """Call `act`, and retry it while a server is away. Return None once it is done, or the last failure
        if asked to stop meanwhile. `answer` is what to log if it failed before and a batch is still to be
        done."""
        failure: PenstockError | None = None
        while failure is None or not self._switch.wait(self._outage.choose_pause_s()):
            begun_s = self._clock()
            try:
                act()
            except PenstockError as error:
                if not self._may_sit_out(error, begun_s):
                    raise
                failure = error
            else:
                if answer and failure is not None and self._outage.is_on:
                    span = _write_whole(self._outage.measure(self._clock()))
                    log.warning(
                        "%s again, %s after the first failure. Nothing is done yet: the batch follows.",
                        answer,
                        span,
                    )
                return None
        return failure

    def _is_outage(self, error: Exception) -> bool:
        return is_outage(error) and (self.tasks_answered or not comes_from_task(error))

    def _may_sit_out(self, error: Exception, begun_s: float) -> bool:
        """Return whether this is an outage that may continue. Log it now and then, and when its time is up.
        `begun_s` is when the failed call began."""
        if not self._is_outage(error):
            return False
        now_s = self._clock()
        self._outage.note(now_s, begun_s)
        self._last_failure = str(error)
        silent_s, rest_s = self._outage.measure(now_s), self._outage.find_rest_s(now_s)
        limit = write_span(self._outage.limit_s)
        if not rest_s:
            if self._outage.limit_s:
                span = _write_whole(silent_s)
                log.error("No success for %s, and no time left (outageTimeout is %s): %s", span, limit, error)
            return False
        if self._outage.is_due(now_s):
            log.warning(
                "A server does not answer%s. The stream waits up to %s in all (outageTimeout), %s more, then "
                "it ends; when restarted, it continues from where it was. The last failure: %s",
                f": no success for {_write_whole(silent_s)}" if silent_s else "",
                limit,
                f"{rest_s:.0f} s",
                error,
            )
        return True

    def _end_outage(self) -> None:
        lasted_s = self._outage.end(self._clock())
        if lasted_s is not None:
            log.warning("The stream goes on, after %s without success.", _write_whole(lasted_s))

    def _telling(self, report: BatchReport) -> AbstractContextManager[None]:
        """Return a context that, in an outage, logs now and then that an attempt is running. Its tasks may be
        waiting for an unavailable server, and the driver learns of that only when they have failed."""
        if not self._outage.is_on:
            return nullcontext()

        def tell() -> None:
            now_s = self._clock()
            if self._outage.is_due(now_s):
                log.warning(
                    "Batch %d is under way again (attempt %d), not done yet: no success for %s. If it fails, "
                    "the stream waits %.0f s more (outageTimeout is %s). The last failure: %s",
                    report.id,
                    report.attempts,
                    _write_whole(self._outage.measure(now_s)),
                    self._outage.find_rest_s(now_s),
                    write_span(self._outage.limit_s),
                    self._last_failure,
                )

        return repeating(tell, TOLD_AFTER_S)

    def _await_sink(self) -> bool:
        """Wait until the sink answers, so that no batch is run for nothing; return False if asked to stop."""
        is_stopping = self._switch.wait(self._outage.choose_pause_s())
        return not is_stopping and self._sit_out(self._job.reach, "The sink answers") is None

    def _try_batch(
        self, report: BatchReport, before: StreamPosition, end: StreamPosition
    ) -> tuple[BatchReport, BatchRun]:
        attempts = 1 if self._settings.delivery == "at-most-once" else self._settings.attempts
        attempt, failures = 1, 0  # `failures` does not count the outages that were waited out
        when_done = None
        while True:
            batch, run = self._make_batch(report, before, end)
            run.when_done = when_done
            report = replace(report, attempts=attempt)
            self._job.tell("started", report)
            since, begun_s = time.monotonic(), self._clock()
            try:
                with self._telling(report):
                    rows = self._do(batch, run)
            except Exception as error:
                was_running, run.is_running = run.is_running, False
                report = self._close_report(report, run, since, error=str(error))
                self._job.tell("failed", report)
                # With at-most-once, work that has begun is never repeated; storing before it may be.
                may_wait = self._settings.delivery != "at-most-once" or not was_running
                if may_wait and self._may_sit_out(error, begun_s):
                    log.info("Batch %d failed (attempt %d), trying again: %s", batch.id, attempt, error)
                    if not self._await_sink():
                        raise
                else:
                    # In an outage that exceeds its limit, every attempt counts.
                    failures = attempt if self._is_outage(error) else failures + 1
                    # Penstock's errors say whether a retry may help, those of tasks too. Others are retried.
                    if failures >= attempts or find_verdict(error) is False:
                        raise
                    log.warning("Batch %d failed (attempt %d), trying again: %s", batch.id, attempt, error)
                    if self._switch.wait(_choose_pause_s(error, failures)):
                        raise
            else:
                self._end_outage()
                return self._close_report(report, run, since, rows=rows), run
            attempt, when_done = attempt + 1, run.when_done

    def _make_batch(
        self, report: BatchReport, before: StreamPosition, end: StreamPosition
    ) -> tuple[Batch, BatchRun]:
        keeper, ranges = self._keeper, report.ranges
        is_manual, may_go_back = self._settings.is_manual, goes_back(before, end)
        run = BatchRun(
            before,
            end,
            lambda *stage: self._job.make_frame(before, end, *stage),
            (lambda position: self._keep(position, may_go_back)) if is_manual else None,
            (lambda position, callback: keeper.keep_later(position, ranges, callback))
            if is_manual and keeper.is_async
            else None,
            self._job.read_state,
        )
        return Batch(report.id, report.time_ms, ranges, run), run

    def _do(self, batch: Batch, run: BatchRun) -> int | None:
        delivery = self._settings.delivery
        if self._unregistered is not None:
            self._job.register(self._unregistered)
            self._unregistered = None
        if delivery == "at-most-once":
            self._store(run)
        run.is_running = True
        # The unanswered COMMIT may have changed the tables, so `transform` would now return something else.
        if self._job.is_written(run.before, run.end):
            rows = None  # the count was lost with that attempt
        else:
            run.when_done = None
            rows = self._job.work(batch)
        run.is_running = False
        if delivery == "at-least-once":
            self._store(run)
        elif delivery == "exactly-once":
            self._keeper.keep_beside(run.end)
        return rows

    def _store(self, run: BatchRun) -> None:
        """Store the batch's end and add the time it takes to the batch's: it is part of its cost."""
        since = time.monotonic()
        try:
            self._keep(run.end, goes_back(run.before, run.end))
        finally:
            run.storing_ms += (time.monotonic() - since) * 1000

    def _keep(self, position: StreamPosition, may_go_back: bool) -> None:
        """Store a position, waiting if the store is away. The work is done or has not begun, so failing here
        would gain nothing and could repeat finished work."""
        failure = self._sit_out(lambda: self._keeper.keep(position, may_go_back=may_go_back))
        if failure is not None:
            raise failure

    def _close_report(
        self,
        report: BatchReport,
        run: BatchRun,
        since: float,
        *,
        rows: int | None = None,
        error: str | None = None,
    ) -> BatchReport:
        took_ms = (time.monotonic() - since) * 1000
        return replace(
            report,
            processing_ms=took_ms - run.storing_ms,
            storing_ms=run.storing_ms,
            committed=self._keeper.committed,
            rows_written=rows,
            error=error,
        )


def _write_whole(seconds: float) -> str:
    """Return a time as text in whole seconds, rounded up."""
    return write_span(math.ceil(seconds))


def _choose_pause_s(error: Exception, failures: int) -> float:
    if not find_verdict(error):
        return min(_LONGEST_PAUSE_S, _RETRY_PAUSE_S * failures)
    pause_s = _SERVER_PAUSE_S
    for _ in range(1, failures):  # multiplied step by step, because a power overflows with many attempts
        pause_s = min(_LONGEST_PAUSE_S, pause_s * _SERVER_PATIENCE)
    return pause_s
