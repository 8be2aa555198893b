"""How often a stream asks about the topics it reads, with and without `partition.metadata.cache.ttl.ms`."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.source.stream_reader import StreamReader
from penstock.kafka.metadata.routing import routing_for
from penstock.testing.proxy import FaultProxy
from tests.crash.leaders import Disturbance
from tests.spark.streaming import add_partitions, create_topic, delete_topic
from tests.support.waiting import wait_until

METADATA, A_DAY = 3, str(24 * 3600 * 1000)


@dataclass
class Trigger:
    """The driver's half of a stream, called as Spark calls it; it counts the requests for topic metadata."""

    reader: StreamReader
    proxy: FaultProxy
    at: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = self.reader.initialOffset()

    def __call__(self) -> int:
        """Plan the next batch and return how many times topics were asked for."""
        before = self.proxy.counts.requests[METADATA]
        self.at = self.reader.latestOffset(self.at, ReadMaxRows(2**63 - 1))
        return self.proxy.counts.requests[METADATA] - before

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self.at["offsets"]
        return found


def start(proxy: FaultProxy, ttl_ms: str, **options: str) -> Trigger:
    given = {
        "kafka.bootstrap.servers": proxy.bootstrap,
        "kafka.client.id": f"cache-{secrets.token_hex(4)}",  # so that it has its own map of the cluster
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "10",
        "PARTITION.metadata.cache.TTL.ms": ttl_ms,
    }
    parsed = parse_stream_options({**given, **options}, unique=secrets.token_hex(4))
    trigger = Trigger(StreamReader(parsed), proxy)
    assert trigger() > 0, "a new query always asks"
    return trigger


def write(bootstrap: str, topic: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v", partition=partition)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern", "assign"])
def test_triggers_within_the_time_ask_for_topics_only_before_a_batch(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any, way: str
) -> None:
    """B136: one that finds nothing new asks only for ends; without the option every trigger asks."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    chosen = {way: f'{{"{name}":[0]}}' if way == "assign" else name}
    cached, asking = start(proxy, A_DAY, **chosen), start(proxy, "-1", **chosen)
    for count in (1, 2, 3):
        write(cluster.bootstrap, name)
        assert 0 < cached() < asking()
        assert cached.offsets == asking.offsets == {name: {"0": count}}
        assert (cached(), cached()) == (0, 0)
        assert asking() > 0


def test_after_the_time_topics_are_asked_for_again_by_a_monotonic_clock(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B137: moving the wall clock forward expires nothing; elapsed time does."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    long, short = start(proxy, A_DAY, subscribe=name), start(proxy, "1", subscribe=name)
    days_ahead = time.time() + 10 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: days_ahead)
    monkeypatch.setattr(time, "time_ns", lambda: int(days_ahead) * 10**9)
    assert long() == 0
    over_at = time.monotonic() + 0.002
    wait_until(lambda: time.monotonic() > over_at, "the millisecond is over")
    assert short() > 0


def test_added_partitions_are_found_when_the_time_is_over(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B137: and they are read from their first row, as without the cache."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    trigger = start(proxy, A_DAY, subscribe=name)
    add_partitions(cluster.bootstrap, name, 2)
    write(cluster.bootstrap, name, partition=1)
    trigger()
    assert trigger.offsets == {name: {"0": 0}}
    monkeypatch.setattr(routing_for(trigger.reader.options.client)._cluster, "_clock", days_later)
    assert trigger() > 0
    assert trigger.offsets == {name: {"0": 0, "1": 1}}


def days_later() -> float:
    return time.monotonic() + 10 * 24 * 3600


@pytest.mark.parametrize(("retries", "rows"), [("1", 0), ("3", 0), ("3", 2)])
def test_a_recreated_topic_is_named_as_such_though_its_name_is_remembered(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any, retries: str, rows: int
) -> None:
    """An apparent loss is not explained from cached metadata, nor is an apparent growth."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    write(cluster.bootstrap, name)
    trigger = start(proxy, A_DAY, subscribe=name, **{"fetchOffset.numRetries": retries})
    delete_topic(cluster.bootstrap, name)
    create_topic(cluster.bootstrap, name)
    for _ in range(rows):
        write(cluster.bootstrap, name)
    with pytest.raises(Exception, match="TOPIC_RECREATED"):
        trigger()


def test_rows_of_a_leader_elected_within_the_time_are_no_loss(kafka3: Any, topic: Any) -> None:
    """An end is stored with the epoch it was reported under, even when topics are remembered."""
    name = topic(on=kafka3, factor=3)
    write(kafka3.bootstrap, name)
    options = {"kafka.bootstrap.servers": kafka3.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    options |= {"partition.metadata.cache.ttl.ms": A_DAY, "kafka.client.id": name}
    parsed = parse_stream_options(options, unique=name)
    reader, limit = StreamReader(parsed), ReadMaxRows(2**63 - 1)
    before = reader.latestOffset(reader.initialOffset(), limit)
    Disturbance(kafka3, name, seed=1).move()
    write(kafka3.bootstrap, name)
    after = reader.latestOffset(before, limit)
    assert after["offsets"] == {name: {"0": 2}}
    assert after["leaderEpochs"][name]["0"] > before["leaderEpochs"][name]["0"]
    assert StreamReader(parsed).latestOffset(after, limit) == after
