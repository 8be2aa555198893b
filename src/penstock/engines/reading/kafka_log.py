"""Kafka as a `Log`: opens views and readers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError

if TYPE_CHECKING:
    from penstock.core.model import LogView, Reader


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A Kafka cluster. `client` holds the driver's settings; a task's are in its work order."""

    client: ClientSettings

    def open_view(self) -> LogView:
        from penstock.kafka.reading.kafka_log_view import KafkaLogView

        return KafkaLogView(self.client)

    def open_recalling_view(self, recall_ms: int) -> LogView:
        """Return a view that may answer about topics from memory at most this old, without asking."""
        from penstock.kafka.reading.kafka_log_view import KafkaLogView

        return KafkaLogView(self.client, recall_ms=recall_ms)

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        from penstock.kafka.reading.kafka_reader import KafkaReader

        return KafkaReader(fresh=repeated, report=report)
