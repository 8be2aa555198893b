"""Which streams a query listener commits for, and what it reports to a stream's reader."""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import listener as module
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import Offsets
from penstock.engines.source.listener_feedback import FeedbackPort, name_end
from penstock.listener import QueryListener, read_report
from tests.support.waiting import wait_until

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
    """Return what listeners commit, by group; the tests on a real Spark use Kafka itself."""
    seen: Committed = []

    def find_group(options: dict[str, str]) -> tuple[str, Any]:
        group = options["commitOffsetsToGroup"]
        return group, lambda offsets: seen.append((group, offsets))

    monkeypatch.setattr(module, "_find_group", find_group)
    return seen


def test_a_listener_commits_only_for_streams_with_its_group(committed: Committed) -> None:
    """F34: two queries in one session, with one listener each: no group gets the other's position."""
    listeners = [QueryListener({"commitOffsetsToGroup": group}) for group in ("a", "b")]
    for each in listeners:
        each.onQueryProgress(progress("query-a", source(5, group="a")))
        each.onQueryProgress(progress("query-b", source(7, group="b")))
        each.onQueryProgress(progress("query-c", source(9)))
    for query in ("query-a", "query-b"):
        for each in listeners:
            each.onQueryTerminated(SimpleNamespace(id=query))  # type: ignore[arg-type]
    assert set(map(str, committed)) == {str(("a", {T0: 5})), str(("b", {T0: 7}))}


def test_of_two_queries_none_overtakes_the_other(committed: Committed) -> None:
    """The newest position of each query counts, not the newest of all."""
    listener = QueryListener({"commitOffsetsToGroup": "a"})
    for offset in (1, 2):
        listener.onQueryProgress(progress("one", source(offset, group="a"), source(offset + 10, group="a")))
    listener.onQueryTerminated(SimpleNamespace(id="one"))  # type: ignore[arg-type]
    last = {offsets[T0] for _, offsets in committed}
    assert {2, 12} <= last


def test_a_stream_that_paces_itself_is_told_how_long_its_trigger_took() -> None:
    """I1: it gets the end and the milliseconds; other sources are left alone."""
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


@pytest.mark.parametrize("latest", ["null", "None", None, "", "not json", "[1]", '{"other": "source"}', 7])
def test_a_progress_without_a_report_is_read_as_none(latest: object) -> None:
    """The report is missing (`null` in `lastProgress`, `None` in a listener's event), foreign, or garbage."""
    told = progress("q", SimpleNamespace(latestOffset=latest)).progress
    assert read_report(told) is None
    assert read_report({"sources": [{"latestOffset": latest}]}) is None


def as_object(latest: object) -> Any:
    return SimpleNamespace(latestOffset=latest)


def as_mapping(latest: object) -> Any:
    return {"latestOffset": latest}


def test_a_report_is_read_from_every_form_of_a_progress() -> None:
    reported = {"version": 1, "offsets": {"t": {"0": 99}}, "lag": {"records": 4}}
    for latest in (reported, json.dumps(reported)):
        for source_of in (as_object, as_mapping):
            other = source_of("3")
            assert read_report(SimpleNamespace(sources=[other, source_of(latest)]), source=1) == reported
            assert read_report({"sources": [source_of(latest)]}) == reported
            assert read_report({"sources": [other]}) is None


def test_a_query_without_a_progress_yet_has_no_report() -> None:
    assert read_report(None) is None
    assert read_report({"sources": []}) is None


def test_a_listener_lives_through_a_batch_that_is_repeated(committed: Committed) -> None:
    """Its progress does not say which group it belongs to; the next batch's does."""
    listener = QueryListener({"commitOffsetsToGroup": "a"})
    repeated = source(5, group="a")
    repeated.latestOffset = "None"
    listener.onQueryProgress(progress("one", repeated))
    listener.onQueryProgress(progress("one", source(6, group="a")))
    listener.onQueryTerminated(SimpleNamespace(id="one"))  # type: ignore[arg-type]
    assert committed[-1] == ("a", {T0: 6})
    assert ("a", {T0: 5}) not in committed


def test_the_last_commit_is_the_listeners_though_the_source_was_slow_with_an_older_one(
    committed: Committed,
) -> None:
    """F34: the source commits from another process, in any order with this one, until it is stopped."""
    listener = QueryListener({"commitOffsetsToGroup": "a"})
    listener.onQueryProgress(progress("one", source(25, group="a")))
    wait_until(lambda: committed == [("a", {T0: 25})], "the batch is committed")
    committed.append(("a", {T0: 0}))
    listener.onQueryTerminated(SimpleNamespace(id="one"))  # type: ignore[arg-type]
    assert committed[-1] == ("a", {T0: 25})
