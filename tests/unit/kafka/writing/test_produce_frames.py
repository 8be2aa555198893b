"""Answers to Produce, whole and cut off."""

from __future__ import annotations

import struct

import pytest

from penstock.kafka.writing.produce_frames import ProduceAnswer, read_answer


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
