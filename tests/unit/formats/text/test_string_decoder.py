"""Text values: all of UTF-8, and nothing but UTF-8."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.text.string_decoder import StringDecoder


@given(st.lists(st.none() | st.binary(max_size=12) | st.text(max_size=12).map(str.encode), max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_value_is_text_exactly_when_python_can_decode_it(values: list[bytes | None]) -> None:
    decoded = StringDecoder().decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    errors = [None] * len(values) if decoded.errors is None else decoded.errors.to_pylist()
    for value, row, error in zip(values, decoded.column.to_pylist(), errors, strict=True):
        try:
            expected = None if value is None else value.decode()
        except UnicodeDecodeError:
            assert (row, error) == (None, "the value is not UTF-8")
        else:
            assert (row, error) == (expected, None)


def test_a_slice_of_text_keeps_its_place() -> None:
    values = pa.array([b"\xff", b"a", None, b"\xc3\xa9", b"\xff"], pa.binary())
    decoded = StringDecoder().decode(values[1:])
    assert decoded.column.to_pylist() == ["a", None, "é", None]
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [None, None, None, "the value is not UTF-8"]
