"""Readers that share one process and its connection pool, on one real partition."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from penstock.core.client.client_settings import ClientSettings
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection_pool import POOL
from tests.broker.reading.work_orders import order
from tests.support.kafka.client_settings import settings_of

ROWS = 60


@pytest.fixture
def filled(kafka: Any, topic: Any) -> tuple[ClientSettings, str]:
    """Return settings and a topic with numbered values and headers, in several record batches."""
    name: str = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(ROWS):
        producer.produce(name, b"%d" % number, partition=0, headers=[("n", b"%d" % number)])
        if number % 10 == 9:
            assert producer.flush(30) == 0
    # Fetches are small, so each read takes several requests and keeps one of them in flight.
    return settings_of(kafka.bootstrap, max_partition_fetch_bytes=300, fetch_max_bytes=300), name


def read(settings: ClientSettings, topic: str, start: int, until: int) -> Iterator[pa.RecordBatch]:
    return KafkaReader().read(order(settings, topic, start, until, columns=("offset", "value", "headers")))


def expected(start: int, until: int) -> list[dict[str, Any]]:
    return [
        {"offset": n, "value": b"%d" % n, "headers": [{"key": "n", "value": b"%d" % n}]}
        for n in range(start, until)
    ]


def rows(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_five_hundred_readings_from_a_hundred_threads_each_see_everything_in_order(
    filled: tuple[ClientSettings, str],
) -> None:
    """B161: every value and header arrives in order, whoever else reads the same partition."""
    settings, topic = filled
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()

    def work(number: int) -> None:
        for turn in range(5):
            start = (number + turn) % 20
            try:
                seen = rows(read(settings, topic, start, ROWS))
                outcome = "right" if seen == expected(start, ROWS) else "wrong rows"
            except BaseException as error:
                outcome = repr(error)
                raise
            finally:
                with lock:
                    outcomes[outcome] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"right": 500}
    assert len(POOL._lent) == 0


def test_two_tasks_on_different_ranges_of_one_partition_keep_their_places(
    filled: tuple[ClientSettings, str],
) -> None:
    """B162: read in turns, each continues where it was."""
    settings, topic = filled
    one = read(settings, topic, 0, 40)
    two = read(settings, topic, 20, 60)
    seen_by_one, seen_by_two = rows([next(one)]), rows([next(two)])
    assert len(seen_by_one) < 40
    assert len(seen_by_two) < 40
    for batch in one:
        seen_by_one += batch.to_pylist()
    for batch in two:
        seen_by_two += batch.to_pylist()
    assert seen_by_one == expected(0, 40)
    assert seen_by_two == expected(20, 60)


def test_a_reading_that_stops_early_leaves_nothing_behind_for_the_next_one(
    filled: tuple[ClientSettings, str],
) -> None:
    """B163: an answer that is still in flight never reaches another task, even for the same next offset."""
    settings, topic = filled
    for _ in range(5):
        reading = read(settings, topic, 0, ROWS)
        first = rows([next(reading)])
        reading.close()  # type: ignore[attr-defined]
        assert first == expected(0, len(first))
        following = len(first)
        assert rows(read(settings, topic, following, ROWS)) == expected(following, ROWS)
    assert len(POOL._lent) == 0
