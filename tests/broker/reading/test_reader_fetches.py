"""How often a reader sends fetch requests, how long it waits, and how large or small its answers may be."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import BrokerError
from penstock.core.model import WorkOrder
from penstock.kafka.metadata import topic_admin
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.writing.plain_producer import Writer
from penstock.testing.proxy import FaultProxy
from tests.broker.reading.work_orders import order
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce

FETCH = 1
MIB = 1 << 20
#: Sizes of messages: below, between and far above every fetch limit, the largest between two others.
SIZES = (1, 10, 1000, 100_000, MIB + 1, 64 * MIB, 10 * MIB, 0)


@pytest.fixture
def four_mib(kafka: Any, topic: Any) -> str:
    """Return a topic with 4000 records of 1 kB that no codec can shrink, in batches of about 16 kB."""
    name: str = topic()
    produce(kafka.bootstrap, name, (os.urandom(1024) for _ in range(4000)), **{"batch.size": 16_384})
    return name


@pytest.mark.parametrize("fetch_bytes", [256 * 1024, MIB])
def test_the_number_of_fetches_is_the_bytes_over_the_fetch_size(
    kafka: Any, four_mib: str, fetch_bytes: int
) -> None:
    """D46: sequential reading sends one request for each full answer, and no more."""
    reader = KafkaReader()
    settings = settings_of(kafka.bootstrap, max_partition_fetch_bytes=fetch_bytes)
    rows = sum(batch.num_rows for batch in reader.read(order(settings, four_mib, 0, 4000)))
    assert rows == 4000
    least = 4000 * 1024 // fetch_bytes
    assert least <= reader.fetches <= 1.25 * least + 2


def test_an_answer_that_never_comes_is_an_error_with_all_its_names(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any
) -> None:
    """D44: the error names group, topic, partition, offset and limit, and comes at the limit, not before."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    produce(proxy.bootstrap, name, ["a"] * 5)
    settings = settings_of(proxy.bootstrap, group_id="the-group")
    proxy.hold_answers(api_keys={FETCH})
    try:
        with pytest.raises(BrokerError, match=r"\[FETCH_TIMEOUT\]") as caught:
            list(KafkaReader().read(order(settings, name, 0, 5, poll_timeout_ms=1500)))
    finally:
        proxy.pass_on()
    for part in (f"{name}-0", "offset 0", "the-group", "1500 ms", "kafkaConsumer.pollTimeoutMs"):
        assert part in str(caught.value)
    assert caught.value.retriable


_PEAK = """
import json, pickle, re, sys
from collections import Counter
import pyarrow.compute as pc
from penstock.kafka.reading.kafka_reader import KafkaReader
order = pickle.load(sys.stdin.buffer)
rows = Counter()
for batch in KafkaReader().read(order):
    for each in pc.value_counts(pc.binary_length(batch.column("value"))).to_pylist():
        rows[each["values"]] += each["counts"]
# Not ru_maxrss: that begins with what the process that started this one had.
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps([list(rows.items()), peak_kib // 1024]))
"""


def read_in_a_process(work: WorkOrder) -> tuple[dict[int, int], int]:
    """Read in a process that does nothing else; return rows by size of their value, and peak MiB."""
    import pickle

    run = subprocess.run(
        [sys.executable, "-c", _PEAK], input=pickle.dumps(work), capture_output=True, timeout=280
    )
    assert run.returncode == 0, run.stderr.decode()
    rows, peak_mib = json.loads(run.stdout)
    return dict(rows), peak_mib


@pytest.fixture(scope="module")
def all_sizes(kafka: Any) -> str:
    """Return a topic with one message of each of `SIZES`, in that order: the giant between smaller ones."""
    name = f"all-sizes-{secrets.token_hex(4)}"
    settings = settings_of(kafka.bootstrap)
    topic_admin.create_topic(settings, name, configs={"max.message.bytes": str(100 * MIB)})
    big = {"message.max.bytes": 100 * MIB, "queue.buffering.max.kbytes": 200 * 1024}
    for size in SIZES:
        produce(kafka.bootstrap, name, [bytes(size)], **big)
    return name


@pytest.mark.parametrize("limits", [{}, {"max_partition_fetch_bytes": 64 * 1024}], ids=["defaults", "small"])
def test_messages_from_one_byte_to_64_mib_are_read(
    kafka: Any, all_sizes: str, limits: dict[str, int]
) -> None:
    """T23: with the default settings and with smaller limits, in less than 512 MiB of memory."""
    settings = settings_of(kafka.bootstrap, **limits)
    rows, peak_mib = read_in_a_process(order(settings, all_sizes, 0, len(SIZES)))
    assert rows == dict.fromkeys(SIZES, 1)
    assert peak_mib < 512


@pytest.mark.slow
def test_ten_million_tiny_records_are_read(kafka: Any, topic: Any) -> None:
    """T23: values of 1 to 10 bytes, with less than 512 MiB of memory."""
    name = topic()
    settings = settings_of(kafka.bootstrap)
    values = pa.array([bytes(1 + n % 10) for n in range(100_000)], pa.binary())
    table = pa.table({"value": values, "partition": pa.array([0] * 100_000, pa.int32())})
    writer = Writer(settings)
    try:
        for _ in range(100):
            writer.write(name, table)
    finally:
        writer.close()
    rows, peak_mib = read_in_a_process(order(settings, name, 0, 10_000_000))
    assert rows == dict.fromkeys(range(1, 11), 1_000_000)
    assert peak_mib < 512
