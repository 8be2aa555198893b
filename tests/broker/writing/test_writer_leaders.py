"""Writing continues while a leader dies: every record is stored once, in order."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, TopicPartition

from penstock.core.client.client_settings import ClientSettings
from penstock.kafka.writing.batch_delivery import DeliveredRecords
from penstock.kafka.writing.plain_producer import Writer
from tests.broker.reading.test_reader_leaders import leader_of
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.librdkafka import consumer_of, read_partition

PARTITIONS, CHUNKS, ROWS = 3, 60, 300


def wait_for_records(bootstrap: str, topic: str) -> None:
    deadline = time.monotonic() + 60
    with consumer_of(bootstrap, committed=False) as consumer:
        end = 0
        while end == 0:
            assert time.monotonic() < deadline, "nothing was written"
            with contextlib.suppress(KafkaException):  # not every broker knows such a new topic yet
                end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_write_goes_on_when_a_leader_is_gone(kafka3: Any, topic: Any, end: str) -> None:
    """The leader is stopped or killed during the write; nothing is lost, duplicated or reordered."""
    name = topic(PARTITIONS, on=kafka3, factor=3, min_insync_replicas=2)
    chunk = [b"%d-%d" % (part, row) for row in range(ROWS) for part in range(PARTITIONS)]
    table = pa.Table.from_batches(
        [
            pa.record_batch(
                {
                    "value": [b"%d/" % number + value for value in chunk],
                    "partition": pa.array(list(range(PARTITIONS)) * ROWS, pa.int32()),
                }
            )
            for number in range(CHUNKS)
        ]
    )
    settings: ClientSettings = settings_of(kafka3.bootstrap, socket_connection_setup_timeout_ms=2000)
    writer = Writer(settings, max_batch_bytes=1_500)
    results: list[DeliveredRecords] = []
    thread = threading.Thread(target=lambda: results.append(writer.write(name, table)))
    thread.start()
    wait_for_records(kafka3.bootstrap, name)
    under_way = thread.is_alive()
    leader = leader_of(kafka3, name)
    getattr(leader, end)()
    try:
        thread.join(180)
        assert under_way, "the writer was done before the leader died: write more"
        assert [written.records for written in results] == [CHUNKS * ROWS * PARTITIONS]
        for partition in range(PARTITIONS):
            expected = [b"%d/%d-%d" % (n, partition, row) for n in range(CHUNKS) for row in range(ROWS)]
            rows = read_partition(kafka3.bootstrap, name, partition)
            assert [row.value for row in rows] == expected
    finally:
        leader.start()
        kafka3.wait_until_ready()
