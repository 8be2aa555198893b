"""One cursor over Kafka's bytes: both ways to write a length, and nothing is believed that does not fit."""

from __future__ import annotations

import struct

import pytest

from penstock.kafka.transport.wire_cursor import WireCursor
from penstock.kafka.writing.produce_frames import ProduceAnswer, read_answer


def test_lengths_are_read_in_both_ways() -> None:
    plain = WireCursor(struct.pack(">h2shih", 2, b"ok", -1, 1, 7))
    assert (plain.text(), plain.nullable_text(), plain.count(2), plain.tags()) == ("ok", None, 1, {})
    assert (plain.integer(2), plain.left) == (7, 0)
    flexible = WireCursor(b"\x03ok\x00\x02\xac\x02\x01\x05\x02hi", flexible=True)
    assert (flexible.text(), flexible.nullable_text(), flexible.count()) == ("ok", None, 1)
    assert (flexible.varint(), flexible.tags(), flexible.left) == (300, {5: b"hi"}, 0)


PLAIN = [b"", b"\x7f", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x09\x00\x00ok"]
FLEXIBLE = [b"", b"\x00", b"\x04ok", b"\xff" * 8, b"\xff\xff\xff\xff\x0f"]


@pytest.mark.parametrize("data", PLAIN)
@pytest.mark.parametrize("step", ["text", "count"])
def test_a_plain_length_that_does_not_fit_is_refused(step: str, data: bytes) -> None:
    """Null, where it has no meaning, is refused as well."""
    with pytest.raises(ValueError, match="announced"):
        getattr(WireCursor(data), step)()


@pytest.mark.parametrize("data", FLEXIBLE)
@pytest.mark.parametrize("step", ["text", "count"])
def test_a_compact_length_that_does_not_fit_is_refused(step: str, data: bytes) -> None:
    """Null, where it has no meaning, is refused as well."""
    with pytest.raises(ValueError, match=r"announced|does not end"):
        getattr(WireCursor(data, flexible=True), step)()


@pytest.mark.parametrize("data", [b"\x01", b"\x01\x05", b"\x01\x05\x03hi", b"\x01" + b"\xff" * 8])
def test_tags_that_are_cut_off_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"announced|does not end"):
        WireCursor(data, flexible=True).tags()


def produce_answer(version: int) -> bytes:
    def text(value: str | None) -> bytes:
        return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()

    first = struct.pack(">ihqqq", 0, 0, 41, -1, 0)
    second = struct.pack(">ihqqq", 3, 87, -1, -1, 0)
    if version >= 8:
        first += struct.pack(">i", 0) + text(None)
        second += struct.pack(">ii", 1, 0) + text("no time") + text("one record")
    return struct.pack(">ii", 9, 1) + text("t") + struct.pack(">i", 2) + first + second


@pytest.mark.parametrize("version", [7, 8])
def test_an_answer_to_produce_is_read_and_refused_where_it_is_cut_off(version: int) -> None:
    whole = produce_answer(version)
    message = "no time" if version >= 8 else None
    expected = [ProduceAnswer(0, 0, 41, None), ProduceAnswer(3, 87, -1, message)]
    assert read_answer(version, memoryview(whole)) == (9, expected)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="left"):
            read_answer(version, memoryview(whole)[:size])
