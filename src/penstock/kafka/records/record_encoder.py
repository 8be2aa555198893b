"""Encodes Arrow columns as Kafka record batches (format v2): the reverse of the decoder.

Rule: no Python object per record. A kernel writes records straight from Arrow's buffers into one kept
buffer until a batch is full; Python adds one header and one checksum per batch. Null and empty stay distinct;
headers keep their order and their repetitions.

Why rows are selected by an index array and not by `take`: the writer sorts rows by partition, and `take`
would copy every byte once more before the copy that has to be made.

>>> import pyarrow as pa
>>> encoder = Encoder(max_batch_bytes=1_000_000)
>>> columns = record_columns(pa.record_batch({"value": [b"a", b"b"]}), now_ms=0)
>>> [(batch.records, len(batch.data)) for batch in encoder.encode(columns)]
[(2, 77)]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import crc32c
import numpy as np
import pyarrow as pa

from penstock.core.errors import SinkError
from penstock.kafka.records.codecs import NONE, compress
from penstock.kafka.records.record_encoding_kernel import HEADER_BYTES, write_records
from penstock.kafka.transport.wire_cursor import BATCH_HEADER
from penstock.kernels.byte_columns import (
    ByteColumn,
    HeaderColumn,
    Longs,
    byte_column,
    header_column,
    null_column,
)

_CHECKED_FROM = 21  # the checksum covers everything after itself
_TRANSACTIONAL = 0x10
_MAX_SEQUENCE = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """What makes a batch idempotent: producer id, epoch, and the sequence number of its first record."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False

    def advance(self, records: int) -> ProducerStamp:
        """Return the stamp of the next batch; numbers start again at 0 after the largest int."""
        if self.sequence < 0:
            return self
        return replace(self, sequence=(self.sequence + records) % (_MAX_SEQUENCE + 1))


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One finished record batch and how many records it holds."""

    data: bytearray
    records: int


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """A table of records as plain arrays."""

    rows: int
    keys: ByteColumn
    values: ByteColumn
    times_ms: Longs
    headers: HeaderColumn


def record_columns(batch: pa.RecordBatch, *, now_ms: int) -> RecordColumns:
    """Return the columns `key`, `value`, `headers` and `timestamp` of `batch`; each may be missing.

    A timestamp is milliseconds or an Arrow timestamp; where it is missing or null, `now_ms` is written.
    """
    rows = batch.num_rows
    names = set(batch.schema.names)
    keys = byte_column(batch.column("key")) if "key" in names else null_column(rows)
    values = byte_column(batch.column("value")) if "value" in names else null_column(rows)
    headers = header_column(batch.column("headers") if "headers" in names else None, rows)
    if not headers.keys.present.all():
        raise SinkError(
            "NULL_HEADER_KEY",
            "A record has a header whose key is null; Kafka's header keys are never null.",
            hint="Filter such headers out, or give them a name.",
        )
    times = np.full(rows, now_ms, np.int64)
    if "timestamp" in names:
        column = batch.column("timestamp")
        if pa.types.is_timestamp(column.type):
            # Anything finer than a millisecond is cut off, as Spark does.
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        times = column.cast(pa.int64()).fill_null(now_ms).to_numpy(zero_copy_only=False)
    return RecordColumns(rows, keys, values, times, headers)


class Encoder:
    """Encodes records, keeping one buffer. For one thread."""

    def __init__(
        self, *, codec: int = NONE, level: int | None = None, max_batch_bytes: int = 1_000_000
    ) -> None:
        self._codec = codec
        self._level = level
        self._max_batch_bytes = max_batch_bytes
        self._buffer = np.empty(HEADER_BYTES + max_batch_bytes, np.uint8)

    def encode(
        self,
        columns: RecordColumns,
        rows: Longs | None = None,
        stamp: ProducerStamp | None = None,
        *,
        room: int | None = None,
    ) -> Iterator[EncodedBatch]:
        """Yield batches of the given rows in the given order, each below the size limit before compression.

        `room` lowers the limit for this call. A record that is larger than the limit gets a batch of its own;
        the broker decides about it.
        """
        rows = np.arange(columns.rows, dtype=np.int64) if rows is None else rows
        stamp = stamp or ProducerStamp()
        most = self._max_batch_bytes if room is None else min(room, self._max_batch_bytes)
        keys, values, headers = columns.keys, columns.values, columns.headers
        at = 0
        while at < rows.size:
            done, end, highest = write_records(
                self._buffer, most, rows, at, columns.times_ms,
                keys.ends, keys.present, keys.data, values.ends, values.present, values.data,
                headers.firsts, headers.keys.ends, headers.keys.data,
                headers.values.ends, headers.values.present, headers.values.data,
            )  # fmt: skip
            if done == at:  # not even one record fits: `end` is what it needs
                self._buffer = np.empty(end, np.uint8)
                continue
            first_time = int(columns.times_ms[rows[at]])
            yield self._seal(int(end), int(done - at), first_time, int(highest), stamp)
            stamp = stamp.advance(int(done - at))
            at = int(done)

    def _seal(
        self, end: int, records: int, first_time: int, highest: int, stamp: ProducerStamp
    ) -> EncodedBatch:
        attributes = self._codec | (_TRANSACTIONAL if stamp.transactional else 0)
        if self._codec == NONE:
            data = bytearray(self._buffer[:end].data)
        else:
            plain = self._buffer[HEADER_BYTES:end]
            data = bytearray(HEADER_BYTES)
            data += compress(self._codec, plain, self._level)
        BATCH_HEADER.pack_into(
            data, 0, 0, len(data) - 12, -1, 2, 0, attributes, records - 1, first_time, highest,
            stamp.producer_id, stamp.epoch, stamp.sequence, records,
        )  # fmt: skip
        checksum = crc32c.crc32c(memoryview(data)[_CHECKED_FROM:])
        struct.pack_into(">I", data, _CHECKED_FROM - 4, checksum)
        return EncodedBatch(data, records)
