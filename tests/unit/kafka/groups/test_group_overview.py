"""What members of a group report about themselves, as a broker stores it."""

from __future__ import annotations

import struct

from penstock.core.model import TopicPartition
from penstock.kafka.groups.group_overview import read_assignment


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def test_an_assignment_is_read_and_a_strange_one_is_not_guessed_at() -> None:
    entry = text("t") + struct.pack(">iii", 2, 1, 0)
    data = struct.pack(">hi", 1, 1) + entry + struct.pack(">i", -1)
    assert read_assignment(data) == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert read_assignment(b"") == ()
    assert read_assignment(struct.pack(">hi", 1, 1 << 30) + entry) is None
    assert read_assignment(data[:-7]) is None
