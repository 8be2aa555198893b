"""The batch reader: translates the decisions of `core` into what Spark asks for.

Rule: planning asks the brokers about offsets and fetches nothing. Offsets are compared in
`core.planning.offset_planning` and bound in the log's reader, never here.

Why it accepts no filters (`pushFilters` is not defined here): Spark 4.3 keeps the filters of one use of a
frame for the next use of the same frame, which would then miss rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.loggers import get_logger
from penstock.core.model import Log
from penstock.core.options.shared_options import ReadOptions
from penstock.core.planning.offset_planning import explain_absent, step
from penstock.core.typed_columns import TypedColumns
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.log_survey import LookRetries, survey
from penstock.engines.reading.read_tasks import WorkPartition, make_order, read_partition
from penstock.engines.reading.typed_column_setup import refuse_missing_letter_box

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger(__name__)


class BatchReader(DataSourceReader):
    """A reader of what the options say, once, from Kafka or from another log."""

    def __init__(
        self, options: ReadOptions, source: Log | None = None, typed: TypedColumns | None = None
    ) -> None:
        self.options, self.typed = options, typed
        self.source = source or KafkaLog(options.client)

    def partitions(self) -> list[InputPartition]:
        options = self.options
        refuse_missing_letter_box(self.typed, options.client)
        snapshot = survey(
            self.source.open_view,
            options.reading,
            options.limits,
            LookRetries(options.fetch_offset_retries, options.fetch_offset_retry_interval_ms),
            group=options.client.group_id or "",
            now_ms=time.time_ns() // 1_000_000,
        )
        plan = step(options.reading, snapshot, options.limits)
        for news in plan.news:
            log.warning("%s", news)
        for error in explain_absent(plan, snapshot):
            if options.fail_on_data_loss:
                raise error
            log.warning("[%s] %s Reading what is there (failOnDataLoss=false).", error.condition, error.what)
        orders = (make_order(options, ranges, self.typed) for ranges in plan.tasks)
        return [WorkPartition(order, typed=self.typed) for order in orders]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.source, partition)
