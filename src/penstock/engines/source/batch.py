"""The batch reader: translates decisions into what Spark asks for, and decides nothing itself.

Rule: planning asks the brokers about offsets and fetches nothing. Offsets are compared in `core.planning`
and bound in the log's reader, never here.

Spark fails every read of a source that defines `pushFilters` unless an internal setting is on, so that
method exists only on the reader that the option `pushFilters` asks for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock.core.filters import Comparison, narrow
from penstock.core.model import Log, Narrowing, RangeOrder
from penstock.core.options_batch import BatchOptions
from penstock.core.planning import explain_losses, step
from penstock.core.typed import TypedColumns
from penstock.engines.reading.decoders import refuse_missing_letter_box
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.survey import Patience, survey
from penstock.engines.reading.tasks import WorkPartition, make_order, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


class BatchReader(DataSourceReader):
    """Reads what the options say, once, from Kafka or from another log."""

    def __init__(
        self, options: BatchOptions, source: Log | None = None, typed: TypedColumns | None = None
    ) -> None:
        self.options, self.typed = options, typed
        self.source = source or KafkaLog(options.client)
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        options = self.options
        refuse_missing_letter_box(self.typed, options.client)
        snapshot = survey(
            self.source.open_view,
            options.reading,
            options.limits,
            Patience(options.fetch_offset_retries, options.fetch_offset_retry_interval_ms, time.sleep),
            group=options.client.group_id or "",
            now_ms=time.time_ns() // 1_000_000,
        )
        plan = step(options.reading, snapshot, options.limits)
        for news in plan.news:
            log.warning("%s", news)
        if plan.losses:
            error = explain_losses(plan.losses)
            if options.fail_on_data_loss:
                raise error
            log.warning("%s", error)
        kept = (self._keep(task) for task in plan.tasks)
        orders = (make_order(options, ranges, self.typed, self.narrowing) for ranges in kept if ranges)
        return [WorkPartition(order, typed=self.typed) for order in orders]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.source, partition)

    def _keep(self, task: tuple[RangeOrder, ...]) -> tuple[RangeOrder, ...]:
        wanted = self.narrowing.partitions
        return task if wanted is None else tuple(each for each in task if each.partition in wanted)


class FilteringBatchReader(BatchReader):
    """A batch reader that also takes filters on partition, offset and a lower bound of time."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow by what is understood; all filters go back, so Spark applies each of them as well."""
        self.narrowing = narrow(_comparisons(filters))
        return list(filters)


def _comparisons(filters: Iterable[Filter]) -> Iterator[Comparison]:
    for each in filters:
        operator = _OPERATORS.get(type(each))
        if operator is not None and len(each.attribute) == 1:  # type: ignore[attr-defined]
            value = each.value  # type: ignore[attr-defined]
            yield Comparison(
                each.attribute[0],  # type: ignore[attr-defined]
                operator,
                tuple(value) if operator == "in" else value,
            )
