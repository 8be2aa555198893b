"""A query listener that gives a stream what Spark does not: how long batches took, and the last end.

It is optional. With it, backpressure measures batches exactly whatever the trigger (a source alone cannot
distinguish work from waiting), and `commitOffsetsToGroup` also covers a query's last batch, which Spark never
reports to the source.

    spark.streams.addListener(QueryListener(options))   # the options given to readStream, if it is to commit
    report = read_report(query.lastProgress)            # lag, losses, ends; None if Spark asked no source
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.core.errors import PenstockError
from penstock.core.loggers import get_logger
from penstock.core.offsets.stream_position import Offsets, read_position
from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.reading.option_inputs import see_outside
from penstock.engines.source.listener_feedback import tell
from penstock.stores.offsets.commit_thread import CommitThread

log = get_logger(__name__)

_FLUSH_S = 10.0


class QueryListener(StreamingQueryListener):
    """A listener for a session; with options, it commits for streams with the same `commitOffsetsToGroup`.

    Give each query a group of its own: one group has one position.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._group, self._commit = (None, None) if options is None else _find_group(options)
        self._commits: dict[tuple[str, int], CommitThread[Offsets]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        trigger_ms = int(event.progress.durationMs.get("triggerExecution", 0))
        for place, source in enumerate(event.progress.sources):
            end = _parse(source.endOffset)
            if not end or "version" not in end:
                continue  # another source's
            reported = read_report(event.progress, source=place) or {}
            address = reported.get("pace", {}).get("feedback")
            if address and source.startOffset != source.endOffset:
                tell(address, end, trigger_ms)
            group = reported.get("groupCommits", {}).get("group")
            if self._group is not None and group == self._group:
                self._offer((str(event.progress.id), place), end)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        for stream in [each for each in self._commits if each[0] == str(event.id)]:
            commits = self._commits.pop(stream)
            # The source commits from its own process, and may have been slow with an older position. It has
            # ended by now (Spark stops the sources first), so this commit is the last.
            commits.repeat()
            commits.flush(_FLUSH_S)
            commits.close()

    def _offer(self, stream: tuple[str, int], end: Mapping[str, Any]) -> None:
        assert self._group is not None
        assert self._commit is not None
        if stream not in self._commits:
            self._commits[stream] = CommitThread(self._commit, self._group)
        try:
            self._commits[stream].offer(read_position(end).offsets)
        except PenstockError as error:
            log.warning("A finished position was not committed: %s", error)


def read_report(progress: Any, *, source: int = 0) -> dict[str, Any] | None:
    """Return what a source reported with this progress (ends, lag, losses), or None if it reported nothing.

    `progress` is `query.lastProgress`, one of `query.recentProgress`, or a listener's `event.progress`. There
    is no report before the first batch, and none for a batch that is repeated after a restart: Spark finds
    its end in the checkpoint and asks no source where the log ends (in Spark's `MicroBatchExecution`,
    `constructNextBatch` returns at once for a batch that has been planned). Spark shows that as the text
    `null`, or as `None` in a listener's event. The next batch has a report again.
    """
    sources = _pick(progress, "sources") or []
    if source >= len(sources):
        return None
    latest = _pick(sources[source], "latestOffset")
    report = latest if isinstance(latest, dict) else _parse(latest if isinstance(latest, str) else None)
    return report if report is not None and "version" in report else None


def _pick(told: Any, name: str) -> Any:
    """Return a field of what Spark reports, which is an object or a mapping."""
    return told.get(name) if isinstance(told, Mapping) else getattr(told, name, None)


def _find_group(
    options: Mapping[str, str],
) -> tuple[str | None, Callable[[Offsets], None] | None]:
    parsed = parse_stream_options(options, **see_outside())
    group = parsed.commit_group
    if group is None:
        return None, None

    def commit(offsets: Offsets) -> None:
        from penstock.kafka.groups.committed_offsets import commit_offsets

        commit_offsets(parsed.client, group, offsets, timeout_ms=parsed.client.default_api_timeout_ms)

    return group, commit


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text) if text else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
