"""Offsets in a consumer group: what other clients see of them, and commits while the stream is in trouble."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.kafka.groups.committed_offsets import commit_offsets
from penstock.kafka.groups.group_overview import describe_group, list_groups
from penstock.stores.offsets.kafka_store import KafkaOffsetStore
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce

OFFSET_COMMIT = 8


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[StreamPosition, str | None]] = []

    def __call__(self, position: StreamPosition, error: BaseException | None) -> None:
        self.told.append((position, getattr(error, "condition", None)))


def test_a_saved_position_shows_as_current_offset_and_lag(kafka: Any, topic: Any, group: str) -> None:
    """C3, C25: in the group with the stream's own name, and in others."""
    name = topic(2)
    produce(kafka.bootstrap, name, [b"x"] * 10, partition=0)
    at = {TopicPartition(name, 0): 4, TopicPartition(name, 1): 0}
    store = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group)
    store.save(group, StreamPosition(at))
    store.save("other stream", StreamPosition(at))
    rows = describe_group(settings_of(kafka.bootstrap), group).rows
    assert [(each.partition, each.committed, each.lag) for each in rows] == [
        (TopicPartition(name, 0), 4, 6),
        (TopicPartition(name, 1), 0, 0),
    ]
    assert {group, f"{group}/other stream"} <= {
        each.name for each in list_groups(settings_of(kafka.bootstrap))
    }
    assert store.list_streams() == sorted([group, "other stream"])


def test_what_another_program_has_committed_is_gone_on_with(kafka: Any, topic: Any, group: str) -> None:
    """C17: its offsets are believed, whatever metadata it wrote; ids from our commits stay known."""
    first = TopicPartition(topic(2), 0)
    second = TopicPartition(first.topic, 1)
    client = settings_of(kafka.bootstrap)
    store = KafkaOffsetStore(client, group=group)
    store.save(group, StreamPosition({first: 5, second: 6}, {first.topic: b"\x01" * 16}))
    commit_offsets(
        client, group, {second: 2}, timeout_ms=30_000, metadata="reset by hand", leader_epochs={second: 7}
    )
    commit_offsets(client, group, {first: 3}, timeout_ms=30_000, metadata="[1]")
    assert store.load(group) == StreamPosition({first: 3, second: 2}, {}, {second: 7})


def test_a_newer_save_is_not_undone_by_an_older_one_that_waited(kafka: Any, topic: Any, group: str) -> None:
    """T33, D37: the older save is reported as done, because everything it covers is committed."""
    each = TopicPartition(topic(), 0)
    store, listener = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group), Listener()
    store.save(group, StreamPosition({each: 10}))
    store.save_async(group, StreamPosition({each: 5}), listener)
    assert store.flush(30)
    assert store.load(group) == StreamPosition({each: 10})
    assert listener.told == [(StreamPosition({each: 5}), None)]
    other = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group)  # another program that was only slow
    other.save_async(group, StreamPosition({each: 7}), listener)
    assert not other.flush(30)
    assert listener.told[1:] == [(StreamPosition({each: 7}), "OFFSETS_WENT_BACK")]
    assert store.load(group) == StreamPosition({each: 10})
    store.save(group, StreamPosition({each: 2}), may_go_back=True)
    store.save_async(group, StreamPosition({each: 3}))
    assert store.flush(30)
    assert store.load(group) == StreamPosition({each: 3})


def test_the_last_commit_is_sent_at_the_end_though_it_failed_before(
    proxied_kafka: Any, topic: Any, group: str
) -> None:
    """T32, D36: the callback gets the error, the failure is counted, and closing sends it once more."""
    cluster, proxy = proxied_kafka
    each = TopicPartition(topic(on=cluster), 0)
    KafkaOffsetStore(settings_of(cluster.bootstrap), group=group).save(group, StreamPosition({each: 1}))
    store, listener = (
        KafkaOffsetStore(settings_of(cluster.bootstrap), group=group, timeout_ms=1_500),
        Listener(),
    )
    proxy.hold_answers(api_keys=[OFFSET_COMMIT])
    proxy.cut()
    try:
        store.save_async(group, StreamPosition({each: 2}), listener)
        assert not store.flush(20)  # tried twice: when it was offered, and at the flush
    finally:
        proxy.pass_on()
        proxy.cut()
    assert listener.told == [(StreamPosition({each: 2}), "BROKER_TIMEOUT")]
    assert (store.commits_done, store.commits_failed) == (0, 2)
    store.close()
    assert (store.commits_done, store.commits_failed) == (1, 2)
    assert KafkaOffsetStore(settings_of(cluster.bootstrap), group=group).load(group) == StreamPosition(
        {each: 2}
    )


@pytest.mark.usefixtures("topic")
def test_what_cannot_be_sent_at_the_end_is_told(
    kafka: Any, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D36: the log names the group; stopping a stream raises nothing."""
    store = KafkaOffsetStore(settings_of(kafka.bootstrap), group=group, timeout_ms=3_000)
    store.save_async(group, StreamPosition({TopicPartition("no-such-topic", 0): 2}))
    store.close()
    assert f"last position was not committed to group {group}" in caplog.text


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\n", "g" * 201])
def test_the_group_must_be_named(name: str) -> None:
    """C22: there is no default, and an ambiguous name is refused."""
    with pytest.raises(OptionError, match="GROUP_NAME_INVALID"):
        KafkaOffsetStore(ClientSettings((("127.0.0.1", 1),)), group=name)
