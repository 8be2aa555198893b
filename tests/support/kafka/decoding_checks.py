"""Access to the fast decoder for tests: bytes of a fetch answer in, rows of the reference's type out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kafka.records.record_decoder import RecordDecoder
from tests.reference.record_decoder import LARGEST_LONG, Row

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of one Arrow batch with all of `COLUMNS`; absent headers become an empty tuple."""
    batch.validate(full=True)
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].cast("int64")
    return [
        Row(offset, time_us // 1000, kind, key, value, tuple((h["key"], h["value"]) for h in headers or ()))
        for offset, time_us, kind, key, value, headers in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    ]


def decode(
    data: bytes,
    start: int = 0,
    until: int = LARGEST_LONG,
    aborted: Sequence[tuple[int, int]] | None = None,
    **options: Any,
) -> list[Row]:
    """Return every visible row of `data`, read by the fast decoder."""
    decoder = RecordDecoder("log", 3, COLUMNS, **options)
    decoder.open(np.frombuffer(data, np.uint8))
    return take_rows(decoder, start, until, aborted)


def take_rows(
    decoder: RecordDecoder, start: int, until: int, aborted: Sequence[tuple[int, int]] | None
) -> list[Row]:
    """Return all rows of what the decoder has opened."""
    batches = [*decoder.rows(start, until, aborted), *decoder.rest()]
    return [row for batch in batches for row in rows_of(batch)]


def values(rows: Sequence[Row]) -> list[bytes | None]:
    return [row.value for row in rows]
