"""Reads a few of the newest or oldest lines of a topic, to look at their format before a pipeline starts.

Rule: each partition contributes in proportion to what it holds. The key of a record is the client, so one
client is in one partition; equal shares would hide that it has sent most of the lines.

    lines = read_newest(client, "lines")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.apps.accesslog.first_look.line_samples import SAMPLE_LINES
from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import At, OffsetRange, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader

_LEAST_LINES = 20


def read_newest(client: ClientSettings, topic: str) -> pa.Array:
    """Return the last lines of a topic; none if it is empty."""
    return read_ends(client, _find_ranges(client, topic))


def read_oldest(client: ClientSettings, topic: str) -> pa.Array:
    """Return the first lines that a topic still has; none if it is empty."""
    ranges = _find_ranges(client, topic)
    whole = sum(each.size for each in ranges)
    sizes = [max(SAMPLE_LINES * each.size // max(whole, 1), _LEAST_LINES) for each in ranges]
    firsts = [
        replace(each, until=min(each.until, each.start + size))
        for each, size in zip(ranges, sizes, strict=True)
    ]
    return read_ends(client, firsts)


def _find_ranges(client: ClientSettings, topic: str) -> list[OffsetRange]:
    """Return the ranges of all records that a topic has."""
    view = KafkaLogView(client)
    try:
        described = view.describe([topic])
        partitions = [TopicPartition(topic, n) for each in described.values() for n in each.partitions]
        first, end = view.earliest(partitions), view.latest(partitions)
    finally:
        view.close()
    return [OffsetRange(topic, p.partition, first[p], end[p]) for p in partitions]


def read_ends(client: ClientSettings, ranges: Sequence[OffsetRange]) -> pa.Array:
    """Return lines from the ends of these ranges, from each in proportion to its size."""
    whole = sum(each.size for each in ranges)
    orders = []
    for each in ranges:
        wanted = max(SAMPLE_LINES * each.size // max(whole, 1), _LEAST_LINES)
        start = max(each.start, each.until - wanted)
        if start < each.until:
            orders.append(RangeOrder(each.topic, each.partition, At(start), At(each.until)))
    return _join(KafkaReader().read(WorkOrder(tuple(orders), client, ("value",), fail_on_data_loss=False)))


def _join(batches: Iterable[pa.RecordBatch]) -> pa.Array:
    values = [batch.column("value") for batch in batches]
    return pa.concat_arrays(values) if values else pa.array([], pa.binary())
