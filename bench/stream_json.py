"""Compares typed values: JSON documents grouped by a field, decoded by the source or by `from_json` after it.

Our side asks for `columns=valueData`, so the JVM gets typed columns and no text. The peers read the value and
decode it with `from_json(cast(value AS string), ...)`. All sides must find the same groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.read import TUNED
from bench.sampling import Samples, take_turns
from bench.stream_session import StreamSession
from bench.topics import Load, settings_of
from penstock.core.options.option_table import option_specs
from penstock.core.options.stream_option_table import StreamTable
from penstock.kafka.metadata.topic_admin import create_topic, topic_exists
from penstock.kafka.writing.plain_producer import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

SCHEMA = "id BIGINT, user STRING, url STRING, status INT, bytes BIGINT, ts BIGINT"
_DISTINCT = 50_000
_CHUNK = 500_000
_STATUSES = (200, 200, 200, 301, 404, 500)


def make_documents(count: int) -> list[bytes]:
    """Return access-log lines as JSON, about 100 bytes each."""
    random = np.random.default_rng(11)
    sizes, users, items = (random.integers(0, high, count).tolist() for high in (50_000, 5_000, 100_000))
    return [
        json.dumps(
            {
                "id": each,
                "user": f"user-{users[each]}",
                "url": f"/item/{items[each]}",
                "status": _STATUSES[each % len(_STATUSES)],
                "bytes": sizes[each],
                "ts": 1_760_000_000_000 + each,
            },
            separators=(",", ":"),
        ).encode()
        for each in range(count)
    ]


def fill_documents(bootstrap: str, load: Load) -> None:
    settings = settings_of(bootstrap)
    if topic_exists(settings, load.name):
        return
    create_topic(settings, load.name, partitions=load.partitions, configs={"retention.ms": "-1"})
    distinct = pa.array(make_documents(min(load.records, _DISTINCT)), pa.binary())
    with Writer(settings, max_batch_bytes=load.batch_bytes) as writer:
        for first in range(0, load.records, _CHUNK):
            numbers = np.arange(first, min(load.records, first + _CHUNK))
            chosen = distinct.take(pa.array(numbers % len(distinct)))
            partitions = pa.array(numbers % load.partitions, pa.int32())
            writer.write(load.name, pa.table({"value": chosen, "partition": partitions}))


def check_options() -> None:
    """Stop before any topic is filled if this version of the source cannot decode."""
    known = {spec.key for spec in option_specs(StreamTable).values()}
    missing = {"valueFormat", "valueSchema"} - known
    if missing:
        raise SystemExit(
            f"json: this version has no option {', '.join(sorted(missing))}; leave the case out."
        )


def run_json(session: StreamSession, bootstrap: str, load: Load, *, runs: int) -> dict[str, Samples]:
    check_options()
    fill_documents(bootstrap, load)
    where = {"kafka.bootstrap.servers": bootstrap, "subscribe": load.name}

    def ours() -> list[Row]:
        typed = {"valueFormat": "json", "valueSchema": SCHEMA, "columns": "valueData"}
        rows = session.spark.read.format("penstock").options(**where, **typed).load()
        return _group(rows.select("valueData.*"))

    def theirs(options: Mapping[str, str]) -> Callable[[], list[Row]]:
        def run() -> list[Row]:
            rows = session.spark.read.format("kafka").options(**where, **options).load()
            decoded = rows.selectExpr(f"from_json(cast(value AS string), '{SCHEMA}') AS data")
            return _group(decoded.select("data.*"))

        return run

    sides = {"penstock": ours, "default": theirs({}), "tuned": theirs(TUNED)}
    found = {name: run() for name, run in sides.items()}
    assert sum(row["count"] for row in found["penstock"]) == load.records, found["penstock"]
    assert found["penstock"] == found["default"] == found["tuned"], found
    return take_turns(sides, runs=runs)


def _group(rows: DataFrame) -> list[Row]:
    from pyspark.sql import functions as f

    grouped = rows.groupBy("status").agg(f.count("*").alias("count"), f.sum("bytes").alias("bytes"))
    return sorted(grouped.collect(), key=lambda row: int(row["status"]))
