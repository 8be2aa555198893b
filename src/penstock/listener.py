"""A query listener that tells a stream what Spark does not: how long batches took, and the last end.

Optional. With it, backpressure measures batches exactly whatever the trigger (a source alone cannot tell
work from waiting), and `commitOffsetsToGroup` also covers a query's last batch, which Spark never tells the
source about.

    spark.streams.addListener(QueryListener(options))   # the options given to readStream, if it is to commit
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.core.errors import PenstockError
from penstock.core.options_stream import parse_stream_options
from penstock.core.stream_offsets import Offsets, read_position
from penstock.engines.source.commits import GroupCommits
from penstock.engines.source.feedback import tell

log = logging.getLogger(__name__)

_FLUSH_S = 10.0


class QueryListener(StreamingQueryListener):
    """Add one to a session; with options, it commits for the streams that read these options' topics."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._commits: GroupCommits | None = None
        if options is not None:
            self._commits = _start_commits(options)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """Nothing to do yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        trigger_ms = int(event.progress.durationMs.get("triggerExecution", 0))
        for source in event.progress.sources:
            end = _parse(source.endOffset)
            reported = _parse(source.latestOffset)
            if not end or "version" not in end:
                continue  # another source's
            address = (reported or {}).get("pace", {}).get("feedback")
            if address and source.startOffset != source.endOffset:
                tell(address, end, trigger_ms)
            if self._commits is not None and "groupCommits" in (reported or {}):
                self._offer(end)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Nothing happened."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        if self._commits is not None:
            self._commits.flush(_FLUSH_S)

    def _offer(self, end: Mapping[str, Any]) -> None:
        assert self._commits is not None
        try:
            self._commits.offer(read_position(end).offsets)
        except PenstockError as error:
            log.warning("A finished position was not committed: %s", error)


def _start_commits(options: Mapping[str, str]) -> GroupCommits | None:
    import os
    from pathlib import Path

    parsed = parse_stream_options(
        options,
        unique=uuid.uuid4().hex,
        read_file=lambda path: Path(path).read_text(encoding="utf-8"),
        environ=os.environ,
    )
    group = parsed.commit_group
    if group is None:
        return None

    def commit(offsets: Offsets) -> None:
        from penstock.kafka.groups import commit_offsets

        commit_offsets(parsed.client, group, offsets, timeout_ms=parsed.client.default_api_timeout_ms)

    return GroupCommits(commit, group)


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text) if text else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
