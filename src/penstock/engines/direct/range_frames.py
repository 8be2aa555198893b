"""A frame over offset ranges that the caller names: exactly these records, without a stream or a store.

read_ranges(spark, [OffsetRange("clicks", 0, 100, 200)], {"bootstrap.servers": "b:9092"}).count()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.core.model import Log, OffsetRange
from penstock.core.options.direct_options import parse_direct_options
from penstock.core.options.direct_strategies import Assign
from penstock.core.planning.explicit_ranges import check_ranges, list_asked, order_ranges
from penstock.engines.direct.order_frames import make_frame
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.log_survey import LookRetries, look
from penstock.engines.reading.option_inputs import see_outside
from penstock.engines.reading.read_tasks import make_tasks, name_schema
from penstock.engines.reading.typed_column_setup import make_typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.core.model import LogView, RangeOrder


def read_ranges(
    spark: SparkSession,
    ranges: Iterable[OffsetRange],
    kafka: Mapping[str, object],
    *,
    options: Mapping[str, object] | None = None,
    source: Log | None = None,
) -> DataFrame:
    """Return a frame of the records in these ranges, one task for each range. Records written later never
    appear in it."""
    wanted = check_ranges(ranges)
    parsed = parse_direct_options(
        Assign({each.topic_partition for each in wanted}),
        kafka,
        options or {},
        dict(spark.sparkContext.getConf().getAll()),
        interval_ms=1000,
        **see_outside(),
        has_brokers=source is None,
    )
    stream = parsed.stream
    log = source or KafkaLog(stream.client)
    patience = LookRetries(stream.fetch_offset_retries, stream.fetch_offset_retry_interval_ms)

    def ask(view: LogView) -> tuple[RangeOrder, ...]:
        asked = list_asked(wanted)
        topics = view.describe({each.topic for each in asked})
        known = {name: set(found.partitions) for name, found in topics.items()}
        there = {each for each in asked if each.partition in known.get(each.topic, ())}
        return order_ranges(wanted, topics, view.earliest(there), view.latest(there))

    orders = look(log.open_view, ask, patience) if list_asked(wanted) else ()
    typed = make_typed(stream.formats, stream.columns)
    tasks = make_tasks(stream, ((each,) for each in orders), typed)
    return make_frame(spark, log, tasks, name_schema(stream.columns, typed), strict=not parsed.allow_gaps)
