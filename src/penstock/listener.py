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
from collections.abc import Callable, Mapping
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
from penstock.engines.source.feedback import tell
from penstock.stores.offsets.commits import GroupCommits

log = logging.getLogger(__name__)

_FLUSH_S = 10.0


class QueryListener(StreamingQueryListener):
    """Add one to a session; with options, it commits for the streams that have the same
    `commitOffsetsToGroup`. Give each query a group of its own: one group has one position."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._group, self._commit = (None, None) if options is None else _find_group(options)
        self._commits: dict[tuple[str, int], GroupCommits[Offsets]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """Nothing to do yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        trigger_ms = int(event.progress.durationMs.get("triggerExecution", 0))
        for place, source in enumerate(event.progress.sources):
            end = _parse(source.endOffset)
            reported = _parse(source.latestOffset)
            if not end or "version" not in end:
                continue  # another source's
            address = (reported or {}).get("pace", {}).get("feedback")
            if address and source.startOffset != source.endOffset:
                tell(address, end, trigger_ms)
            group = (reported or {}).get("groupCommits", {}).get("group")
            if self._group is not None and group == self._group:
                self._offer((str(event.progress.id), place), end)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Nothing happened."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        for (query, _), commits in self._commits.items():
            if query == str(event.id):
                commits.flush(_FLUSH_S)

    def _offer(self, stream: tuple[str, int], end: Mapping[str, Any]) -> None:
        assert self._group is not None
        assert self._commit is not None
        if stream not in self._commits:
            self._commits[stream] = GroupCommits(self._commit, self._group)
        try:
            self._commits[stream].offer(read_position(end).offsets)
        except PenstockError as error:
            log.warning("A finished position was not committed: %s", error)


def _find_group(
    options: Mapping[str, str],
) -> tuple[str | None, Callable[[Offsets], None] | None]:
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
        return None, None

    def commit(offsets: Offsets) -> None:
        from penstock.kafka.groups import commit_offsets

        commit_offsets(parsed.client, group, offsets, timeout_ms=parsed.client.default_api_timeout_ms)

    return group, commit


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text) if text else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
