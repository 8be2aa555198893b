"""Records of `__consumer_offsets` and members' assignments, in all versions, including damaged ones."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.console.offset_records import OffsetRecord, partition_of_group, read_offset_record
from penstock.kafka.groups.group_overview import read_assignment
from penstock.kafka.groups.kip848_groups import NewerGroup


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def offset_key(version: int = 1) -> bytes:
    return struct.pack(">h", version) + text("g") + text("t") + struct.pack(">i", 3)


VALUES = {
    0: struct.pack(">hq", 0, 42) + text("note") + struct.pack(">q", 1000),
    1: struct.pack(">hq", 1, 42) + text("note") + struct.pack(">qq", 1000, 2000),
    2: struct.pack(">hq", 2, 42) + text("note") + struct.pack(">q", 1000),
    3: struct.pack(">hqi", 3, 42, 7) + text("note") + struct.pack(">q", 1000),
    4: struct.pack(">hqi", 4, 42, 7) + b"\x05note" + struct.pack(">q", 1000) + b"\x01\x00\x10" + bytes(16),
}


@pytest.mark.parametrize("version", VALUES)
@pytest.mark.parametrize("key_version", [0, 1])
def test_every_version_of_a_committed_offset_is_read(version: int, key_version: int) -> None:
    """A18: the offsets topic of a cluster holds records of all the versions that ever wrote to it."""
    record = read_offset_record(offset_key(key_version), VALUES[version])
    assert record == OffsetRecord("g", "offset", "t", 3, 42, "note", 1000)


def test_records_about_groups_and_members_are_told_apart() -> None:
    assert read_offset_record(struct.pack(">h", 2) + text("g"), b"...") == OffsetRecord("g", "group")
    assert read_offset_record(struct.pack(">h", 5) + text("g") + text("m"), b"") == OffsetRecord(
        "g", "member"
    )
    for key in (None, b"", struct.pack(">h", 99) + text("g"), offset_key()[:-1]):
        assert read_offset_record(key, VALUES[3]) == OffsetRecord("", "unknown")
    assert read_offset_record(offset_key(), struct.pack(">hq", 9, 42)) == OffsetRecord("", "unknown")


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_no_bytes_break_the_reading(key: bytes, value: bytes | None) -> None:
    read_offset_record(key, value)
    read_offset_record(b"\x00\x01" + key, value)
    read_assignment(key)
    with contextlib.suppress(ValueError):
        NewerGroup.decode(key, header=True)


def test_a_cut_record_is_unknown_at_every_length() -> None:
    for version in (1, 3, 4):
        needed = len(VALUES[version]) - {1: 8, 3: 0, 4: 19}[version]  # what follows the time is not read
        for size in range(needed):
            assert read_offset_record(offset_key(), VALUES[version][:size]).kind == "unknown"


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0),
        ("test", 48),
        ("console-consumer-35704", 40),
        ("é", 33),
        ("orders-consumer", 40),  # a hash below zero
        ("polygenelubricants", 0),  # the one int without a positive counterpart
    ],
)
def test_a_group_lies_where_javas_hash_puts_it(group: str, partition: int) -> None:
    assert partition_of_group(group, 50) == partition
