"""Looking at the log before a read is planned: what to ask comes from planning, the asking is here.

Rules: only what the rules need is asked, and a view is closed whatever happens. A broker that fails is
asked again with a fresh view, so many times in all, and the last error is raised as it is: a client that
has failed once may be stuck to a dead connection. Other errors are the user's and are raised at once.

    survey(open_view, options, now_ms=..., pause=time.sleep)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.core.bounds import Snapshot, check_ends
from penstock.core.errors import BrokerError
from penstock.core.model import LogView, TopicPartition, TopicView
from penstock.core.options_batch import BatchOptions
from penstock.core.planning import Questions, find_questions
from penstock.core.selection import name_topics


def survey(
    open_view: Callable[[], LogView],
    options: BatchOptions,
    *,
    now_ms: int,
    pause: Callable[[float], None],
) -> Snapshot:
    """What planning needs to know. `pause` waits for so many seconds."""
    attempt = 1
    while True:
        try:
            return _look(open_view, options, now_ms)
        except BrokerError as error:
            # A refused login is not tried again: that can lock an account. Nor is an address where nobody
            # answered for the whole of one call's time: three minutes tell no more than one.
            nobody_there = error.facts.get("last_condition") == "BROKER_UNREACHABLE"
            if not error.retriable or nobody_there or attempt >= options.fetch_offset_retries:
                raise
        pause(options.fetch_offset_retry_interval_ms / 1000)
        attempt += 1


def _look(open_view: Callable[[], LogView], options: BatchOptions, now_ms: int) -> Snapshot:
    view = open_view()
    try:
        topics = _describe(view, options)
        questions = find_questions(options.reading, options.limits, topics, now_ms)
        return _ask(view, options, topics, questions, now_ms)
    finally:
        view.close()


def _describe(view: LogView, options: BatchOptions) -> Mapping[str, TopicView]:
    named = name_topics(options.selection)
    return view.topics() if named is None else view.describe(named)


def _ask(
    view: LogView, options: BatchOptions, topics: Mapping[str, TopicView], questions: Questions, now_ms: int
) -> Snapshot:
    at_time: dict[tuple[TopicPartition, int], int | None] = {}
    for times in (questions.start_times_ms, questions.end_times_ms):
        if times:
            found = view.at_time(times)
            at_time.update({(each, time): found.get(each) for each, time in times.items()})
    unmatched = {each for (each, _), offset in at_time.items() if offset is None}
    latest = questions.latest | unmatched
    group = options.client.group_id or ""
    # The start is asked for before the end, so a log that seems to end before it begins is a stale answer.
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
