"""Our producer against a real broker; librdkafka checks what was stored."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.cluster import LocalKafka
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, PenstockError, SinkError
from penstock.kafka.records.codecs import CODEC_NAMES, LZ4, NONE
from penstock.kafka.transport.connection_pool import ConnectionPool
from penstock.kafka.writing.partition_choice import KEYLESS_RUN
from penstock.kafka.writing.plain_producer import Writer
from penstock.testing.proxy import FaultProxy
from tests.conftest import MakeTopic
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.librdkafka import read_partition

pytestmark = pytest.mark.kafka  # also for the tests that start a cluster of their own

PRODUCE = 0
DESCRIBE_CONFIGS = 32
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_keys_go_where_java_puts_them(kafka: Any, topic: MakeTopic, settings: ClientSettings) -> None:
    """B4: item1 -> 1, item2 -> 0, item3 -> 2, stored by a real broker."""
    name = topic(3)
    written = Writer(settings).write(name, pa.record_batch({"key": ["item1", "item2", "item3"]}))
    assert written.counts == {0: 1, 1: 1, 2: 1}
    stored = [[row.key for row in read_partition(kafka.bootstrap, name, partition)] for partition in range(3)]
    assert stored == [[b"item2"], [b"item1"], [b"item3"]]


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_every_codec_is_taken_by_the_broker_and_read_by_librdkafka(
    kafka: Any, topic: MakeTopic, settings: ClientSettings, codec: int
) -> None:
    """T24, T25, B046, B050: null, empty, repeated headers and times, written to the broker and read back."""
    name = topic(1)
    states = [None, b"", b"x" * 300]
    rows = [(key, value) for key in states for value in states] * 40
    marks = [[("b", b"1"), ("a", None), ("b", b"")], [], None] * 120
    table = pa.record_batch(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "headers": pa.array(
                [None if some is None else [{"key": k, "value": v} for k, v in some] for some in marks],
                HEADERS,
            ),
            "timestamp": pa.array(range(1_600_000_000_000, 1_600_000_000_000 + len(rows)), pa.int64()),
        }
    )
    written = Writer(settings, codec=codec, max_batch_bytes=10_000).write(name, table)
    assert written.offsets == {0: (0, len(rows))}
    stored = read_partition(kafka.bootstrap, name)
    assert [(row.key, row.value) for row in stored] == rows
    assert [row.headers for row in stored] == [tuple(some or ()) for some in marks]
    assert [row.timestamp_ms for row in stored] == table.column("timestamp").to_pylist()


def test_records_without_a_key_are_spread_in_runs(topic: MakeTopic, settings: ClientSettings) -> None:
    name = topic(3)
    writer = Writer(settings)
    assert writer.write(name, pa.record_batch({"value": [b"v"] * (3 * KEYLESS_RUN)})).counts == {
        0: KEYLESS_RUN, 1: KEYLESS_RUN, 2: KEYLESS_RUN,
    }  # fmt: skip
    few = [writer.write(name, pa.record_batch({"value": [b"v"]})).counts for _ in range(3)]
    assert sorted(partition for counts in few for partition in counts) == [0, 1, 2]


def test_an_explicit_partition_wins_over_the_key(topic: MakeTopic, settings: ClientSettings) -> None:
    name = topic(3)
    table = pa.record_batch(
        {"key": ["item1", "item1", "item1"], "partition": pa.array([2, None, 0], pa.int32())}
    )
    assert Writer(settings).write(name, table).counts == {2: 1, 1: 1, 0: 1}


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_does_not_exist_is_refused_before_anything_is_sent(
    kafka: Any, topic: MakeTopic, settings: ClientSettings, wrong: int
) -> None:
    name = topic(3)
    table = pa.record_batch({"value": [b"v", b"v"], "partition": pa.array([0, wrong], pa.int32())})
    with pytest.raises(SinkError, match=r"^\[PARTITION_OUT_OF_RANGE\]"):
        Writer(settings).write(name, table)
    assert read_partition(kafka.bootstrap, name, 0) == []


def test_a_missing_topic_is_an_error_and_is_not_created(settings: ClientSettings) -> None:
    with pytest.raises(PenstockError, match=r"^\[UNKNOWN_TOPIC_OR_PARTITION\]"):
        Writer(settings).write("there-is-no-such-topic", pa.record_batch({"value": [b"v"]}))


def test_a_table_of_many_chunks_keeps_its_order(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    name = topic(1)
    chunks = [pa.record_batch({"value": [b"%d-%d" % (n, i) for i in range(500)]}) for n in range(7)]
    written = Writer(settings, codec=LZ4, max_batch_bytes=2_000).write(name, pa.Table.from_batches(chunks))
    assert written.records == 3500
    expected = [value for chunk in chunks for value in chunk.column("value").to_pylist()]
    assert [row.value for row in read_partition(kafka.bootstrap, name)] == expected


def test_a_record_the_broker_finds_too_large_is_an_error_with_its_reason(
    topic: MakeTopic, settings: ClientSettings
) -> None:
    """T23: the error names the broker's limit, and the writer works again afterwards."""
    name = topic(1, max_message_bytes=10_000)
    writer = Writer(settings)
    with pytest.raises(BrokerError, match=r"^\[MESSAGE_TOO_LARGE\]"):
        writer.write(name, pa.record_batch({"value": [b"v" * 20_000]}))
    assert writer.write(name, pa.record_batch({"value": [b"small"]})).records == 1


def test_a_lost_acknowledgement_makes_no_duplicate(
    proxied_kafka: tuple[LocalKafka, FaultProxy], topic: MakeTopic
) -> None:
    """The broker has the batch, but its answer never arrives: the retry must not be stored again."""
    cluster, proxy = proxied_kafka
    name = topic(2, on=cluster)
    writer = Writer(settings_of(proxy.bootstrap), codec=NONE, max_batch_bytes=2_000)
    values = [b"%d" % number for number in range(2_000)]
    writer.write(name, pa.record_batch({"value": values, "partition": pa.array([0] * 2_000, pa.int32())}))
    cuts = proxy.counts.cuts
    for _ in range(3):
        proxy.cut_before_answer(api_keys=[PRODUCE])
        writer.write(name, pa.record_batch({"value": values, "partition": pa.array([0] * 2_000, pa.int32())}))
    assert proxy.counts.cuts >= cuts + 3
    assert [row.value for row in read_partition(cluster.bootstrap, name)] == values * 4


def test_silence_ends_at_the_delivery_deadline(
    proxied_kafka: tuple[LocalKafka, FaultProxy], topic: MakeTopic
) -> None:
    cluster, proxy = proxied_kafka
    name = topic(2, on=cluster)
    writer = Writer(settings_of(proxy.bootstrap, request_timeout_ms=500), delivery_timeout_ms=1_500)
    writer.write(name, pa.record_batch({"value": [b"before"]}))
    proxy.hold_answers(api_keys=[PRODUCE])
    try:
        with pytest.raises(BrokerError, match=r"^\[BROKER_TIMEOUT\]"):
            writer.write(name, pa.record_batch({"value": [b"never heard of"]}))
    finally:
        proxy.pass_on()
    assert writer.write(name, pa.record_batch({"value": [b"after"]})).records == 1


def test_a_write_does_without_the_limit_of_its_topic_when_nobody_tells_it(
    proxied_kafka: tuple[LocalKafka, FaultProxy], topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, proxy = proxied_kafka
    name = topic(2, on=cluster)
    writer = Writer(settings_of(proxy.bootstrap, default_api_timeout_ms=1_000))
    large = pa.record_batch({"value": [b"v" * 3_000] * 2})
    proxy.hold_answers(api_keys=[DESCRIBE_CONFIGS])
    try:
        with monkeypatch.context() as hasty:
            hasty.setattr("penstock.kafka.writing.plain_producer.HINT_TIMEOUT_MS", 300)
            assert writer.write(name, large).records == 2
    finally:
        proxy.pass_on()
    asked = proxy.counts.requests[DESCRIBE_CONFIGS]
    assert writer.write(name, large).records == 2
    assert proxy.counts.requests[DESCRIBE_CONFIGS] == asked  # a silent broker is not waited for each time
    monkeypatch.setattr(writer, "_ask_again_at", {})
    for _ in range(2):
        assert writer.write(name, large).records == 2
    assert proxy.counts.requests[DESCRIBE_CONFIGS] == asked + 1  # asked again, and then known


def test_without_a_back_off_a_batch_is_still_repeated_with_pauses(
    proxied_kafka: tuple[LocalKafka, FaultProxy],
    topic: MakeTopic,
) -> None:
    """`retry.backoff.ms` 0 must not keep a core and a broker busy until the deadline."""
    cluster, proxy = proxied_kafka
    name = topic(2, on=cluster)
    settings = settings_of(proxy.bootstrap, retry_backoff_ms=0, request_timeout_ms=50)
    writer = Writer(settings, delivery_timeout_ms=2_000)
    writer.write(name, pa.record_batch({"value": [b"before"]}))
    before = proxy.counts.requests[PRODUCE]
    proxy.hold_answers(api_keys=[PRODUCE])
    try:
        with pytest.raises(BrokerError, match=r"^\[BROKER_TIMEOUT\]"):
            writer.write(name, pa.record_batch({"value": [b"never heard of"]}))
    finally:
        proxy.pass_on()
    assert 2 <= proxy.counts.requests[PRODUCE] - before <= 10


def test_connections_go_back_to_the_pool(topic: MakeTopic, settings: ClientSettings) -> None:
    name = topic(1)
    writer = Writer(settings)
    pool: ConnectionPool = writer._routing.pool
    lent = len(pool._lent)
    writer.write(name, pa.record_batch({"value": [b"v"]}))
    assert len(pool._lent) == lent


def test_batches_are_as_small_as_their_topic_wants_them(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    """Each record fits on its own; only their sum is more than a broker accepts."""
    name = topic(max_message_bytes=20_000)
    values = [random.Random(number).randbytes(5_000) for number in range(20)]
    for codec in (NONE, LZ4):
        with Writer(settings, codec=codec) as writer:
            assert writer.write(name, pa.record_batch({"value": values})).records == 20
            with pytest.raises(BrokerError, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
                writer.write(name, pa.record_batch({"value": [random.Random(0).randbytes(25_000)]}))
    assert [row.value for row in read_partition(kafka.bootstrap, name)] == values * 2
