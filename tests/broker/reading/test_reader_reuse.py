"""Readers side by side and one after the other: what they share, and what they must not share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark import TaskContext

from penstock.core.client.client_settings import SaslSettings, Secret
from penstock.core.model import Earliest, Latest, RangeOrder
from penstock.core.options.batch_options import parse_batch_options
from penstock.engines.reading.read_tasks import WorkPartition
from penstock.engines.source.batch_reader import BatchReader
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection_pool import POOL
from penstock.testing.proxy import FaultProxy
from tests.broker.reading.work_orders import offsets_of, order
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

API_VERSIONS, METADATA, LIST_OFFSETS, FETCH = 18, 3, 2, 1


@pytest.fixture
def proxy(proxied_kafka: tuple[Any, FaultProxy]) -> Iterator[FaultProxy]:
    """Return the proxy in front of the broker, without faults left over from the previous test."""
    POOL.close()
    proxied_kafka[1].pass_on()
    wait_until(lambda: proxied_kafka[1].counts.open == 0, "no connection is left over")
    yield proxied_kafka[1]
    proxied_kafka[1].pass_on()


@pytest.fixture
def filled(proxied_kafka: tuple[Any, FaultProxy], topic: Any) -> str:
    """Return a topic with 100 records, about 1 kB each, in batches of ten, behind the proxy."""
    name: str = topic(on=proxied_kafka[0])
    values = [b"%03d" % n + bytes(1000) for n in range(100)]
    produce(proxied_kafka[1].bootstrap, name, values, **{"batch.num.messages": 10})
    return name


def test_an_empty_range_opens_no_connection(filled: str, proxy: FaultProxy) -> None:
    """D21: an empty range sends nothing to the broker; a range with records does."""
    connections, requests = proxy.counts.connections, sum(proxy.counts.requests.values())
    settings = settings_of(proxy.bootstrap, client_id="empty")
    assert list(KafkaReader().read(order(settings, filled, 7, 7))) == []
    assert (proxy.counts.connections, sum(proxy.counts.requests.values())) == (connections, requests)
    assert offsets_of(order(settings, filled, 7, 8)) == [7]
    assert proxy.counts.connections > connections


def test_readings_one_after_the_other_use_one_connection(filled: str, proxy: FaultProxy) -> None:
    """B159, B236, F40: a worker's first read opens the connection, and later reads open no other."""
    settings, before = settings_of(proxy.bootstrap), proxy.counts.connections
    for _ in range(6):
        assert offsets_of(order(settings, filled, 0, 5)) == list(range(5))
        assert proxy.counts.connections == before + 1


def test_a_second_read_uses_the_connection_of_the_first(filled: str, proxy: FaultProxy) -> None:
    """D47, F40, B159: it is kept while idle and found by broker and login; no group is joined."""
    settings = settings_of(proxy.bootstrap, group_id="somebody")
    asked = dict(proxy.counts.requests)
    offsets_of(order(settings, filled, 0, 10))
    connections = proxy.counts.connections
    assert offsets_of(order(replace(settings, group_id="other"), filled, 10, 20)) == list(range(10, 20))
    assert proxy.counts.connections == connections
    assert len(POOL._lent) == 0
    new = {key for key, count in proxy.counts.requests.items() if count > asked.get(key, 0)}
    assert new <= {API_VERSIONS, METADATA, LIST_OFFSETS, FETCH}


def test_other_credentials_get_other_connections(filled: str, proxy: FaultProxy) -> None:
    """B160: a request with a renewed password of the same user never uses the first one's connection."""

    def read_as(password: str) -> None:
        # The broker asks for no login; what matters is that the pool tells the two apart.
        login = SaslSettings("PLAIN", "user", Secret(password))
        offsets_of(order(settings_of(proxy.bootstrap, sasl=login), filled, 0, 10))

    read_as("old")
    connections = proxy.counts.connections
    read_as("old")
    assert proxy.counts.connections == connections
    read_as("new")
    assert proxy.counts.connections > connections


def test_without_the_pool_nothing_stays_open(filled: str, proxy: FaultProxy) -> None:
    """D47, I5: neither the connection for fetches nor those for leaders and bounds."""
    settings = settings_of(proxy.bootstrap)
    work = order(settings, filled, 0, 10, use_pool=False)
    work = replace(work, ranges=(RangeOrder(filled, 0, Earliest(), Latest()),))
    assert offsets_of(work) == list(range(100))
    wait_until(lambda: proxy.counts.open == 0, "every connection is closed")
    connections = proxy.counts.connections
    assert offsets_of(work) == list(range(100))
    assert proxy.counts.connections > connections


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_repeated_task_gets_a_connection_nobody_used(
    filled: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    """B158, T53: the first attempt may take an idle connection, a retry may not."""
    texts = {"kafka.bootstrap.servers": proxy.bootstrap, "subscribe": filled}
    texts["endingOffsets"] = f'{{"{filled}":{{"0":10}}}}'
    reader = BatchReader(parse_batch_options(texts, unique="u"))
    (task,) = reader.partitions()
    assert isinstance(task, WorkPartition)
    assert sum(batch.num_rows for batch in reader.read(task)) == 10
    connections = proxy.counts.connections
    # Patched before the context is created, because the constructor sets that attribute itself and no later
    # patch would undo it.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext(attemptNumber=attempt)
    assert sum(batch.num_rows for batch in reader.read(task)) == 10
    assert proxy.counts.connections - connections == attempt


def test_a_reader_that_is_left_early_leaves_nothing_behind(filled: str, proxy: FaultProxy) -> None:
    """F40: no thread and no lent connection remain; one with an answer in flight is closed, not kept."""
    settings = settings_of(proxy.bootstrap, max_partition_fetch_bytes=2000)
    threads = threading.active_count()
    batches = KafkaReader().read(order(settings, filled, 0, 100))
    next(batches)
    assert threading.active_count() == threads
    assert [connection.in_flight for connection in POOL._lent] == [1]  # the next request is in flight
    batches.close()  # type: ignore[attr-defined]
    assert (threading.active_count(), len(POOL._lent)) == (threads, 0)
    # No answer is due on a kept connection, so a new reader can trust its bytes.
    assert all(connection.in_flight == 0 for _, connection in POOL._idle)
    wait_until(lambda: proxy.counts.open == len(POOL._idle), "the half-read connection is closed")
    assert offsets_of(order(settings, filled, 0, 100)) == list(range(100))


def test_two_readers_of_one_partition_keep_their_rows_apart(kafka: Any, topic: Any) -> None:
    """B162, B163, T53, F41: different ranges, then the same next offset, taking turns."""
    name = topic()
    for start in range(0, 400, 20):
        produce(kafka.bootstrap, name, [b"%d" % n + bytes(200) for n in range(start, start + 20)])
    settings = settings_of(kafka.bootstrap, max_partition_fetch_bytes=5000)
    for ranges in ([(0, 300), (150, 400)], [(40, 400), (40, 400)]):
        readers = [KafkaReader().read(order(settings, name, *each)) for each in ranges]
        seen: list[list[int]] = [[], []]
        alive = {0, 1}
        while alive:
            for index in sorted(alive):
                batch = next(readers[index], None)
                if batch is None:
                    alive.discard(index)
                    continue
                for offset, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    assert value.startswith(b"%d\0" % offset)
                    seen[index].append(offset)
        assert seen == [list(range(*each)) for each in ranges]


def test_many_threads_each_see_every_record_in_order(kafka: Any, topic: Any) -> None:
    """B161, B238: 500 reads in 100 threads on one partition, headers included."""
    name = topic()
    for n in range(60):
        produce(
            kafka.bootstrap, name, [b"%d" % n], headers=[("n", b"%d" % n), ("twice", b"a"), ("twice", b"b")]
        )
    settings = settings_of(kafka.bootstrap)
    routing_for(settings)
    expected = [(n, b"%d" % n, [("n", b"%d" % n), ("twice", b"a"), ("twice", b"b")]) for n in range(60)]

    def read(_: int) -> list[tuple[int, bytes, list[tuple[str, bytes]]]]:
        work = order(settings, name, 0, 60, columns=("offset", "value", "headers"))
        return [
            (row["offset"], row["value"], [(each["key"], each["value"]) for each in row["headers"]])
            for batch in KafkaReader().read(work)
            for row in batch.to_pylist()
        ]

    with ThreadPoolExecutor(100) as threads:
        assert all(found == expected for found in threads.map(read, range(500)))
    assert len(POOL._lent) == 0
