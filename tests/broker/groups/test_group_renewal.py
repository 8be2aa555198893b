"""Offsets in a group without members expire; those of a running but idle stream must not."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from penstock.cluster import LocalKafka
from penstock.core.errors import PenstockError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_options import parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.direct.batch_loop import BatchLoop, Job, LoopSettings
from penstock.engines.direct.offset_keeper import Keeper
from penstock.engines.direct.stop_requests import StopSwitch
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.kafka.groups.commit_renewal import find_retention_ms, renew_commits
from penstock.kafka.groups.committed_offsets import GroupCommit, commit_offsets, fetch_commits
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.stores.offsets.kafka_store import KafkaOffsetStore
from tests.conftest import IMPATIENT
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

RETENTION_S = 60


@pytest.fixture(scope="module")
def forgetful_kafka() -> Iterator[LocalKafka]:
    """Start a broker that forgets offsets of a group without members after a minute, Kafka's minimum."""
    soon = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    with LocalKafka(broker_settings={**IMPATIENT, **soon}) as cluster:
        yield cluster


def fetch(cluster: Any, group: str) -> dict[TopicPartition, GroupCommit]:
    deadline = Deadline.after_ms(30_000, "test")
    found = fetch_commits(routing_for(settings_of(cluster.bootstrap)), group, None, deadline)
    return {each: commit for each, commit in found.items() if commit is not None}


@pytest.mark.kafka
def test_an_idle_stream_keeps_its_offsets_past_the_time_after_which_they_expire(
    forgetful_kafka: LocalKafka, topic: Any
) -> None:
    """For a direct stream with its offsets in Kafka, sync and async, and a query that commits to a group."""
    name = topic(2, on=forgetful_kafka)
    produce(forgetful_kafka.bootstrap, name, [b"x"] * 3)
    client = settings_of(forgetful_kafka.bootstrap)
    at = {TopicPartition(name, 0): 3, TopicPartition(name, 1): 0}
    control, sync, later, query = (
        f"{kind}-{secrets.token_hex(4)}" for kind in ("control", "sync", "later", "q")
    )
    assert find_retention_ms(client, control, timeout_ms=30_000) == RETENTION_S * 1000
    with ExitStack() as stack:
        for group in (sync, later):
            store = KafkaOffsetStore(client, group=group)
            position = StreamPosition(at)
            if group == sync:
                store.save(group, position)
            else:
                store.save_async(group, position)
                assert store.flush(30)
            stack.enter_context(closing(store))
            stack.callback(run_idle(forgetful_kafka, name, store, group, position))
        options = {
            "kafka.bootstrap.servers": forgetful_kafka.bootstrap,
            "subscribe": name,
            "commitOffsetsToGroup": query,
        }
        watch = StreamWatch(parse_stream_options(options, unique="u"), KafkaLog(client))
        stack.callback(watch.close)
        start = watch.resolve_start()
        wait_until(lambda: bool(fetch(forgetful_kafka, query)), "the query has committed")
        # Committed last: all other offsets are older than these when these expire.
        commit_offsets(client, control, at, timeout_ms=30_000)
        assert set(fetch(forgetful_kafka, control)) == set(at)
        wait_until(lambda: not fetch(forgetful_kafka, control), "offsets expire", timeout_s=RETENTION_S + 60)
        for group in (sync, later, query):
            assert {each: commit.offset for each, commit in fetch(forgetful_kafka, group).items()} == at, (
                group
            )
        assert watch.find_end(start, take_all=False) is start


def run_idle(cluster: LocalKafka, name: str, store: Any, group: str, position: StreamPosition) -> Any:
    """Run the loop of a direct stream in a thread; return a function that stops it and checks its success."""
    options = parse_direct_options(
        Subscribe(name), {"bootstrap.servers": cluster.bootstrap}, {}, {}, interval_ms=200, unique="u"
    )
    keeper, switch, failures = Keeper(store, group), StopSwitch(None), list[PenstockError]()
    keeper.committed = keeper.load()
    watch = StreamWatch(options.stream, KafkaLog(options.stream.client))
    job = Job(lambda before, end: None, lambda batch: None, lambda event, report: None)  # type: ignore[arg-type, return-value]
    settings = LoopSettings(200, 1, False, "at-least-once", False)
    loop = BatchLoop(settings, position, watch, None, keeper, switch, job)

    def run() -> None:
        try:
            loop.run(None, until_idle=False)
        except PenstockError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def stop() -> None:
        switch.set("test")
        thread.join(60)
        assert not thread.is_alive()
        switch.close()
        watch.close()
        assert failures == []

    return stop


def test_a_renewal_leaves_what_was_moved_and_brings_back_what_is_gone(kafka: Any, topic: Any) -> None:
    """For offsets that are still there, metadata and epoch stay exactly as they are."""
    name, group = topic(3), f"group-{secrets.token_hex(4)}"
    kept, moved, gone = (TopicPartition(name, number) for number in range(3))
    client = settings_of(kafka.bootstrap)
    commit_offsets(
        client, group, {kept: 5, moved: 2}, timeout_ms=30_000, metadata="by hand", leader_epochs={kept: 7}
    )
    ours = {
        kept: GroupCommit(5, 0, "ours"),
        moved: GroupCommit(9, 0, "ours"),
        gone: GroupCommit(4, 0, "ours"),
    }
    assert renew_commits(client, group, ours, timeout_ms=30_000) == (moved,)
    assert fetch(kafka, group) == {
        kept: GroupCommit(5, 7, "by hand"),
        moved: GroupCommit(2, None, "by hand"),
        gone: GroupCommit(4, 0, "ours"),
    }


def test_a_running_stream_does_not_undo_a_rewind_made_meanwhile(
    kafka: Any, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The conflict is reported once, and the manual change is still known."""
    each, group = TopicPartition(topic(), 0), f"group-{secrets.token_hex(4)}"
    now = [0.0]
    store = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group, clock=lambda: now[0])
    store.save(group, StreamPosition({each: 9}))
    by_hand = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group)
    by_hand.save(group, StreamPosition({each: 2}), may_go_back=True)
    for _ in range(2):
        now[0] += 86_400
        store.renew(group, StreamPosition({each: 9}))
        assert by_hand.load(group) == StreamPosition({each: 2})
    assert caplog.text.count("is not at its stream's position") == 1
