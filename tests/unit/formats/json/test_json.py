"""JSON documents into typed columns: values, bad rows, and what one row must never do to another."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.typed_columns import MAX_REASON, ColumnDecoder
from penstock.formats.columns.spark_ddl import parse_ddl
from penstock.formats.json.json_decoder import JsonDecoder


def decode(schema: str, *documents: bytes | None, strict: bool = False) -> tuple[list[Any], list[str | None]]:
    """Return values and reasons, after checking that the column is valid Arrow."""
    decoder = JsonDecoder(schema, strict)
    decoded = decoder.decode(pa.array(documents, pa.binary()))
    decoded.column.validate(full=True)
    assert decoded.column.type == parse_ddl(schema).arrow
    assert len(decoded.column) == len(documents)
    errors = [None] * len(documents) if decoded.errors is None else decoded.errors.to_pylist()
    assert len(errors) == len(documents)
    return decoded.column.to_pylist(maps_as_pydicts="strict"), errors


def value_of(kind: str, text: str) -> Any:
    """Return the one field `v` of a document, which must be good."""
    rows, errors = decode(f"v {kind}", f'{{"v":{text}}}'.encode())
    assert errors == [None]
    return rows[0]["v"]


def read_between(schema: str, document: str, *, strict: bool = False) -> tuple[Any, str | None]:
    """Return a document's value and reason; the empty documents around it must stay unaffected."""
    rows, errors = decode(schema, b"{}", document.encode(), b"{}", strict=strict)
    assert rows[0] == rows[2]
    assert set(rows[0].values()) == {None}
    assert (errors[0], errors[2]) == (None, None)
    return rows[1], errors[1]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("tinyint", "-128", -128),
        ("smallint", "32767", 32767),
        ("int", "-2147483648", -(2**31)),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "-0", 0),
        ("double", "1", 1.0),
        ("double", "-0.1", -0.1),
        ("double", "1.7976931348623157e308", 1.7976931348623157e308),
        ("double", "5e-324", 5e-324),
        ("double", "0.30000000000000004", 0.30000000000000004),
        ("double", "123456789012345678901234567890", 1.2345678901234568e29),
        ("double", "1e400", float("inf")),
        ("double", "-1e-400", 0.0),
        ("double", '"Infinity"', float("inf")),
        ("double", '"-INF"', float("-inf")),
        ("double", "-Infinity", float("-inf")),  # as Python writes it
        ("float", "Infinity", float("inf")),
        ("float", "1.5", 1.5),
        (
            "float",
            "1.00000017881393432617187499",
            1.00000011920928955078125,
        ),  # half-way between two doubles
        ("float", "3.4028235677973366e38", 3.4028234663852886e38),
        ("float", "7.0064923216240853e-46", 0.0),
        ("float", "9007199791611905", 9007200328482816.0),
        ("string", '"plain"', "plain"),
        ("string", '"a\\"b\\\\c\\/d\\b\\f\\n\\r\\t"', 'a"b\\c/d\b\f\n\r\t'),
        ("string", '"\\u00e9\\u20ac\\ud83d\\ude00 é€😀"', "é€😀 é€😀"),
        ("string", '""', ""),
        ("string", "1.50", "1.50"),
        ("string", "true", "true"),
        ("string", '{"a": [1, "]}"]}', '{"a": [1, "]}"]}'),
        ("string", "[ 1 ]", "[ 1 ]"),
        ("binary", '"aGVsbG8="', b"hello"),
        ("binary", '"aGVsbA=="', b"hell"),
        ("binary", '""', b""),
        ("binary", '" aGVs\\n bG8= "', b"hello"),
        ("array<int>", "[]", []),
        ("array<int>", " [ 1 , null , 3 ] ", [1, None, 3]),
        ("array<array<string>>", '[["a"],[],null,["b","c"]]', [["a"], [], None, ["b", "c"]]),
        ("map<string,int>", '{"a":1,"\\u0062":null}', {"a": 1, "b": None}),
        ("map<string,array<int>>", '{"a":[1],"b":[]}', {"a": [1], "b": []}),
        ("struct<a:int,b:struct<c:string>>", '{"b":{"c":"x"},"a":1}', {"a": 1, "b": {"c": "x"}}),
        ("struct<a:int,b:struct<c:string>>", "null", None),
        ("struct<a:int,b:struct<c:string>>", "{}", {"a": None, "b": None}),
    ],
)
def test_a_value_of_each_type_is_read(kind: str, text: str, expected: object) -> None:
    assert value_of(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("decimal(10,2)", "12.345", "12.35"),
        ("decimal(10,2)", "-12.345", "-12.35"),
        ("decimal(10,2)", '"7"', "7.00"),
        ("decimal(10,2)", '"+1,234."', "1234.00"),
        ("decimal(10,2)", '"-.5"', "-0.50"),
        ("decimal(10,2)", '"\\u002e5"', "0.50"),
        ("decimal(10,2)", '"007.5E1"', "75.00"),
        ("decimal(10,2)", "1.2e3", "1200.00"),
        ("decimal(10,2)", "125e-3", "0.13"),
        ("decimal(10,2)", "0.00000001", "0.00"),
        ("decimal(38,0)", "9" * 38, "9" * 38),
        ("decimal(38,38)", "-0." + "9" * 38, "-0." + "9" * 38),
        ("decimal(20,0)", "-18446744073709551616", "-18446744073709551616"),
        ("date", '"2024-02-29"', "2024-02-29"),
        ("date", '"1969-12-31"', "1969-12-31"),
        ("date", '"2024-1-2"', "2024-01-02"),
        ("date", '"2024-01-02T03:04:05Z"', "2024-01-02"),
        ("timestamp", '"2024-01-02T03:04:05.678901Z"', "2024-01-02 03:04:05.678901+00:00"),
        ("timestamp", '"2024-01-02 03:04:05"', "2024-01-02 03:04:05+00:00"),
        ("timestamp", '"2024-01-02T03:04:05.5+05:30"', "2024-01-01 21:34:05.500000+00:00"),
        ("timestamp", '"1900-03-01T00:00:00Z"', "1900-03-01 00:00:00+00:00"),
        ("timestamp", "1700000000", "2023-11-14 22:13:20+00:00"),
        ("timestamp", '" 2024-01-02 03 "', "2024-01-02 03:00:00+00:00"),
        ("timestamp", '"2024-01-02T03:04:05 GMT-1"', "2024-01-02 04:04:05+00:00"),
        ("timestamp", '"2024-01-02T03:04:05UTC+01:2"', "2024-01-02 02:02:05+00:00"),
        ("timestamp", '"2024-01-02T03:04:05+010203"', "2024-01-02 02:02:02+00:00"),
        ("timestamp_ntz", '"2024-01-02T03:04"', "2024-01-02 03:04:00"),
    ],
)
def test_decimals_and_times_are_read_as_they_are_written(kind: str, text: str, expected: str) -> None:
    assert str(value_of(kind, text)) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("bigint", "9223372036854775808", "field `v` is too large for bigint"),
        ("bigint", "-9223372036854775809", "field `v` is too large for bigint"),
        ("bigint", "100000000000000000000000", "field `v` is too large for bigint"),
        ("tinyint", "128", "field `v` is too large for tinyint"),
        ("int", "1.0", "field `v` is not int"),
        ("int", '"1"', "field `v` is not int"),
        ("boolean", "1", "field `v` is not boolean"),
        ("double", '"1.5"', "field `v` is not double"),
        ("double", '"INF"', "field `v` is not double"),
        ("double", '"NaNx"', "field `v` is not double"),
        ("bigint", "NaN", "field `v` is not bigint"),
        ("string", '"a\\ud800b"', "field `v` has half of a surrogate pair"),
        ("string", '"\\udc00"', "field `v` has half of a surrogate pair"),
        ("date", '"\\ud800\\u0041"', "field `v` has half of a surrogate pair"),
        ("decimal(4,2)", '"."', "field `v` is not decimal(4,2)"),
        ("decimal(4,2)", '"1.2.3"', "field `v` is not decimal(4,2)"),
        ("decimal(4,2)", "1e-99999999999", "field `v` is too large for decimal(4,2)"),
        ("date", '"9999999-01-01"', "field `v` is not date"),
        ("timestamp", '"294247-01-10T04:00:54.775808Z"', "field `v` is not timestamp"),
        ("timestamp", '"2024-01-02T03:04:05+1:2:3"', "field `v` is not timestamp"),
        ("timestamp", '"2024-01-02T03:04:05UT1"', "field `v` is not timestamp"),
        ("decimal(4,2)", "123", "field `v` is too large for decimal(4,2)"),
        ("decimal(4,2)", "99.995", "field `v` is too large for decimal(4,2)"),
        ("decimal(4,2)", "1e99999999999", "field `v` is too large for decimal(4,2)"),
        ("decimal(4,2)", '"x"', "field `v` is not decimal(4,2)"),
        ("date", '"2023-02-29"', "field `v` is not date"),
        ("date", '"2023-13-01"', "field `v` is not date"),
        ("date", '""', "field `v` is not date"),
        ("timestamp", '"yesterday"', "field `v` is not timestamp"),
        ("timestamp", '"2024-01-02T25:00:00Z"', "field `v` is not timestamp"),
        ("timestamp_ntz", '"2024-01-02T03:04:05Z"', "field `v` is not timestamp_ntz"),
        ("binary", '"aGVsbG8"', "field `v` is not binary"),
        ("array<int>", "{}", "field `v` is not array<int>"),
        ("array<int>", '[1,"x"]', "field `v[]` is not int"),
        ("map<string,int>", '{"a":true}', "field `v{}` is not int"),
    ],
)
def test_a_value_of_another_type_is_a_null_field_with_a_reason(kind: str, text: str, reason: str) -> None:
    """The other fields are kept; with `strict` the whole row is null. The reason is the same."""
    schema, document = f"v {kind}, z int", f'{{"v":{text},"z":7}}'
    assert read_between(schema, document) == ({"v": None, "z": 7}, reason)
    assert read_between(schema, document, strict=True) == (None, reason)


@pytest.mark.parametrize(
    ("kind", "text", "kept", "reason"),
    [
        ("array<int>", '[1,"x",{"z":9},3]', None, "field `v[]` is not int"),
        ("array<array<int>>", '[[1],[2,"x"],[3]]', None, "field `v[][]` is not int"),
        ("array<struct<a:int,b:double>>", '[{"a":1},{"a":[2],"b":3},null]',
         [{"a": 1, "b": None}, {"a": None, "b": 3.0}, None], "field `v[].a` is not int"),
        ("array<struct<b:double>>", '[{"b":0.1234567890123456789},4,{"b":0.1234567890123456789}]', None,
         "field `v[]` is not struct<b:double>"),
        ("map<string,int>", '{"a":1,"b":"x","c":3}', None, "field `v{}` is not int"),
        ("map<string,array<string>>", '{"a":["p"],"b":"x","c":["q"]}', None,
         "field `v{}` is not array<string>"),
        ("map<string,struct<a:int>>", '{"k":{"a":1},"l":{"a":"x"}}', {"k": {"a": 1}, "l": {"a": None}},
         "field `v{}.a` is not int"),
        ("struct<a:struct<b:int,c:string>>", '{"a":{"b":[1,{"c":2}],"c":"kept"}}',
         {"a": {"b": None, "c": "kept"}}, "field `v.a.b` is not int"),
        ("struct<a:int>", "[1,2]", None, "field `v` is not struct<a:int>"),
    ],
)  # fmt: skip
def test_a_bad_value_makes_the_nearest_field_of_a_struct_null(
    kind: str, text: str, kept: object, reason: str
) -> None:
    """Lists and maps cannot have gaps: they become null as a whole, and nothing of them is left behind."""
    schema, document = f"v {kind}, z int", f'{{"v":{text},"z":7}}'
    assert read_between(schema, document) == ({"v": kept, "z": 7}, reason)
    assert read_between(schema, document, strict=True) == (None, reason)


def test_the_first_of_several_bad_fields_is_named_and_a_document_that_is_not_json_is_null() -> None:
    schema = "a int, b int, c string"
    assert read_between(schema, '{"b":"x","c":"kept","a":true}') == (
        {"a": None, "b": None, "c": "kept"},
        "field `b` is not int",
    )
    assert read_between(schema, '{"a":"x","c":"lost"') == (None, "the document ends too early")


def test_numbers_left_for_later_stay_with_their_rows_where_fields_are_bad() -> None:
    """More such numbers than their table first holds; a bad list and a repeated name discard two of three."""
    document = '{"d":0.1234567890123456789,"l":[0.1234567890123456789,"x"],"d":0.%d234567890123456789}'
    rows, errors = decode(
        "d double, l array<double>", *((document % (n % 10)).encode() for n in range(1_000))
    )
    assert rows == [{"d": float(f"0.{n % 10}234567890123456789"), "l": None} for n in range(1_000)]
    assert set(errors) == {"field `l[]` is not double"}


@pytest.mark.parametrize(
    "document",
    [
        b"", b"   ", b"null", b"1", b"[]", b'"{}"', b"{", b"}", b"{}}", b"{}{}", b"{} x", b"{,}", b'{"v"}',
        b'{"v":}', b'{"v":1,}', b'{"v" 1}', b"{v:1}", b"{'v':1}", b'{"v":01}', b'{"v":1.}', b'{"v":.5}',
        b'{"v":-}', b'{"v":1e}', b'{"v":+1}', b'{"v":-NaN}', b'{"v":INF}', b'{"v":nul}', b'{"v":truex}',
        b'{"x":[1 2]}',
        b'{"x":[1,]}', b'{"x":[1}', b'{"x":{"y":1]}', b'{"x":"\x01"}', b'{"x":"\\x"}', b'{"x":"\\u12"}',
        b'{"x":"\\ud800\\q"}', b'{"\\udc00":1}', b'{"x":"\xff"}',
        b'{"x":"\xc0\x80"}',
        b'{"x":"\xed\xa0\x80"}', b'{"x":"\xf5\x80\x80\x80"}', b'{"x":"\xe2\x82"}', b'{"x":"abc', b'{"x":"\\',
        b'{"x":"\\"', b'{"\xff":1}', b'{"\\q":1}', b'{"v":1}\n{"v":2}', b'{"v":1}\x00', b"\xef\xbb\xbf{}",
        b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}", b"/**/{}",
    ],
)  # fmt: skip
def test_what_is_not_one_json_object_is_a_bad_row_and_its_neighbours_are_not(document: bytes) -> None:
    rows, errors = decode("v bigint", b'{"v":1}', document, b'{"v":2}')
    assert rows == [{"v": 1}, None, {"v": 2}]
    assert errors[0] is None
    assert errors[2] is None
    assert errors[1]
    assert len(errors[1]) <= MAX_REASON


def test_a_row_that_fails_late_takes_back_everything_it_had_written() -> None:
    schema = "a array<struct<n:string,d:double>>, m map<string,array<string>>, z int"
    good = b'{"a":[{"n":"x","d":1.23456789012345678},{"n":"y"}],"m":{"k":["v"]},"z":1}'
    bad = b'{"a":[{"n":"lost","d":0.1234567890123456789}],"m":{"k":["lost"],"l":["lost"]},"z":"lost"}'
    expected = {
        "a": [{"n": "x", "d": 1.23456789012345678}, {"n": "y", "d": None}],
        "m": {"k": ["v"]},
        "z": 1,
    }
    rows, errors = decode(schema, good, bad, good, strict=True)
    assert rows == [expected, None, expected]
    assert errors == [None, "field `z` is not int", None]
    rows, errors = decode(schema, good, bad.replace(b'"lost"}', b'"lost"'), good)
    assert rows == [expected, None, expected]
    assert errors == [None, "the document ends too early", None]


def test_of_two_fields_with_one_name_the_last_counts() -> None:
    schema = "a int, d double, t array<string>, s struct<x:string>"
    first = b'"a":1,"d":0.1234567890123456789,"t":["p","q"],"s":{"x":"old"}'
    rows, errors = decode(schema, b"{" + first + b',"a":2,"d":2.5,"t":["r"],"s":{}}', b"{" + first + b"}")
    assert errors == [None, None]
    assert rows[0] == {"a": 2, "d": 2.5, "t": ["r"], "s": {"x": None}}
    assert rows[1] == {"a": 1, "d": 0.1234567890123456789, "t": ["p", "q"], "s": {"x": "old"}}


def test_fields_come_in_any_order_and_unknown_ones_are_left_out() -> None:
    document = b'{"z":{"a":[1,{"b":"}"}]},"b":"two","y":null,"\\u0061":1,"aa":9,"":0}'
    assert decode("a int, b string", document, b"{}") == (
        [{"a": 1, "b": "two"}, {"a": None, "b": None}],
        [None, None],
    )


def test_tombstones_slices_and_empty_columns_keep_their_rows() -> None:
    decoder = JsonDecoder("v int")
    whole = pa.array([b'{"v":1}', None, b"x", b'{"v":4}', None], pa.binary())
    for start in range(6):
        for stop in range(start, 6):
            decoded = decoder.decode(whole[start:stop])
            expected = [{"v": 1}, None, None, {"v": 4}, None][start:stop]
            assert decoded.column.to_pylist() == expected
            reasons = [None] * (stop - start) if decoded.errors is None else decoded.errors.to_pylist()
            assert [each is None for each in reasons] == [True, True, False, True, True][start:stop]


def test_columns_that_outgrow_their_room_are_still_whole() -> None:
    documents = [
        json.dumps({"s": "x" * (1 << (n % 14)), "l": list(range(n % 300)), "d": [n / 7] * (n % 9)}).encode()
        for n in range(700)
    ]
    rows, errors = decode("s string, l array<bigint>, d array<double>", *documents)
    assert errors == [None] * 700
    assert rows == [json.loads(each) for each in documents]


def test_a_batch_of_bad_rows_costs_no_more_than_one_of_good_rows() -> None:
    """A batch of only bad rows must not be much slower, because a kernel rolls back each row separately."""
    import time

    decoder = JsonDecoder("v int, s string")
    good = pa.array([b'{"s":"%s","v":1}' % (b"y" * 60)] * 20_000, pa.binary())
    bad = pa.array([b'{"s":"%s","v":"x"}' % (b"y" * 60)] * 20_000, pa.binary())
    seconds = {}
    for name, column in (("good", good), ("bad", bad), ("good", good), ("bad", bad)):
        began = time.process_time()
        decoder.decode(column)
        seconds[name] = time.process_time() - began
    assert seconds["bad"] < 10 * seconds["good"] + 0.1


def test_a_decoder_travels_and_says_its_type() -> None:
    decoder = JsonDecoder("id BIGINT, `odd name` ARRAY<DECIMAL(5)>")
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert hash(copy) == hash(decoder)
    assert isinstance(decoder, ColumnDecoder)
    assert decoder.spark_type == "struct<id:bigint,`odd name`:array<decimal(5,0)>>"


_LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
_DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | st.text(),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.text(max_size=5), max_size=5),
        "o": st.none()
        | st.fixed_dictionaries({}, optional={"x": st.floats(0, 1), "y": st.lists(st.integers(-9, 9))}),
        "m": st.none() | st.dictionaries(st.text(max_size=4), st.none() | st.floats(-1e9, 1e9), max_size=4),
        "unknown": st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    },
)
_SCHEMA = (
    "i bigint, d double, s string, b boolean, l array<string>, o struct<x:double,y:array<int>>, "
    "m map<string,double>"
)


@given(
    st.lists(st.tuples(_DOCUMENTS, st.booleans(), st.sampled_from([None, 1, "\t"])) | st.none(), max_size=12)
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_document_reads_as_pythons_parser_reads_it(
    documents: list[tuple[dict[str, Any], bool, Any] | None],
) -> None:
    values = [
        None if each is None else json.dumps(each[0], ensure_ascii=each[1], indent=each[2]).encode()
        for each in documents
    ]
    rows, errors = decode(_SCHEMA, *values)
    assert errors == [None] * len(values)
    for each, row in zip(documents, rows, strict=True):
        if each is None:
            assert row is None
            continue
        expected = {name: each[0].get(name) for name in "idsblom"}
        if expected["o"] is not None:
            expected["o"] = {name: expected["o"].get(name) for name in "xy"}
        assert row == expected


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_every_double_is_right_to_the_last_bit(numbers: list[float]) -> None:
    rows, _ = decode("v array<double>", json.dumps({"v": numbers}).encode())
    assert np.array(rows[0]["v"]).tobytes() == np.array(numbers).tobytes()
