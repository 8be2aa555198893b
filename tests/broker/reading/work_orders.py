"""Work orders and reads of one partition, as the tests of the reader need them."""

from __future__ import annotations

from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader


def order(settings: ClientSettings, topic: str, start: int, until: int, **fields: Any) -> WorkOrder:
    """Return the work order to read these offsets of partition 0."""
    fields = {"columns": ("offset", "value"), "poll_timeout_ms": 60_000, **fields}
    return WorkOrder((RangeOrder(topic, 0, At(start), At(until)),), settings, **fields)


def offsets_of(order: WorkOrder) -> list[int]:
    """Return the offsets that a new reader finds."""
    return [offset for batch in KafkaReader().read(order) for offset in batch["offset"].to_pylist()]
