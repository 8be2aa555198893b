"""The loop of a direct stream: one batch after another, each at its time, each tried until it is done.

Rules: a batch begins only when the one before it is over, so what is stored only grows. A failing batch is
tried again as a whole, with the same ranges and the same frame; when it has failed too often the stream ends,
and what is stored is the end of the batch before (or of this one, at most once). Asked to stop, the loop
finishes the batch it is in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.core.errors import find_verdict
from penstock.core.offset_stores import goes_back
from penstock.core.options_direct import Delivery
from penstock.core.stream_batch import list_ranges
from penstock.core.stream_offsets import StreamPosition
from penstock.core.ticks import next_tick
from penstock.engines.direct.batch import Batch, BatchReport, BatchRun
from penstock.engines.direct.keeping import Keeper
from penstock.engines.direct.pace import DirectPace
from penstock.engines.direct.stopping import StopSwitch
from penstock.engines.reading.watch import StreamWatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: A batch that failed is tried again after so long, and longer each time.
_RETRY_PAUSE_S = 0.2
#: When a server failed us, or a task: 1 s, then 5 s. A database that restarts is back by then, mostly.
_SERVER_PAUSE_S = 1.0
_SERVER_PATIENCE = 5.0

Event = Literal["submitted", "started", "completed", "failed"]


@dataclass(frozen=True)
class LoopSettings:
    """`delivery` None: the loop stores nothing by itself. `is_manual`: the user's functions commit."""

    interval_ms: int
    attempts: int
    empty_batches: bool
    delivery: Delivery | None
    is_manual: bool


@dataclass(frozen=True)
class Job:
    """What is done with a batch. `work` gives the rows written, where a sink counts them; `tell` is told."""

    make_frame: Callable[[StreamPosition, StreamPosition], DataFrame]
    work: Callable[[Batch], int | None]
    tell: Callable[[Event, BatchReport], None]
    read_state: Callable[[str], DataFrame] | None = None


class BatchLoop:
    """One run. Used by one thread; `planned` may be read from others."""

    def __init__(
        self,
        settings: LoopSettings,
        start: StreamPosition,
        watch: StreamWatch,
        pace: DirectPace | None,
        keeper: Keeper,
        switch: StopSwitch,
        job: Job,
    ) -> None:
        self.planned = start
        self._settings, self._watch, self._pace = settings, watch, pace
        self._keeper, self._switch, self._job = keeper, switch, job
        self._done = 0
        self._tick: int | None = None

    def run(self, most: int | None, until_idle: bool) -> int:
        """How many batches were done, those without records included where they are asked for."""
        while not self._switch.is_set and (most is None or self._done < most):
            if not self._wait_for_tick():
                break
            if not self._run_batch() and until_idle:
                break
        return self._done

    def _wait_for_tick(self) -> bool:
        """Wait for the next batch's time; False when asked to stop meanwhile."""
        now_ms = time.time_ns() // 1_000_000
        if not self._settings.interval_ms:
            self._tick = now_ms
            return True
        self._tick = next_tick(self._tick, now_ms, self._settings.interval_ms)
        # At most one interval: a clock that was set back would make it wait until it has caught up.
        wait_ms = min(max(0, self._tick - now_ms), self._settings.interval_ms)
        return not self._switch.wait(wait_ms / 1000)

    def _run_batch(self) -> bool:
        """Plan and do one batch; False when there was nothing new."""
        begun_ms, begun = time.time_ns() / 1e6, time.monotonic()
        before = self.planned
        end = self._watch.find_end(before, take_all=False)
        is_new = end is not before
        assert self._tick is not None
        if not is_new and not self._settings.empty_batches:
            if not self._settings.interval_ms:
                self._switch.wait(0.01)  # nothing waits for records here: look again soon
            return False
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
        report = self._try_batch(report, before, end, begun)
        self._done += 1
        self._job.tell("completed", report)
        if self._pace is not None and is_new:  # one without records tells nothing about speed
            took_ms = report.planning_ms + report.processing_ms + report.storing_ms
            self._pace.observe(int(time.monotonic() * 1000), took_ms, report.delay_ms)
        log.info("Batch %d: %d records in %.0f ms.", report.id, report.records, report.processing_ms)
        return is_new

    def _try_batch(
        self, report: BatchReport, before: StreamPosition, end: StreamPosition, begun: float
    ) -> BatchReport:
        attempts = 1 if self._settings.delivery == "at-most-once" else self._settings.attempts
        attempt = 1
        while True:
            batch, run = self._make_batch(report, before, end)
            report = replace(report, attempts=attempt)
            self._job.tell("started", report)
            since = time.monotonic()
            try:
                rows = self._do(batch, run)
            except Exception as error:
                run.is_running = False
                report = self._close_report(report, run, since, error=str(error))
                self._job.tell("failed", report)
                if attempt >= attempts or not _may_repeat(error):
                    raise
                log.warning("Batch %d failed (attempt %d), again: %s", batch.id, attempt, error)
                if self._switch.wait(_choose_pause_s(error, attempt)):
                    raise
            else:
                return self._close_report(report, run, since, rows=rows)
            attempt += 1

    def _make_batch(
        self, report: BatchReport, before: StreamPosition, end: StreamPosition
    ) -> tuple[Batch, BatchRun]:
        keeper, ranges = self._keeper, report.ranges
        is_manual, may_go_back = self._settings.is_manual, goes_back(before, end)
        run = BatchRun(
            before,
            end,
            lambda: self._job.make_frame(before, end),
            (lambda position: keeper.keep(position, may_go_back=may_go_back)) if is_manual else None,
            (lambda position, callback: keeper.keep_later(position, ranges, callback))
            if is_manual and keeper.is_async
            else None,
            self._job.read_state,
        )
        return Batch(report.id, report.time_ms, ranges, run), run

    def _do(self, batch: Batch, run: BatchRun) -> int | None:
        delivery = self._settings.delivery
        if delivery == "at-most-once":
            self._store(run)
        run.is_running = True
        rows = self._job.work(batch)
        run.is_running = False
        if delivery == "at-least-once":
            self._store(run)
        elif delivery == "exactly-once":
            self._keeper.keep_beside(run.end)
        return rows

    def _store(self, run: BatchRun) -> None:
        """Timed here, inside the batch: what it costs is part of what the batch costs."""
        since = time.monotonic()
        try:
            self._keeper.keep(run.end, may_go_back=goes_back(run.before, run.end))
        finally:
            run.storing_ms += (time.monotonic() - since) * 1000

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


def _choose_pause_s(error: Exception, attempt: int) -> float:
    if find_verdict(error):
        return _SERVER_PAUSE_S * _SERVER_PATIENCE ** (attempt - 1)
    return _RETRY_PAUSE_S * attempt


def _may_repeat(error: Exception) -> bool:
    """What the user's code or Spark has raised may pass; ours say whether they can, from tasks as well."""
    return find_verdict(error) is not False
