"""Topics for benchmarks, filled fast by our own writer with text that looks like an access log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.client.client_settings import ClientSettings
from penstock.kafka.metadata.topic_admin import create_topic, topic_exists
from penstock.kafka.records import codecs
from penstock.kafka.writing.plain_producer import Writer

_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Load:
    """A number of records of a given size, in batches of the size Kafka's own producer makes by default."""

    name: str
    records: int
    value_bytes: int
    partitions: int = 4
    codec: int = codecs.NONE
    headers: int = 0
    batch_bytes: int = 16_384


def settings_of(bootstrap: str) -> ClientSettings:
    servers = tuple(
        (host, int(port)) for host, port in (each.rsplit(":", 1) for each in bootstrap.split(","))
    )
    return ClientSettings(servers, client_id="penstock-bench")


def fill(bootstrap: str, load: Load, *, factor: int = 1) -> None:
    """Create and fill the topic unless it exists."""
    settings = settings_of(bootstrap)
    if topic_exists(settings, load.name):
        return
    create_topic(
        settings,
        load.name,
        partitions=load.partitions,
        replication_factor=factor,
        configs={"max.message.bytes": str(max(4 << 20, 2 * load.value_bytes)), "retention.ms": "-1"},
    )
    rows = max(load.partitions, min(load.records, _CHUNK_BYTES // max(64, load.value_bytes)))
    chunk = _chunk(load, rows)
    with Writer(settings, codec=load.codec, max_batch_bytes=load.batch_bytes) as writer:
        left = load.records
        while left > 0:
            size = min(left, rows)
            writer.write(load.name, chunk.slice(0, size))
            left -= size


def _chunk(load: Load, rows: int) -> pa.Table:
    random = np.random.default_rng(7)
    lines = [
        b'10.%d.%d.%d - - [10/Oct/2025:13:55:%02d +0000] "GET /item/%d HTTP/1.1" %d %d "-" "Mozilla/5.0"'
        % (*random.integers(0, 255, 3), i % 60, random.integers(0, 100_000), (200, 404, 500)[i % 3], i)
        for i in range(min(rows, 20_000))
    ]
    size = load.value_bytes
    padding = bytes(random.integers(32, 127, max(0, size), dtype=np.uint8))
    distinct = pa.array([(line + padding)[:size] for line in lines], pa.binary())
    pick = pa.array(np.arange(rows) % len(lines))
    columns = {
        "key": pa.array([b"client-%d" % (i % 1000) for i in range(rows)], pa.binary()),
        "value": distinct.take(pick) if size * rows < 2**31 else distinct,
        "partition": pa.array(np.arange(rows) % load.partitions, pa.int32()),
    }
    if load.headers:
        pairs = [("trace", b"0123456789abcdef"), ("host", b"web-1"), ("zone", None)][: load.headers]
        entry = [{"key": key, "value": value} for key, value in pairs]
        kind = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
        columns["headers"] = pa.array([entry], kind).take(pa.array(np.zeros(rows, np.int64)))
    return pa.table(columns)
