"""Record batches assembled by hand, so that tests can build any log, even an impossible one.

Every number of the format can be chosen; unspecified ones follow from the records. Compression goes through
the standard library and pyarrow, so that a batch looks like another client's.

    log = build_batch(10, [Record(b"k", b"v")]) + build_marker(11, producer_id=7, commit=False)
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c
import pyarrow as pa

HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True)
class Record:
    """One record to encode.

    An `offset_delta` of None means the place in the batch; set it to leave gaps, as compaction does.
    """

    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    time_delta: int = 0
    offset_delta: int | None = None


def varint(number: int) -> bytes:
    """Encode a zigzag varint."""
    raw = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def optional(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def build_record(record: Record, place: int) -> bytes:
    delta = place if record.offset_delta is None else record.offset_delta
    body = b"\x00" + varint(record.time_delta) + varint(delta) + optional(record.key) + optional(record.value)
    body += varint(len(record.headers))
    for name, value in record.headers:
        body += optional(name) + optional(value)
    return varint(len(body)) + body


def compress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return gzip.compress(data, 1, mtime=0)
    if codec == 2:
        return bytes(pa.Codec("snappy").compress(data, asbytes=True))
    return bytes(pa.Codec("lz4" if codec == 3 else "zstd").compress(data, asbytes=True))


def build_batch(
    base_offset: int,
    records: Sequence[Record] = (),
    *,
    codec: int = 0,
    payload: bytes | None = None,
    base_time: int = 1_700_000_000_000,
    max_time: int | None = None,
    append_time: bool = False,
    producer_id: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
    count: int | None = None,
    leader_epoch: int = 0,
) -> bytes:
    """Build one batch; `payload`, if given, replaces the compressed records."""
    if payload is None:
        payload = compress(codec, b"".join(build_record(r, n) for n, r in enumerate(records)))
    attributes = codec | append_time << 3 | transactional << 4 | control << 5
    if max_time is None:
        max_time = base_time + max((r.time_delta for r in records), default=0)
    if last_offset_delta is None:
        last_offset_delta = max(len(records) - 1, 0)
    data = bytearray(
        HEADER.pack(
            base_offset, HEADER.size - 12 + len(payload), leader_epoch, 2, 0, attributes,
            last_offset_delta, base_time, max_time, producer_id, 0 if producer_id >= 0 else -1, -1,
            len(records) if count is None else count,
        ) + payload
    )  # fmt: skip
    return bytes(reseal(data))


def build_marker(offset: int, *, producer_id: int, commit: bool) -> bytes:
    """Build the control batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    record = Record(key, struct.pack(">hi", 0, 0))
    return build_batch(offset, [record], producer_id=producer_id, transactional=True, control=True)


def reseal(data: bytearray, at: int = 0, end: int | None = None) -> bytearray:
    """Correct the checksum of the batch at `data[at:end]`."""
    end = len(data) if end is None else end
    struct.pack_into(">I", data, at + 17, crc32c.crc32c(memoryview(data)[at + 21 : end]))
    return data
