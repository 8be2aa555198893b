"""One cursor over Kafka's bytes: both encodings of a length, and no length that does not fit is accepted."""

from __future__ import annotations

import struct

import pytest

from penstock.kafka.transport.wire_cursor import WireCursor


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
    """Null is refused too, where it has no meaning."""
    with pytest.raises(ValueError, match="announced"):
        getattr(WireCursor(data), step)()


@pytest.mark.parametrize("data", FLEXIBLE)
@pytest.mark.parametrize("step", ["text", "count"])
def test_a_compact_length_that_does_not_fit_is_refused(step: str, data: bytes) -> None:
    """Null is refused too, where it has no meaning."""
    with pytest.raises(ValueError, match=r"announced|does not end"):
        getattr(WireCursor(data, flexible=True), step)()


@pytest.mark.parametrize("data", [b"\x01", b"\x01\x05", b"\x01\x05\x03hi", b"\x01" + b"\xff" * 8])
def test_tags_that_are_cut_off_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"announced|does not end"):
        WireCursor(data, flexible=True).tags()
