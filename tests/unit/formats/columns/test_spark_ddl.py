"""Schemas as text: which ones are refused, and with which messages."""

from __future__ import annotations

import pytest

from penstock.core.errors import OptionError
from penstock.formats.json.json_decoder import JsonDecoder


@pytest.mark.parametrize(
    ("schema", "condition"),
    [
        ("", "SCHEMA_INVALID"),
        ("id", "SCHEMA_INVALID"),
        ("id BIGINT,", "SCHEMA_INVALID"),
        ("id BIGINT name STRING", "SCHEMA_INVALID"),
        ("id INT, id STRING", "SCHEMA_INVALID"),
        ("a DECIMAL(39,0)", "SCHEMA_INVALID"),
        ("a ARRAY<INT", "SCHEMA_INVALID"),
        ("struct<a:int> b", "SCHEMA_INVALID"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "SCHEMA_INVALID"),
        ("a INTERVAL", "FORMAT_UNSUPPORTED"),
        ("a MAP<INT,STRING>", "FORMAT_UNSUPPORTED"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(schema: str, condition: str) -> None:
    with pytest.raises(OptionError) as caught:
        JsonDecoder(schema)
    assert caught.value.condition == condition
