"""The reference: a slow, readable decoder of record batches, written from Kafka's protocol documentation.

It shares no code with the fast decoder and prefers a plain loop to speed. Where the two disagree, one of them
is wrong. Damage is reported as `DamageError`, with its kind, never as an `IndexError`. Decompression goes
through zlib and pyarrow, not through the library under test.

    for row in visible_rows(answer, 0, 100, aborted=[(producer_id, first_offset)]): ...
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import crc32c
import pyarrow as pa

HEADER = struct.Struct(">qiibIhiqqqhii")
LARGEST_LONG = 2**63 - 1
#: Spark's timestamps are microseconds in a long.
LARGEST_TIME_MS = LARGEST_LONG // 1000
XERIAL = b"\x82SNAPPY\x00"


class DamageError(Exception):
    """What is wrong (kind "corrupt", "old format" or "time") and why."""

    def __init__(self, kind: str, why: str) -> None:
        self.kind, self.why = kind, why
        super().__init__(f"{kind}: {why}")


@dataclass(frozen=True)
class Row:
    """One record as a consumer sees it; `headers` are (text, bytes or None) in order."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Batch:
    """One record batch: the fields of its header, and its records, still compressed."""

    base_offset: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    checked: bytes
    payload: bytes

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def append_time(self) -> bool:
        return bool(self.attributes & 8)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & 16)

    @property
    def control(self) -> bool:
        return bool(self.attributes & 32)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


class Cursor:
    """A position in bytes that refuses to move outside them."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise DamageError("corrupt", f"{size} bytes wanted, {self.left} left")
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def number(self, bits: int) -> int:
        """Read a zigzag varint of at most `bits` bits."""
        raw = 0
        for place in range(0, 7 * ((bits + 6) // 7), 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << place
            if byte < 0x80:
                if raw >> bits:
                    raise DamageError("corrupt", "a varint has too many bits")
                return -(raw // 2) - 1 if raw % 2 else raw // 2
        raise DamageError("corrupt", "a varint has too many bytes")

    def optional_bytes(self) -> bytes | None:
        size = self.number(32)
        if size < -1:
            raise DamageError("corrupt", "a length below -1")
        return None if size == -1 else self.take(size)


def split_batches(data: bytes) -> list[Batch]:
    """Return the whole batches of one fetch answer, without one that is cut off at the end."""
    batches: list[Batch] = []
    at, lowest = 0, 0
    while len(data) - at >= 17:
        base_offset, length = struct.unpack_from(">qi", data, at)
        magic = data[at + 16]
        if magic < 2:
            raise DamageError("old format", f"magic {magic}")
        if magic > 2:
            raise DamageError("corrupt", f"magic {magic}")
        if length < HEADER.size - 12:
            raise DamageError("corrupt", "shorter than its header")
        if at + 12 + length > len(data):
            break
        fields = HEADER.unpack_from(data, at)
        _, _, _, _, checksum, attributes, last_delta, base_time, max_time, producer, _, _, count = fields
        if base_offset < 0 or last_delta < 0 or base_offset > LARGEST_LONG - 0xFFFF_FFFF:
            raise DamageError("corrupt", "an impossible offset")
        if base_offset < lowest:
            raise DamageError("corrupt", "offsets overlap")
        if not 0 <= count <= last_delta + 1:
            raise DamageError("corrupt", "an impossible number of records")
        end = at + 12 + length
        batches.append(
            Batch(
                base_offset, checksum, attributes, last_delta, base_time, max_time, producer, count,
                checked=data[at + 21 : end], payload=data[at + HEADER.size : end],
            )
        )  # fmt: skip
        lowest = base_offset + last_delta + 1
        at = end
    return batches


def visible_rows(
    data: bytes,
    start: int = 0,
    until: int = LARGEST_LONG,
    aborted: Sequence[tuple[int, int]] | None = None,
) -> Iterator[Row]:
    """Yield the rows of `[start, until)` that a consumer may see.

    With `aborted` (a fetch answer's list of producer id and first offset), only committed rows are returned.
    Those are found by position, transaction by transaction.
    """
    batches = [b for b in split_batches(data) if b.last_offset >= start and b.base_offset < until]
    for batch in batches:
        if crc32c.crc32c(batch.checked) != batch.checksum:
            raise DamageError("corrupt", "checksum")
    hidden = set() if aborted is None else find_aborted(batches, aborted)
    for number, batch in enumerate(batches):
        if batch.control or number in hidden:
            continue
        for row in records(batch):
            if start <= row.offset < until:
                if abs(row.timestamp_ms) > LARGEST_TIME_MS:
                    raise DamageError("time", str(row.timestamp_ms))
                yield row


def find_aborted(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> set[int]:
    """Return the places of batches inside aborted transactions.

    Each entry covers its producer's transactional batches from its first offset to the first abort marker
    of that producer at or behind it.
    """
    hidden: set[int] = set()
    named = {producer_id for producer_id, _ in aborted}
    for batch in batches:
        if batch.control and batch.producer_id in named:
            is_abort(batch)  # a marker of these producers must be readable wherever it is
    for producer_id, first_offset in aborted:
        for number, batch in enumerate(batches):
            if batch.producer_id != producer_id or batch.producer_id < 0 or batch.last_offset < first_offset:
                continue
            if batch.control:
                if is_abort(batch):
                    break
            elif batch.transactional:
                hidden.add(number)
    return hidden


def is_abort(batch: Batch) -> bool:
    """Return whether a control batch aborts its transaction (its record's key: version, then type 0)."""
    if batch.count == 0:
        return False
    cursor = Cursor(batch.payload)
    cursor.number(32)
    cursor.take(1)
    cursor.number(64)
    cursor.number(32)
    key = cursor.optional_bytes()
    if key is None or len(key) < 4:
        raise DamageError("corrupt", "a marker without its type")
    return struct.unpack_from(">h", key, 2)[0] == 0


def records(batch: Batch) -> Iterator[Row]:
    """Yield all records of one batch; damage anywhere in it is found by the end of the iteration."""
    if batch.count == 0 and not batch.payload:
        return  # compaction keeps only the header; its codec no longer means anything
    cursor = Cursor(decompress(batch.codec, batch.payload))
    previous = batch.base_offset - 1
    for _ in range(batch.count):
        record = Cursor(cursor.take(cursor.number(32)))
        record.take(1)
        time_delta = record.number(64)
        offset = batch.base_offset + record.number(32)
        if not previous < offset <= batch.last_offset:
            raise DamageError("corrupt", "an offset outside its place")
        previous = offset
        key, value = record.optional_bytes(), record.optional_bytes()
        headers = []
        header_count = record.number(32)
        if header_count < 0:
            raise DamageError("corrupt", "a negative number of headers")
        for _ in range(header_count):
            name = record.optional_bytes()
            if name is None:
                raise DamageError("corrupt", "a header without a key")
            headers.append((name.decode("utf-8", "replace"), record.optional_bytes()))
        if record.left:
            raise DamageError("corrupt", "bytes behind the last header")
        time = batch.max_timestamp if batch.append_time else as_long(batch.base_timestamp + time_delta)
        yield Row(offset, time, int(batch.append_time), key, value, tuple(headers))
    if cursor.left:
        raise DamageError("corrupt", "bytes behind the last record")


def as_long(number: int) -> int:
    """Wrap a sum of two longs as Java does."""
    return (number + 2**63) % 2**64 - 2**63


def decompress(codec: int, data: bytes) -> bytes:
    try:
        if codec == 0:
            return data
        if codec == 1:
            return gunzip(data)
        if codec == 2:
            return unsnap(data)
        if codec in (3, 4):
            with pa.CompressedInputStream(pa.BufferReader(data), "lz4" if codec == 3 else "zstd") as stream:
                return bytes(stream.read())
    except (OSError, zlib.error, pa.ArrowInvalid) as error:
        raise DamageError("corrupt", f"cannot be decompressed: {error}") from error
    raise DamageError("corrupt", f"codec {codec}")


def gunzip(data: bytes) -> bytes:
    plain = b""
    while data:
        member = zlib.decompressobj(31)
        plain += member.decompress(data)
        if not member.eof:
            raise DamageError("corrupt", "gzip is cut off")
        data = member.unused_data
    return plain


def unsnap(data: bytes) -> bytes:
    if not data.startswith(XERIAL):
        return unsnap_block(data)
    plain, cursor = b"", Cursor(data, 16)
    while cursor.left:
        if data[cursor.at :].startswith(XERIAL):
            cursor.take(16)
        else:
            plain += unsnap_block(cursor.take(struct.unpack(">i", cursor.take(4))[0]))
    return plain


def unsnap_block(data: bytes) -> bytes:
    """Decompress one raw block; it starts with its plain size, seven bits per byte."""
    size, place = 0, 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << place
        place += 7
        if byte < 0x80:
            break
    if size > 64 << 20:
        raise DamageError("corrupt", "a snappy block larger than any test makes")
    return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))
