"""Runs a Python function per record, for small jobs. Everything else in Penstock works on columns. This does
not, and costs about a hundred times as much per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.engines.direct.order_frames import ArrowFunction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Record:
    """A Kafka record as Python objects. A column that was not asked for is None."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: datetime | None = None
    timestampType: int | None = None  # noqa: N815  # the column's name
    key: bytes | None = None
    value: bytes | None = None
    headers: list[dict[str, Any]] | None = None


RecordFunction: TypeAlias = Callable[[Record], tuple[Any, ...]]


def handle_records(function: RecordFunction, schema: StructType) -> ArrowFunction:
    """Return a stage that turns each record into one row."""

    def handle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = to_arrow_schema(schema, timezone="UTC")
        for batch in batches:
            rows = [function(Record(**row)) for row in batch.to_pylist()]
            columns = zip(*rows, strict=True) if rows else [()] * len(wanted)
            arrays = [
                pa.array(list(column), field.type) for column, field in zip(columns, wanted, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return handle
