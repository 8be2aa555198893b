"""Small structures of Kafka's own, byte by byte: what group members and offset records are written in.

Rule: every length is checked against what is left before it is believed; whatever does not fit is a
`ValueError` with the place. Why not kafka-python's classes: these bytes come from any client that ever joined
a group, not from a broker, and a length among them may say anything.

>>> fields = Fields(b"\\x00\\x02ok")
>>> fields.text(), fields.left
('ok', 0)
"""

from __future__ import annotations


class Fields:
    """Reads from the front; `left` bytes remain."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise ValueError(f"{size} bytes are announced at {self._at}, {self.left} are left")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def integer(self, size: int) -> int:
        """A signed number of so many bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        return self.take(self.integer(2)).decode("utf-8", "replace")

    def count(self, least_each: int) -> int:
        """How many entries follow, each of at least so many bytes."""
        count = self.integer(4)
        if not 0 <= count * least_each <= self.left:
            raise ValueError(f"{count} entries are announced, {self.left} bytes are left")
        return count

    def compact_text(self) -> str:
        """A text of the newer, flexible versions: its length plus one comes first; null is read as empty."""
        return self.take(max(0, self.varint() - 1)).decode("utf-8", "replace")

    def compact_count(self) -> int:
        """How many entries follow, each of at least a byte."""
        count = max(0, self.varint() - 1)
        if count > self.left:
            raise ValueError(f"{count} entries are announced, {self.left} bytes are left")
        return count

    def skip_tags(self) -> None:
        """What a newer version may have added."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def varint(self) -> int:
        """A number from 0 on, seven bits in each byte."""
        number = shift = 0
        while shift < 35:
            octet = self.take(1)[0]
            number |= (octet & 0x7F) << shift
            if not octet & 0x80:
                return number
            shift += 7
        raise ValueError(f"a number before {self._at} does not end")
