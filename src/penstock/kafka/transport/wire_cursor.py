"""A cursor over bytes in Kafka's own encoding: brokers' answers, groups' records, members' assignments.

Rule: every length is checked against what is left before it is used; anything that does not fit is a
`ValueError` with the position, and the caller adds what it was reading. Why not kafka-python's classes: they
copy the records of an answer, and many of these bytes come from any client that ever joined a group, so any
length among them may be wrong.

>>> cursor = WireCursor(b"\\x00\\x02ok")
>>> cursor.text(), cursor.left
('ok', 0)
"""

from __future__ import annotations

import struct

#: A record batch: base offset, length of the rest, leader epoch, format, checksum, attributes, last offset
#: delta, first and greatest timestamp, producer id and epoch, first sequence number, number of records.
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")


class WireCursor:
    """Reads bytes from the front; `at` is the index of the next one.

    `flexible` says how lengths are written: as a varint of the length plus one, with tags after each
    structure, or as plain numbers without tags. Null has the length -1 in both.
    """

    def __init__(self, data: bytes | bytearray | memoryview, *, flexible: bool = False) -> None:
        self._data, self._size = memoryview(data), len(data)
        self.at, self.flexible = 0, flexible

    @property
    def left(self) -> int:
        """Return how many bytes remain."""
        return self._size - self.at

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return where they begin."""
        begin = self.at
        if not 0 <= size <= self._size - begin:
            raise ValueError(f"{size} bytes are announced at {begin}, {self.left} are left")
        self.at = begin + size
        return begin

    def take(self, size: int) -> bytes:
        """Return a copy of the next `size` bytes."""
        begin = self.skip(size)
        return bytes(self._data[begin : self.at])

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the numbers of a fixed-size layout."""
        return layout.unpack_from(self._data, self.skip(layout.size))

    def integer(self, size: int) -> int:
        """Return a signed number of `size` bytes."""
        begin = self.skip(size)
        return int.from_bytes(self._data[begin : self.at], "big", signed=True)

    def varint(self) -> int:
        """Return a non-negative number, seven bits in each byte."""
        number = 0
        for shift in range(0, 35, 7):
            octet = self._data[self.skip(1)]
            number |= (octet & 0x7F) << shift
            if octet < 0x80:
                return number
        raise ValueError(f"a number before {self.at} does not end")

    def length(self, size: int) -> int:
        """Return a length, negative for null; `size` is its own width where it is a plain number."""
        return self.varint() - 1 if self.flexible else self.integer(size)

    def count(self, least_each: int = 1) -> int:
        """Return how many entries follow, each of at least `least_each` bytes."""
        count = self.length(4)
        if not 0 <= count * least_each <= self.left:
            raise ValueError(f"{count} entries are announced, {self.left} bytes are left")
        return count

    def text(self) -> str:
        """Return a string that is never null."""
        return self.take(self.length(2)).decode("utf-8", "replace")

    def nullable_text(self) -> str | None:
        """Return a string, or None for null."""
        size = self.length(2)
        return None if size < 0 else self.take(size).decode("utf-8", "replace")

    def tags(self) -> dict[int, bytes]:
        """Return fields a newer version may have added, by number; none where lengths are plain numbers."""
        count = self.varint() if self.flexible else 0
        return {self.varint(): self.take(self.varint()) for _ in range(count)}
