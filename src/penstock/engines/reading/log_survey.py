"""Looks at the log before a read is planned: planning decides what to ask, and this module asks it.

Rules: only what planning needs is asked, and a view is closed whatever happens. If a broker fails, the
question is repeated with a fresh view, because a client that has failed once may be stuck on a dead
connection. After a number of attempts the last error is raised unchanged. A partition that is deleted
between two questions is not a failure: the next look does not find it. Other errors are for the user and are
raised at once.

    survey(open_view, reading, limits, patience, group="", now_ms=...)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.errors import BrokerError
from penstock.core.model import LogView, TopicPartition, TopicView
from penstock.core.planning.offset_planning import Questions, find_questions, find_unwritten
from penstock.core.planning.partition_selection import name_topics
from penstock.core.planning.range_bounds import BatchRead, Snapshot, check_ends
from penstock.core.planning.task_splitting import PlanLimits

_Seen = TypeVar("_Seen")

#: No process listens, or the listening one hangs.
_NOBODY_THERE = ("BROKER_UNREACHABLE", "BROKER_TIMEOUT")
_VANISHED = "UNKNOWN_TOPIC_OR_PARTITION"


@dataclass(frozen=True, slots=True)
class LookRetries:
    """How often to ask the brokers, and how long to wait in between. `pause` waits for so many seconds."""

    attempts: int
    interval_ms: int
    pause: Callable[[float], None] = time.sleep

    def wait(self) -> None:
        self.pause(self.interval_ms / 1000)


def look(
    open_view: Callable[[], LogView], question: Callable[[LogView], _Seen], patience: LookRetries
) -> _Seen:
    """Return the answer of a fresh view, or of another one if the brokers fail or a partition vanishes."""
    failures = Counter[str]()
    while True:
        try:
            with closing(open_view()) as view:
                return question(view)
        except BrokerError as error:
            vanished = error.condition == _VANISHED
            # A refused login is not retried, because that can lock an account. Neither is an address that
            # gave no answer for the whole time of one call: three minutes would show no more than one.
            may_pass = error.retriable and error.facts.get("last_condition") not in _NOBODY_THERE
            # Each partition is counted separately: where topics come and go, every look may lose one.
            counted_as = error.what if vanished else ""
            failures[counted_as] += 1
            if not (may_pass or vanished) or failures[counted_as] >= patience.attempts + vanished:
                raise
        patience.wait()


def survey(
    open_view: Callable[[], LogView],
    reading: BatchRead,
    limits: PlanLimits,
    patience: LookRetries,
    *,
    group: str,
    now_ms: int,
) -> Snapshot:
    """Return what planning needs to know. `group` is the group that `committed` refers to.

    If an end lies beyond the log's end, ask again: a transaction that was just committed, or a record that
    not all replicas have yet, becomes visible a moment later.
    """

    def ask(view: LogView) -> Snapshot:
        named = name_topics(reading.selection)
        topics = view.topics() if named is None else view.describe(named)
        questions = find_questions(reading, limits, topics, now_ms)
        return _ask(view, group, topics, questions, now_ms)

    snapshot = look(open_view, ask, patience)
    for _ in range(1, patience.attempts):
        if not find_unwritten(reading, snapshot):
            break
        patience.wait()
        snapshot = look(open_view, ask, patience)
    return snapshot


def _ask(
    view: LogView, group: str, topics: Mapping[str, TopicView], questions: Questions, now_ms: int
) -> Snapshot:
    at_time: dict[tuple[TopicPartition, int], int | None] = {}
    for times in (questions.start_times_ms, questions.end_times_ms):
        if times:
            found = view.at_time(times)
            at_time.update({(each, time): found.get(each) for each, time in times.items()})
    unmatched = {each for (each, _), offset in at_time.items() if offset is None}
    latest = questions.latest | unmatched
    # The start is asked for before the end, so a log that seems to end before it begins means a stale answer.
    snapshot = Snapshot(
        topics=topics,
        committed=view.committed(group, questions.committed) if questions.committed else {},
        earliest=view.earliest(questions.earliest) if questions.earliest else {},
        latest=view.latest(latest) if latest else {},
        at_time=at_time,
        now_ms=now_ms,
    )
    check_ends(snapshot)
    return snapshot
