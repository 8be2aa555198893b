"""Many small ranges of a task are fetched with one request, in few Arrow batches; nothing else differs."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError
from penstock.core.model import COLUMNS, At, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection_pool import POOL
from penstock.testing.proxy import FaultProxy
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import delete_before, open_transaction, produce, send

FETCH = 1
PARTITIONS, EACH = 40, 5


def fill(cluster: Any, topic: Any) -> str:
    name: str = topic(PARTITIONS, on=cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for partition in range(PARTITIONS):
        values = [f"{partition}-{n}" for n in range(EACH)]
        send(producer, name, values, partition=partition, key=b"k", headers=[("h", b"%d" % partition)])
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def forty(kafka: Any, topic: Any) -> str:
    """Return a topic of 40 partitions with five records each."""
    return fill(kafka, topic)


def all_ranges(topic: str) -> list[RangeOrder]:
    return [RangeOrder(topic, n, At(0), At(EACH)) for n in range(PARTITIONS)]


def order_ranges(client: ClientSettings, ranges: list[RangeOrder], **fields: Any) -> WorkOrder:
    return WorkOrder(tuple(ranges), client, tuple(COLUMNS), poll_timeout_ms=20_000, **fields)


def rows_of(work: WorkOrder) -> list[dict[str, Any]]:
    return [row for batch in KafkaReader().read(work) for row in batch.to_pylist()]


def rows_one_by_one(client: ClientSettings, ranges: list[RangeOrder]) -> list[dict[str, Any]]:
    return [row for each in ranges for row in rows_of(order_ranges(client, [each]))]


def test_many_small_ranges_are_one_question_and_one_arrow_batch(kafka: Any, forty: str) -> None:
    """The rows are the same, whole and in order, as when each range is read alone."""
    client, reader = settings_of(kafka.bootstrap), KafkaReader()
    batches = list(reader.read(order_ranges(client, all_ranges(forty))))
    assert (reader.fetches, len(batches)) == (1, 1)
    found = [row for batch in batches for row in batch.to_pylist()]
    assert found == rows_one_by_one(client, all_ranges(forty))
    assert len(found) == PARTITIONS * EACH


def test_a_partition_that_is_there_twice_gives_both_ranges(kafka: Any, topic: Any) -> None:
    """A broker answers once per partition; this one answer must not be used for both ranges."""
    client, name = settings_of(kafka.bootstrap), topic(2)
    for number in range(EACH):  # one batch per record: an answer begins exactly where it was asked to
        produce(kafka.bootstrap, name, [str(number)])
    produce(kafka.bootstrap, name, ["other"], partition=1)
    ranges = [
        RangeOrder(name, 0, At(0), At(2)),
        RangeOrder(name, 1, At(0), At(1)),
        RangeOrder(name, 0, At(2), At(EACH)),
    ]
    found = rows_of(order_ranges(client, ranges))
    assert [(row["partition"], row["offset"]) for row in found] == [
        *[(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4)]
    ]
    assert found == rows_one_by_one(client, ranges)


def test_what_the_one_answer_has_no_room_for_is_asked_for_again(kafka: Any, forty: str) -> None:
    """With a limit of one byte a broker returns one batch of the first partition and nothing else."""
    client = settings_of(kafka.bootstrap, max_partition_fetch_bytes=1, fetch_max_bytes=1)
    reader = KafkaReader()
    found = [
        row for batch in reader.read(order_ranges(client, all_ranges(forty))) for row in batch.to_pylist()
    ]
    assert found == rows_one_by_one(settings_of(kafka.bootstrap), all_ranges(forty))
    assert reader.fetches >= PARTITIONS


def test_rows_of_aborted_transactions_are_left_out_of_a_shared_answer(kafka: Any, topic: Any) -> None:
    """Each partition's answer has its own list of aborted transactions; markers are not rows."""
    name = topic(3)
    for partition, ends in enumerate(("commit", "abort", "commit")):
        producer = open_transaction(kafka.bootstrap)
        send(producer, name, [f"{ends} {n}" for n in range(3)], partition=partition)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if ends == "commit" else producer.abort_transaction(30)
        produce(kafka.bootstrap, name, ["plain"], partition=partition)
    ranges = [RangeOrder(name, n, At(0), At(5)) for n in range(3)]
    for isolation, expected in (("read_committed", 4 + 1 + 4), ("read_uncommitted", 3 * 4)):
        client, reader = settings_of(kafka.bootstrap, isolation_level=isolation), KafkaReader()
        found = [row for batch in reader.read(order_ranges(client, ranges)) for row in batch.to_pylist()]
        assert (len(found), reader.fetches) == (expected, 1)
        assert found == rows_one_by_one(client, ranges)


def test_a_range_that_aged_out_among_others_is_told_as_if_it_were_alone(kafka: Any, forty: str) -> None:
    client = settings_of(kafka.bootstrap)
    delete_before(kafka.bootstrap, forty, 3, 7)
    with pytest.raises(DataLossError, match=r"OFFSET_OUT_OF_RANGE.*-7: offsets 0 to 3"):
        rows_of(order_ranges(client, all_ranges(forty)))
    losses: list[DataLossError] = []
    work = order_ranges(client, all_ranges(forty), fail_on_data_loss=False)
    found = [row for batch in KafkaReader(report=losses.append).read(work) for row in batch.to_pylist()]
    assert [loss.facts["partition"] for loss in losses] == [7]
    assert [row["offset"] for row in found if row["partition"] == 7] == [3, 4]
    assert len(found) == PARTITIONS * EACH - 3


def test_a_connection_that_breaks_under_the_one_question_costs_nothing(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any
) -> None:
    cluster, proxy = proxied_kafka
    name = fill(cluster, topic)
    POOL.close()
    client = settings_of(proxy.bootstrap, retry_backoff_ms=10)
    proxy.cut_before_answer(api_keys={FETCH})
    try:
        reader = KafkaReader()
        found = [
            row for batch in reader.read(order_ranges(client, all_ranges(name))) for row in batch.to_pylist()
        ]
    finally:
        proxy.pass_on()
    assert reader.fetches == 1 + PARTITIONS  # after the fault, each range was fetched separately
    assert [(row["partition"], row["offset"]) for row in found] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)
    ]
