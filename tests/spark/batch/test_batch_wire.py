"""What a batch read sends and leaves behind, seen from a proxy in front of the broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.testing.proxy import FaultProxy
from tests.spark.conftest import Load
from tests.spark.rows import offsets, span
from tests.support.kafka.topic_filling import produce
from tests.support.python_workers import find_process, waiting_ports
from tests.support.waiting import wait_until

FETCH, METADATA = 1, 3


@pytest.fixture
def proxy(proxied_kafka: tuple[Any, FaultProxy]) -> Iterator[FaultProxy]:
    yield proxied_kafka[1]
    proxied_kafka[1].pass_on()


@pytest.fixture
def big(proxied_kafka: tuple[Any, FaultProxy], topic: Any) -> str:
    """Return a topic of 5000 records of 4 kB: 20 MB, more than the sockets up to the JVM can buffer."""
    name: str = topic(on=proxied_kafka[0])
    produce(proxied_kafka[1].bootstrap, name, (os.urandom(4096) for _ in range(5000)))
    return name


def test_planning_fetches_no_record(
    load: Load, proxied_kafka: tuple[Any, FaultProxy], proxy: FaultProxy, topic: Any
) -> None:
    """F8, F15: loading asks the brokers nothing, planning asks about offsets, only tasks fetch."""
    name = topic(2, on=proxied_kafka[0])
    produce(proxy.bootstrap, name, ["x"] * 10)
    before = proxy.counts.requests.copy()
    frame = load(name, on=proxy, minPartitions=4)
    assert frame.schema["offset"] is not None
    assert proxy.counts.requests == before
    assert frame.rdd.getNumPartitions() == 4
    assert proxy.counts.requests[METADATA] > before[METADATA]
    assert proxy.counts.requests[FETCH] == before[FETCH]
    assert offsets(frame) == span(0, 0, 10)
    assert proxy.counts.requests[FETCH] > before[FETCH]


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_fails_its_task_with_a_readable_message(
    load: Load, proxy: FaultProxy, big: str, death: signal.Signals
) -> None:
    """B307, T51: it is killed while it waits for the broker; the query fails, and the next one works."""
    frame = load(big, on=proxy)
    proxy.hold_answers(api_keys={FETCH})
    with ThreadPoolExecutor(1) as thread:
        query = thread.submit(frame.select("offset").count)
        try:
            wait_until(
                lambda: query.done() or waiting_ports(proxy, FETCH), "the task waits for an answer", 90
            )
            assert not query.done(), query.exception()
            (port,) = waiting_ports(proxy, FETCH)
            os.kill(find_process(port), death)
            with pytest.raises(Exception, match=r"(?i)python worker.*(crash|exited unexpectedly|terminated)"):
                query.result(timeout=90)
        finally:
            proxy.pass_on()
    assert frame.count() == 5000


def test_a_query_that_has_enough_stops_reading(load: Load, proxy: FaultProxy, big: str) -> None:
    """F40: a limit ends the reading early and leaves no request unanswered at the broker."""
    frame = load(big, on=proxy, kafka__max__partition__fetch__bytes=65536)
    assert frame.count() == 5000
    before = proxy.counts.requests[FETCH]
    assert len(frame.limit(3).collect()) == 3
    wait_until(lambda: not waiting_ports(proxy, FETCH), "nobody reads on")
    assert proxy.counts.requests[FETCH] - before < before / 2


def test_a_cancelled_query_stops_reading(
    spark: SparkSession, load: Load, proxy: FaultProxy, big: str
) -> None:
    """F40: it is cancelled in the middle; its connection is closed, and the same frame can be read again."""
    frame = load(big, on=proxy, kafka__max__partition__fetch__bytes=65536)
    before = proxy.counts.requests[FETCH]
    proxy.delay(100, direction="answers", api_keys={FETCH})

    def run() -> int:
        spark.sparkContext.setJobGroup("to-cancel", "a read that is cancelled", interruptOnCancel=True)
        return frame.count()

    with ThreadPoolExecutor(1) as thread:
        query = thread.submit(run)
        wait_until(lambda: proxy.counts.requests[FETCH] > before + 3, "the read has begun", 90)
        spark.sparkContext.cancelJobGroup("to-cancel")
        with pytest.raises(Exception, match=r"(?i)cancel"):
            query.result(timeout=90)
    wait_until(lambda: not waiting_ports(proxy, FETCH), "nobody reads on", 60)
    assert proxy.counts.requests[FETCH] - before < 5000 * 4096 / 65536 / 2
    proxy.pass_on()
    assert frame.count() == 5000


def test_two_queries_at_once_both_get_everything(load: Load, proxy: FaultProxy, big: str) -> None:
    """F16: they run side by side on one topic, and one of them is interrupted by a cut connection."""
    frames = [load(big, on=SimpleNamespace(bootstrap=proxy.bootstrap)) for _ in range(2)]
    proxy.cut_before_answer(api_keys={FETCH})
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda frame: frame.count(), frames)) == [5000, 5000]
    assert proxy.counts.cuts > 0
