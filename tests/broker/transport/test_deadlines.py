"""Every wait for a broker ends: a proxy in front of a real broker delays, drops, cuts and refuses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.metadata import topic_admin
from penstock.kafka.metadata.routing import Routing, routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.connection_pool import ConnectionPool
from penstock.testing.proxy import FaultProxy
from tests.support.waiting import wait_until

LIMIT_MS = 700
LIST_OFFSETS, METADATA, OFFSET_FETCH, FETCH = 2, 3, 9, 1
PARTITION = TopicPartition("deadlines", 0)


@pytest.fixture
def proxy(proxied_kafka: tuple[Any, FaultProxy]) -> Iterator[FaultProxy]:
    proxy = proxied_kafka[1]
    settings = patient(proxy)
    if not topic_admin.topic_exists(settings, PARTITION.topic):
        topic_admin.create_topic(settings, PARTITION.topic, partitions=4)
        KafkaLogView(settings).committed("deadlines", [PARTITION])  # this creates the coordinator's topic
    yield proxy
    proxy.accept()
    proxy.pass_on()


@pytest.fixture
def view(proxy: FaultProxy) -> Iterator[KafkaLogView]:
    """Return a view with a short limit and its own pool, which has talked to the broker before."""
    settings = patient(proxy, default_api_timeout_ms=LIMIT_MS, request_timeout_ms=30_000)
    pool = ConnectionPool()
    view = KafkaLogView(settings, routing=Routing(settings, pool))
    view.latest([PARTITION])
    view.committed("deadlines", [PARTITION])
    yield view
    pool.close()


def patient(proxy: FaultProxy, **limits: int) -> ClientSettings:
    return ClientSettings((proxy.address,), **limits)  # type: ignore[arg-type]


CALLS: dict[str, Callable[[KafkaLogView], object]] = {
    "topics": lambda view: view.topics(),
    "describe": lambda view: view.describe([PARTITION.topic]),
    "earliest": lambda view: view.earliest([PARTITION]),
    "latest": lambda view: view.latest([PARTITION]),
    "at_time": lambda view: view.at_time({PARTITION: 5}),
    "committed": lambda view: view.committed("deadlines", [PARTITION]),
}


def failure_of(call: Callable[[KafkaLogView], object], view: KafkaLogView) -> BrokerError:
    begun = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        call(view)
    took = time.monotonic() - begun
    assert took < LIMIT_MS / 1000 + 1, f"{took:.1f} s"
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_a_broker_that_hears_and_never_answers_ends_each_call_at_its_deadline(
    name: str, proxy: FaultProxy, view: KafkaLogView
) -> None:
    proxy.hold_answers()
    error = failure_of(CALLS[name], view)
    assert error.condition == "BROKER_TIMEOUT"
    assert error.retriable
    assert f"{LIMIT_MS} ms (default.api.timeout.ms)" in str(error)
    proxy.pass_on()
    CALLS[name](view)  # no trace of the fault is left in the pool


@pytest.mark.parametrize("name", CALLS)
def test_a_silent_network_ends_each_call_at_its_deadline(
    name: str, proxy: FaultProxy, view: KafkaLogView
) -> None:
    proxy.swallow()
    assert failure_of(CALLS[name], view).condition == "BROKER_TIMEOUT"


@pytest.mark.parametrize(
    ("name", "api_key", "words"),
    [
        ("latest", LIST_OFFSETS, "to ListOffsets"),
        ("describe", METADATA, "to Metadata"),
        ("committed", OFFSET_FETCH, "to OffsetFetch"),
    ],
)
def test_the_error_names_the_request_that_was_not_answered(
    name: str, api_key: int, words: str, proxy: FaultProxy, view: KafkaLogView
) -> None:
    proxy.hold_answers(api_keys=[api_key])
    assert words in str(failure_of(CALLS[name], view))


@pytest.mark.parametrize("name", CALLS)
def test_a_broker_that_is_gone_is_tried_until_the_deadline_and_then_named(
    name: str, proxy: FaultProxy, view: KafkaLogView
) -> None:
    proxy.refuse()
    proxy.cut()
    error = failure_of(CALLS[name], view)
    assert error.condition == "BROKER_TIMEOUT"
    assert error.facts["last_condition"] == "BROKER_UNREACHABLE"
    assert f"No connection to 127.0.0.1:{proxy.port}" in str(error)


@pytest.mark.parametrize(("name", "api_key"), [("latest", LIST_OFFSETS), ("committed", OFFSET_FETCH)])
def test_a_connection_that_breaks_under_a_question_is_replaced_and_the_question_asked_again(
    name: str, api_key: int, proxy: FaultProxy, view: KafkaLogView
) -> None:
    """B134: a failing offset call is repeated over a fresh connection and succeeds."""
    before = proxy.counts.requests[api_key]
    expected = CALLS[name](view)
    proxy.cut_before_answer(api_keys=[api_key])
    assert CALLS[name](view) == expected
    assert proxy.counts.requests[api_key] - before == 3  # once successfully, once cut off, once retried


def test_metadata_that_breaks_is_asked_again(proxy: FaultProxy, view: KafkaLogView) -> None:
    """B134: metadata requests are retried in the same way."""
    proxy.cut_before_answer(api_keys=[METADATA])
    assert list(view.describe([PARTITION.topic])) == [PARTITION.topic]


def test_a_broker_that_comes_back_within_the_deadline_is_used(proxy: FaultProxy) -> None:
    """The broker comes back after attempts have failed, not after a fixed time."""
    view = KafkaLogView(patient(proxy, default_api_timeout_ms=20_000))
    view.latest([PARTITION])
    broker, before = proxy.target, proxy.counts.connections
    proxy.target = None  # connections are accepted, counted and broken
    proxy.cut()
    try:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(view.latest, [PARTITION])
            wait_until(lambda: proxy.counts.connections >= before + 2, "the first try has failed")
            assert not asked.done()
            proxy.target = broker
            assert asked.result(timeout=30) == {PARTITION: 0}
    finally:
        proxy.target = broker


def test_a_topic_that_is_being_created_is_waited_for(proxy: FaultProxy) -> None:
    """A leader that was asked about too early is found a moment later."""
    settings = patient(proxy, retry_backoff_ms=500)  # so that few attempts pass before the topic exists
    name = f"late-{secrets.token_hex(4)}"
    before = proxy.counts.requests[METADATA]
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(routing_for(settings).leader, name, 0, Deadline.after_ms(30_000))
        wait_until(
            lambda: proxy.counts.requests[METADATA] >= before + 2, "the first answer knew no such topic"
        )
        assert not asked.done()
        topic_admin.create_topic(settings, name)
        leader = asked.result(timeout=30)
    assert leader.topic_id == KafkaLogView(settings).describe([name])[name].topic_id


def test_connecting_through_a_silent_network_ends_at_the_set_up_limit(proxy: FaultProxy) -> None:
    proxy.swallow()
    settings = patient(proxy, socket_connection_setup_timeout_ms=300)
    begun = time.monotonic()
    with pytest.raises(BrokerError, match=r"300 ms \(socket\.connection\.setup\.timeout\.ms\)"):
        Connection(settings, *proxy.address, Deadline.after_ms(60_000))
    assert time.monotonic() - begun < 1.3


def test_planning_asks_each_broker_once_and_fetches_no_record(proxy: FaultProxy, view: KafkaLogView) -> None:
    """F20: the bounds of many partitions take one request, and none of the calls reads data."""
    partitions = [TopicPartition(PARTITION.topic, index) for index in range(4)]
    before = proxy.counts.requests.copy()
    view.latest(partitions)
    asked = proxy.counts.requests - before
    assert asked == {LIST_OFFSETS: 1}
    for call in CALLS.values():
        call(view)
    assert proxy.counts.requests[FETCH] == 0
