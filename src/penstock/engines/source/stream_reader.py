"""The stream reader: translates the calls of Spark's micro-batch engine.

Spark keeps one reader in a separate process beside the driver, calls it at each trigger, and kills the
process when the query stops, so nothing that matters is kept here. The order of calls is: `initialOffset`
(for a new query, or one whose first batch must be repeated), then for each batch `latestOffset`, `partitions`
and, when the next batch is planned, `commit`. `read` runs in the workers. The start is resolved when a new
query is planned, not in `initialOffset`, because the start of a repeated batch is known and must not be
looked up again.

Spark passes `ReadAllAvailable` when a trigger wants everything (`Once`), and our own default otherwise. The
options say which limits apply, so the default only has to differ from `ReadAllAvailable`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.core.errors import PenstockError
from penstock.core.model import Log
from penstock.core.offsets.stream_position import NOT_STARTED, is_started, read_position, write_position
from penstock.core.options.option_values import INT64_MAX
from penstock.core.options.stream_options import StreamOptions
from penstock.core.streaming.new_stream_start import holds_start, refuse_unknown_start
from penstock.core.streaming.next_batch import plan_batch
from penstock.core.typed_columns import TypedColumns
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.read_tasks import make_tasks, read_partition
from penstock.engines.reading.typed_column_setup import refuse_missing_letter_box

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.engines.reading.stream_watch import StreamWatch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of what the options say for as long as the query runs, from Kafka or from another log."""

    def __init__(
        self, options: StreamOptions, source: Log | None = None, typed: TypedColumns | None = None
    ) -> None:
        self.options, self.typed = options, typed
        self.source = source or KafkaLog(options.client)
        self._watch: StreamWatch | None = None  # only on the driver: this object also travels to workers

    @property
    def watch(self) -> StreamWatch:
        if self._watch is None:
            from penstock.engines.reading.stream_watch import StreamWatch
            from penstock.engines.source.stream_backpressure import Pace

            refuse_missing_letter_box(self.typed, self.options.client)
            pacing = self.options.pacing
            pace = None if pacing is None else Pace(pacing, time.monotonic)
            recall_view = None
            if isinstance(self.source, KafkaLog) and self.options.metadata_cache_ms is not None:
                recall_view = partial(self.source.open_recalling_view, self.options.metadata_cache_ms)
            self._watch = StreamWatch(self.options, self.source, pace=pace, recall_view=recall_view)
        return self._watch

    def initialOffset(self) -> dict[str, Any]:
        return dict(NOT_STARTED)

    def prepareForTriggerAvailableNow(self) -> None:
        self.watch.fix_targets()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(INT64_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        is_new = not is_started(start)
        position = self.watch.resolve_start() if is_new else read_position(start)
        end = self.watch.find_end(position, take_all=isinstance(limit, ReadAllAvailable))
        # `start` is returned unchanged: Spark compares texts, and another spelling would look like new data.
        return start if end is position and not is_new else write_position(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.watch.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options, until = self.options, read_position(end)
        # A first batch that Spark's own connector planned has no stored start; one of ours has.
        is_unknown = not is_started(start) and not holds_start(until)
        if is_unknown:
            refuse_unknown_start(options.start)
        begin = self.watch.resolve_start() if is_unknown else read_position(start)
        return make_tasks(options, plan_batch(begin, until, options.limits), self.typed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.source, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.watch.finish(read_position(end))

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose options are wrong: it raises the error at Spark's first call.

    Why not raise where the reader is made: PySpark would then try to stop a reader that it does not have, and
    that is the last error that users would see.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815 (Spark's names)
    prepareForTriggerAvailableNow = getDefaultReadLimit = _refuse  # noqa: N815
