"""What the headers of record batches reveal: time and size at a position."""

from __future__ import annotations

import struct

import pytest

from penstock.core.model import Peek
from penstock.kafka.console.standstill_facts import _find_greatest_ms
from penstock.kafka.reading.record_estimates import _estimate

APPEND_TIME, CONTROL = 0x08, 0x20


def batch(
    base: int,
    offsets: int,
    *,
    size: int = 100,
    first_ms: int = 1_000,
    greatest_ms: int = 9_000,
    count: int = 1,
    attributes: int = 0,
    version: int = 2,
) -> bytes:
    header = struct.pack(
        ">qiibIhiqqqhii",
        *(base, size - 12, 0, version, 0, attributes, offsets - 1, first_ms, greatest_ms, -1, -1, -1, count),
    )
    return header + bytes(size - len(header))


@pytest.mark.parametrize(
    ("records", "position", "expected"),
    [
        (batch(0, 10), 0, Peek(1_000, 10.0)),
        (batch(0, 10), 7, Peek(1_000, 10.0)),  # inside a batch: its first time, its average size
        (batch(0, 10) + batch(10, 10, size=300, first_ms=2_000), 0, Peek(1_000, 20.0)),
        (batch(0, 10) + batch(10, 10, first_ms=2_000), 10, Peek(2_000, 10.0)),  # the first one is behind us
        (batch(20, 5), 10, Peek(1_000, 100 / 15)),  # compaction left a gap before it
        (batch(0, 2, attributes=APPEND_TIME), 0, Peek(9_000, 50.0)),  # the broker's time is the greatest
        (batch(0, 1, attributes=CONTROL) + batch(1, 1, first_ms=2_000), 0, Peek(2_000, 100.0)),
        (batch(0, 4, count=0) + batch(4, 1, first_ms=2_000), 0, Peek(2_000, 40.0)),  # compacted away
        (batch(0, 10) + batch(10, 10, size=700)[:61], 0, Peek(1_000, 40.0)),  # cut off after its header
        (batch(0, 10) + batch(10, 10, size=700)[:60], 0, Peek(1_000, 10.0)),  # cut off inside its header
    ],
)
def test_headers_tell_time_and_size(records: bytes, position: int, expected: Peek) -> None:
    assert _estimate(records, position) == expected


@pytest.mark.parametrize(
    "records",
    [
        b"",
        batch(0, 1)[:40],
        batch(0, 1, attributes=CONTROL),
        batch(0, 1, first_ms=-1),  # a producer that set no time
        batch(0, 1, version=1),
        batch(0, 0),
        struct.pack(">qi", 0, -12) + batch(0, 1)[12:],  # a length that would never advance
        bytes(1_000),
    ],
)
def test_what_tells_nothing_is_no_peek(records: bytes) -> None:
    assert _estimate(records, 0) is None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (batch(0, 10), 9_000),  # not its first record's
        (batch(0, 5, greatest_ms=99_000) + batch(5, 5), 9_000),  # the first batch is behind the position
        (batch(5, 4, greatest_ms=2_000) + batch(9, 1, greatest_ms=1_000), 2_000),
        (batch(5, 4) + batch(9, 1, attributes=CONTROL, greatest_ms=99_000), 9_000),
        (batch(9, 1, attributes=CONTROL), None),
        (batch(9, 1, greatest_ms=-1), None),
        (b"", None),
    ],
)
def test_the_newest_record_of_a_batch_is_the_one_with_the_greatest_time(
    records: bytes, expected: int | None
) -> None:
    assert _find_greatest_ms(records, 8) == expected
