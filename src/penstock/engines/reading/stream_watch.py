"""The driver's side of one running stream: looks at the log at each trigger and remembers in between.

Rule: decisions are made in `core`; this module asks, waits, remembers and logs. What must outlive the process
is in the positions that Spark or the stream's own store keeps. What is remembered here (ends seen before, the
time of the last batch, losses already logged) only saves requests and messages.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol

from penstock.core.errors import BrokerError
from penstock.core.loggers import get_logger
from penstock.core.losses.stream_loss_errors import explain_stream_losses
from penstock.core.model import Log, LogView, TopicPartition
from penstock.core.offsets.stream_position import NOWHERE, Offsets, StreamPosition, write_position
from penstock.core.options.stream_options import StreamOptions
from penstock.core.planning.partition_selection import Selection, leave_out
from penstock.core.planning.range_bounds import BatchRead
from penstock.core.streaming.log_changes import Course, OldEpoch, StreamView
from penstock.core.streaming.log_questions import (
    LogLook,
    StreamQuestions,
    find_questions,
    follow,
    forget_changed_leaders,
)
from penstock.core.streaming.new_stream_start import NUMBERS, resolve_start
from penstock.core.streaming.next_batch import aim, holds_back, share_budget, take
from penstock.core.streaming.stream_lag import PeekedRecords, count_within, measure_lags, summarize
from penstock.engines.reading.log_survey import LookRetries, look, survey
from penstock.engines.reading.loss_book import LossBook, check_ledger
from penstock.stores.offsets.commit_thread import CommitThread
from penstock.stores.offsets.renewal_schedule import RenewalSchedule

log = get_logger(__name__)

#: How often the size and age of waiting records are looked at, and in how many partitions at once.
_PEEK_INTERVAL_S = 5.0
_PEEKED_AT_ONCE = 16
_PEEKS_KEPT_S = 60.0
#: Records to take under a limit in bytes before any was looked at: few enough for any size.
_BLIND_RECORDS = 1000


class StreamPace(Protocol):
    """The way an engine measures its batches and limits the next one. `learn` and `close` have defaults."""

    def learn(self) -> None:
        """Learn from the previous batch, which is over, before a new one is planned."""
        return

    def begin(self, course: Course, end: StreamPosition) -> None:
        """Note that a batch up to `end` is about to run."""

    def budget(self, sizes: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int] | None:
        """Return how much of each partition the next batch may take; None means all of it."""

    def report(self) -> dict[str, Any]: ...

    def close(self) -> None:
        """Release what is open."""
        return


class StreamWatch:
    """One stream's view of its log, for a query or a direct stream. It belongs to one thread."""

    def __init__(
        self,
        options: StreamOptions,
        source: Log,
        *,
        pace: StreamPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        recall_view: Callable[[], LogView] | None = None,
    ) -> None:
        """Watch `source`. `recall_view` opens a view that may answer about topics from recent memory."""
        self._options, self._source, self._clock = options, source, clock
        self._recall_view = recall_view
        self._patience = LookRetries(options.fetch_offset_retries, options.fetch_offset_retry_interval_ms)
        self._losses = LossBook(options.loss_ledger)
        if options.loss_ledger is not None:
            check_ledger(options.loss_ledger)
        self._commits = self._start_commits()
        self._known_ends: dict[tuple[TopicPartition, bytes | None], int] = {}
        self._targets: StreamPosition | None = None
        self._last_batch_at: float | None = None
        self._told: set[str] = set()
        self._added = 0
        self._settled: Mapping[OldEpoch, int] = {}
        self._peeks: dict[TopicPartition, PeekedRecords] = {}
        self._peeked_at: float | None = None
        self._reported: tuple[Offsets, Offsets] | None = None
        self._pace = pace

    # --- what an engine asks ---------------------------------------------------------------------------

    def resolve_start(self) -> StreamPosition:
        """Return the first position of a new query."""
        position = self.resolve(self._options.reading)
        log.info("A new query starts at %s.", write_position(position)["offsets"])
        if not position.offsets and self._targets is None:  # AvailableNow has logged it, and does not wait
            log.warning(
                "Nothing that is selected exists yet. The query waits, and reads what it finds later from "
                "the first offset."
            )
        self._offer(position)
        return position

    def resolve(self, reading: BatchRead) -> StreamPosition:
        """Return where this reading starts, as numbers."""
        group = self._options.client.group_id or ""
        for left in reversed(range(max(1, self._patience.attempts))):
            now_ms = time.time_ns() // 1_000_000
            snapshot = survey(
                self._source.open_view, reading, NUMBERS, self._patience, group=group, now_ms=now_ms
            )
            position = resolve_start(reading, snapshot)
            if position.offsets or not left:
                break
            # A broker that has just started may know no topics yet, and later all of them would look new.
            self._patience.wait()
        now = look(self._source.open_view, lambda view: view.describe(position.topics), self._patience)
        return forget_changed_leaders(position, snapshot.topics, now)

    def fix_targets(self) -> None:
        """Make the current ends the targets of this run, for AvailableNow."""
        selection = self._options.selection
        try:
            course = self._chart(NOWHERE, selection)
        except BrokerError as error:
            if error.condition != "UNKNOWN_TOPIC":
                raise
            # Either a wrong name, or deleted since the query last ran: only the position can show which.
            missing = error.facts["missing"]
            assert isinstance(missing, list)
            course = self._chart(NOWHERE, leave_out(selection, missing))
        if not course.ends:
            log.warning("Nothing that is selected exists, so this run has nothing to read.")
        self._targets = StreamPosition(course.ends, course.topic_ids)

    def find_end(self, position: StreamPosition, *, take_all: bool) -> StreamPosition:
        """Return how far the next batch goes, or the position itself if there is none to run."""
        self._offer(position)
        if self._pace is not None:
            self._pace.learn()
        course = self._chart(position, self._options.selection)
        if self._targets is not None:
            course = aim(course, self._targets)
        self._settle(course)
        end = position
        if take_all or self._targets is not None or not self._holds_back(course):
            end = take(course, None if take_all else self._find_budget(course))
        if end is not position:
            self._last_batch_at = self._clock()
            if self._pace is not None:
                self._pace.begin(course, end)
            self._added += len(course.added) if position.offsets else 0
        self._reported = (end.offsets, course.ends)
        if end is position and self._targets is not None and self._commits is not None:
            self._commits.flush(5.0)  # the last call of an AvailableNow run: no other call follows
        return end

    def report(self) -> dict[str, Any] | None:
        """Return what Spark shows as the source's latest offset: the ends, and figures for users."""
        if self._reported is None:
            return None
        offsets, ends = self._reported
        lags = measure_lags(offsets, ends, {}, now_ms=0)
        behind = {each: lag.records for each, lag in lags.items() if lag.records}
        if self._options.max_bytes is None:  # otherwise planning a batch has looked already
            self._peek({each: offsets[each] for each in behind}, behind)
        now_ms = time.time_ns() // 1_000_000
        lags = measure_lags(offsets, ends, self._peeks, now_ms=now_ms)
        report = write_position(StreamPosition(ends))
        report["lag"] = summarize(lags)
        report["losses"] = self._losses.sum_up()
        report["newPartitions"] = self._added
        if self._commits is not None:
            report["groupCommits"] = {
                "group": self._options.commit_group,
                "done": self._commits.done,
                "failed": self._commits.failed,
            }
        if self._pace is not None:
            report["pace"] = self._pace.report()
        return report

    def finish(self, position: StreamPosition) -> None:
        """Note that the batch up to this position is done."""
        self._offer(position)

    def close(self) -> None:
        """Release the stream's own resources. The thread that commits ends with the process."""
        if self._pace is not None:
            self._pace.close()

    # --- looking ----------------------------------------------------------------------------------------

    def _chart(self, position: StreamPosition, selection: Selection) -> Course:
        """Return what has happened to the log. Look again before believing an apparent loss."""
        # Remembered metadata is used as long as there is nothing new. After a failure, and before a loss is
        # believed, the brokers are asked, so the look from memory does not count as an attempt.
        recalled = [] if self._recall_view is None else [self._recall_view]
        views = itertools.chain(recalled, itertools.repeat(self._source.open_view))
        attempt = 1 - len(recalled)
        while True:
            last = attempt >= self._patience.attempts
            course = look(
                lambda: next(views)(), lambda view: self._look(view, position, selection), self._patience
            )
            self._settled = course.settled
            if last or all(each in self._told for each in course.doubts):
                break
            self._patience.wait()
            attempt += 1
        for news in course.news:
            if news not in self._told:
                log.warning("%s", news)
        # Remember only what this look has shown, because a query runs for months.
        self._told = {*course.doubts, *course.news}
        known = {(each, course.topic_ids.get(each.topic)): end for each, end in course.ends.items()}
        kept = {key: end for key, end in self._known_ends.items() if key[1] in position.topic_ids.values()}
        self._known_ends = {**kept, **known}
        return course

    def _recall_ends(self, position: StreamPosition) -> dict[TopicPartition, int]:
        """Return the ends last seen of the position's topics, not of other topics with the same names."""
        keys = {each: (each, position.topic_ids.get(each.topic)) for each in position.offsets}
        return {each: self._known_ends[key] for each, key in keys.items() if key in self._known_ends}

    def _look(self, view: LogView, position: StreamPosition, selection: Selection) -> Course:
        known: LogLook | Course = LogLook(selection, position, self._recall_ends(position), self._settled)
        while isinstance(known, LogLook):
            known = follow(known, self._ask(view, find_questions(known)))
        return known

    def _ask(self, view: LogView, asked: StreamQuestions) -> StreamView:
        if asked.again:  # ask the brokers, even if `view` answers from memory
            with closing(self._source.open_view()) as fresh:
                return StreamView(fresh.describe(asked.again), {})
        topics = (
            view.topics() if asked.topics is None else view.describe(asked.topics) if asked.topics else {}
        )
        return StreamView(
            topics,
            view.latest(asked.latest) if asked.latest else {},
            epoch_ends=view.epoch_ends(asked.epochs) if asked.epochs else {},
            earliest=view.earliest(asked.earliest) if asked.earliest else {},
        )

    def _settle(self, course: Course) -> None:
        if not course.losses:
            return
        if self._options.fail_on_data_loss:
            raise explain_stream_losses(course.losses, fixed_group=self._options.fixed_group)
        self._losses.keep(course.losses)

    def _find_budget(self, course: Course) -> Mapping[TopicPartition, int] | None:
        options = self._options
        limits = [options.max_offsets]
        if options.max_bytes is not None:
            sizes = course.sizes
            self._peek({each: begin for each, begin in course.begins.items() if sizes[each]}, sizes)
            limits.append(count_within(options.max_bytes, sizes, self._peeks) or _BLIND_RECORDS)
        return share_budget(course, limits, self._pace.budget(course.sizes) if self._pace else None)

    def _holds_back(self, course: Course) -> bool:
        options, last = self._options, self._last_batch_at
        waited_ms = None if last is None else int((self._clock() - last) * 1000)
        return holds_back(course, options.min_offsets, waited_ms, options.max_delay_ms)

    def _peek(self, positions: Offsets, sizes: Mapping[TopicPartition, int]) -> None:
        """Look at waiting records where most of them are, but only now and then, not at every trigger."""
        now = self._clock()
        due = self._peeked_at is None or now - self._peeked_at >= _PEEK_INTERVAL_S
        if not positions or not due:
            return
        self._peeked_at = now
        self._peeks = {each: seen for each, seen in self._peeks.items() if now - seen.at_s <= _PEEKS_KEPT_S}
        most = sorted(positions, key=lambda each: -sizes[each])[:_PEEKED_AT_ONCE]
        try:
            with closing(self._source.open_view()) as view:
                found = view.peek({each: positions[each] for each in most})
        except BrokerError as error:
            log.warning("The sizes and ages of waiting records could not be read: %s", error)
            return
        self._peeks |= {each: PeekedRecords(positions[each], now, peek) for each, peek in found.items()}

    # --- the group --------------------------------------------------------------------------------------

    def _start_commits(self) -> CommitThread[Offsets] | None:
        group, client = self._options.commit_group, self._options.client
        if group is None:
            return None

        def commit(offsets: Offsets) -> None:
            from penstock.kafka.groups.committed_offsets import commit_offsets

            commit_offsets(client, group, offsets, timeout_ms=client.default_api_timeout_ms)

        def renew(offsets: Offsets) -> None:
            from penstock.kafka.groups.commit_renewal import renew_commits
            from penstock.kafka.groups.committed_offsets import GroupCommit

            ours = {each: GroupCommit(offset) for each, offset in offsets.items()}
            renew_commits(client, group, ours, timeout_ms=client.default_api_timeout_ms)

        def ask_retention_ms() -> int | None:
            from penstock.kafka.groups.commit_renewal import find_retention_ms

            return find_retention_ms(client, group, timeout_ms=client.default_api_timeout_ms)

        return CommitThread(commit, group, renew=renew, renewal=RenewalSchedule(ask_retention_ms))

    def _offer(self, position: StreamPosition) -> None:
        if self._commits is not None:
            self._commits.offer(position.offsets)
