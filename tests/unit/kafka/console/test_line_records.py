"""Lines become records: none lost, none joined, no byte changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SinkError
from penstock.kafka.console import line_records
from penstock.kafka.console.line_records import LineCutter, find_keyless, make_records


def cut(*blocks: bytes) -> list[bytes]:
    cutter = LineCutter()
    found = [line for block in blocks for line in cutter.cut(block).to_pylist()]
    return found + cutter.rest().to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\x00\xff\xfe\n", [b"a\r", b"\x00\xff\xfe"]),
        (b"\n\n\n", [b"", b"", b""]),
    ],
)
def test_a_newline_ends_a_record_and_nothing_else_does(text: bytes, expected: list[bytes]) -> None:
    """A11: the last line counts even without one, and invalid text passes unchanged."""
    assert cut(text) == expected


@given(st.lists(st.binary(max_size=8), max_size=12))
def test_however_a_text_is_cut_into_blocks_its_lines_are_the_same(blocks: list[bytes]) -> None:
    text = b"".join(blocks)
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert cut(*blocks) == cut(text) == expected


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_records, "LONGEST_LINE_BYTES", 10)
    cutter = LineCutter()
    cutter.cut(b"0123456789\n01234")
    with pytest.raises(SinkError) as refused:
        cutter.cut(b"567890")
    assert refused.value.condition == "LINE_TOO_LONG"


def test_a_key_stands_before_the_first_separator() -> None:
    cutter = LineCutter()
    found = cutter.cut(b"k:v:w\n:v\nk:\n\xff:\xfe\n")
    assert find_keyless(found, b":") is None
    records = make_records(found, separator=b":")
    assert records.column("key").to_pylist() == [b"k", b"", b"k", b"\xff"]
    assert records.column("value").to_pylist() == [b"v:w", b"v", b"", b"\xfe"]
    assert find_keyless(found, b"::") == 0
    assert find_keyless(LineCutter().cut(b"a:b\nc\nd\n"), b":") == 1


def test_partition_and_headers_are_the_same_for_every_line() -> None:
    records = make_records(LineCutter().cut(b"a\nb\n"), partition=2, headers=[("h", b"1"), ("h", b"2")])
    assert records.column("partition").to_pylist() == [2, 2]
    entry = [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
    assert records.column("headers").to_pylist() == [entry, entry]
    assert "key" not in records.schema.names
