"""Which streams a query listener commits for, and what it tells a stream's reader."""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import listener as module
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import Offsets
from penstock.engines.source.feedback import FeedbackPort, name_end
from penstock.listener import QueryListener
from tests.filling import wait_until

T0 = TopicPartition("t", 0)
Committed = list[tuple[str, Offsets]]


def progress(query: str, *sources: SimpleNamespace, trigger_ms: int = 5) -> Any:
    inner = SimpleNamespace(id=query, durationMs={"triggerExecution": trigger_ms}, sources=list(sources))
    return SimpleNamespace(progress=inner)


def source(offset: int, *, group: str | None = None, feedback: str | None = None) -> SimpleNamespace:
    reported: dict[str, Any] = {"version": 1, "offsets": {"t": {"0": 99}}}
    if group is not None:
        reported["groupCommits"] = {"group": group, "done": 0, "failed": 0}
    if feedback is not None:
        reported["pace"] = {"feedback": feedback}
    end = {"version": 1, "offsets": {"t": {"0": offset}}}
    return SimpleNamespace(startOffset=None, endOffset=json.dumps(end), latestOffset=json.dumps(reported))


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    """What listeners commit, by group; Kafka itself is in the tests on a real Spark."""
    seen: Committed = []

    def find_group(options: dict[str, str]) -> tuple[str, Any]:
        group = options["commitOffsetsToGroup"]
        return group, lambda offsets: seen.append((group, offsets))

    monkeypatch.setattr(module, "_find_group", find_group)
    return seen


def test_a_listener_commits_only_for_streams_with_its_group(committed: Committed) -> None:
    """F34: two queries in one session, one listener each: no group gets the other's position."""
    listeners = [QueryListener({"commitOffsetsToGroup": group}) for group in ("a", "b")]
    for each in listeners:
        each.onQueryProgress(progress("query-a", source(5, group="a")))
        each.onQueryProgress(progress("query-b", source(7, group="b")))
        each.onQueryProgress(progress("query-c", source(9)))
    for query in ("query-a", "query-b"):
        for each in listeners:
            each.onQueryTerminated(SimpleNamespace(id=query))  # type: ignore[arg-type]
    assert sorted(committed, key=str) == [("a", {T0: 5}), ("b", {T0: 7})]


def test_of_two_queries_none_overtakes_the_other(committed: Committed) -> None:
    """The newest of each counts, not the newest of all."""
    listener = QueryListener({"commitOffsetsToGroup": "a"})
    for offset in (1, 2):
        listener.onQueryProgress(progress("one", source(offset, group="a"), source(offset + 10, group="a")))
    listener.onQueryTerminated(SimpleNamespace(id="one"))  # type: ignore[arg-type]
    last = {offsets[T0] for _, offsets in committed}
    assert {2, 12} <= last


def test_a_stream_that_paces_itself_is_told_how_long_its_trigger_took() -> None:
    """I1: the end by name, and the milliseconds; other sources are left alone."""
    with closing(FeedbackPort()) as port:
        listener = QueryListener()
        listener.onQueryProgress(progress("q", source(5, feedback=port.address), trigger_ms=321))
        listener.onQueryProgress(
            progress("q", SimpleNamespace(startOffset="1", endOffset="not json", latestOffset=None))
        )
        found: list[Any] = []
        wait_until(lambda: found.extend(port.drain()) or bool(found), "the datagram is here")
    end = {"version": 1, "offsets": {"t": {"0": 5}}}
    assert [(each.end, each.trigger_ms) for each in found] == [(name_end(end), 321)]
