"""Avro values into columns; fastavro decides what they mean."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import DecodeError, OptionError
from penstock.core.options.option_table import read_surface
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import ColumnDecoder
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.decoder_choice import build_decoders
from penstock.formats.registry.schema_registry import RegistrySettings
from penstock.testing.registry import RegistryServer
from tests.support.registry_memory import forget_schemas


def encode(schema: Any, datum: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), datum)
    return out.getvalue()


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "R") -> dict[str, Any]:
    """Return a record schema; a third item of a field is its default."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})}
            for each in fields
        ],
    }


def decode(decoder: AvroDecoder, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    errors = [None] * len(values) if decoded.errors is None else decoded.errors.to_pylist()
    return decoded.column.to_pylist(maps_as_pydicts="strict"), errors


def resolve(writer: Any, reader: Any, *data: Any) -> tuple[list[Any], list[str | None]]:
    """Read values written in one schema into a frame of another, through a registry."""
    forget_schemas()
    with RegistryServer() as registry:
        schema_id = registry.register("s", json.dumps(writer))
        decoder = AvroDecoder(json.dumps(reader), (), RegistrySettings((registry.url,)))
        return decode(decoder, *(frame(schema_id, encode(writer, each)) for each in data))


def frame(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


# --- any schema, any value ----------------------------------------------------------------------------


class Names:
    """Makes unique names: the named types of one Avro schema must differ."""

    def __init__(self) -> None:
        self.used = 0

    def take(self) -> str:
        self.used += 1
        return f"N{self.used}"


_PRIMITIVES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "bytes": ("bytes", st.binary(max_size=20)),
    "string": ("string", st.text(max_size=20)),
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(timezones=st.just(dt.UTC)),
    ),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(timezones=st.just(dt.UTC)).map(
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
        ),
    ),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    ),
}


@st.composite
def schemas(draw: st.DrawFn, names: Names, depth: int = 0) -> tuple[Any, st.SearchStrategy[tuple[Any, Any]]]:
    """Draw a schema and values for it, each as (what fastavro writes, what the column must hold)."""
    simple = [*_PRIMITIVES, "enum", "fixed"]
    nested = ["array", "map", "record", "nullable", "union"] if depth < 3 else []
    kind = draw(st.sampled_from(simple + nested))
    if kind in _PRIMITIVES:
        schema, values = _PRIMITIVES[kind]
        return schema, values.map(lambda value: (value, value))
    if kind == "enum":
        symbols = ["A", "B", "LONGER_NAME"]
        named = {"type": "enum", "name": names.take(), "symbols": symbols}
        return named, st.sampled_from(symbols).map(lambda value: (value, value))
    if kind == "fixed":
        named = {"type": "fixed", "name": names.take(), "size": 5}
        return named, st.binary(min_size=5, max_size=5).map(lambda value: (value, value))
    if kind == "record":
        parts = [draw(schemas(names, depth + 1)) for _ in range(draw(st.integers(1, 3)))]
        named = record(*((f"f{n}", each[0]) for n, each in enumerate(parts)), name=names.take())
        return named, st.tuples(*(each[1] for each in parts)).map(_as_records)
    if kind == "union":
        parts = [_PRIMITIVES["string"], _PRIMITIVES["long"], _PRIMITIVES["double"]]
        return [each[0] for each in parts], st.one_of(
            *(_branch(n, each[1]) for n, each in enumerate(parts)),
        )
    inner, values = draw(schemas(names, depth + 1))
    if kind == "array":
        pairs = st.lists(values, max_size=4)
        return {"type": "array", "items": inner}, pairs.map(
            lambda many: ([each[0] for each in many], [each[1] for each in many])
        )
    if kind == "map":
        entries = st.dictionaries(st.text(max_size=4), values, max_size=3)
        return {"type": "map", "values": inner}, entries.map(
            lambda many: ({k: v[0] for k, v in many.items()}, {k: v[1] for k, v in many.items()})
        )
    if isinstance(inner, list):
        return inner, values  # a union must not be nested in another
    return ["null", inner], st.just((None, None)) | values


def _as_records(parts: tuple[tuple[Any, Any], ...]) -> tuple[Any, Any]:
    return tuple({f"f{n}": each[side] for n, each in enumerate(parts)} for side in (0, 1))  # type: ignore[return-value]


def _branch(chosen: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, {f"member{n}": value if n == chosen else None for n in range(3)}))


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_of_any_schema_reads_as_it_was_written(data: st.DataObject) -> None:
    schema, values = data.draw(schemas(Names()))
    rows = data.draw(st.lists(st.none() | values, max_size=8))
    encoded = [None if each is None else encode(schema, each[0]) for each in rows]
    found, errors = decode(AvroDecoder(json.dumps(schema)), *encoded)
    assert errors == [None] * len(rows)
    assert found == [None if each is None else each[1] for each in rows]


def test_a_union_of_records_is_a_struct_with_a_member_for_each() -> None:
    one, two = (
        record(("a", "int", 1), name="One"),
        record(("b", {"type": "array", "items": "int"}, [1]), name="Two"),
    )
    schema = record(("v", ["null", one, two]))
    found, errors = resolve(schema, schema, {"v": {"a": 5}}, {"v": {"b": [7]}}, {"v": None})
    assert errors == [None] * 3
    assert [each["v"] for each in found] == [
        {"member0": {"a": 5}, "member1": None},
        {"member0": None, "member1": {"b": [7]}},
        None,
    ]


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_fields_that_are_not_asked_for_are_skipped_whatever_they_are(data: st.DataObject) -> None:
    names = Names()
    parts = [data.draw(schemas(names)) for _ in range(3)]
    values = [data.draw(each[1]) for each in parts]
    writer = record(*((f"f{n}", each[0]) for n, each in enumerate(parts)), name="W")
    kept = data.draw(st.sampled_from([0, 1, 2]))
    reader = record((f"f{kept}", parts[kept][0]), name="W")
    datum = {f"f{n}": each[0] for n, each in enumerate(values)}
    found, errors = resolve(writer, reader, datum)
    assert errors == [None]
    assert found == [{f"f{kept}": values[kept][1]}]


# --- schemas that change ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", -5, -5),
        ("int", "double", 7, 7.0),
        ("long", "float", 1 << 40, float(1 << 40)),
        ("float", "double", 1.5, 1.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"abc", "abc"),
        ("int", ["null", "long"], 3, 3),
        (["null", "int"], ["null", "long"], None, None),
        (["null", "int"], ["null", "long"], 4, 4),
        (["int", "null"], "long", 4, 4),
        ("long", ["string", "long"], 4, {"member0": None, "member1": 4}),
        ("int", ["int", "long"], 4, 4),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            1_700_000_000_123,
            1_700_000_000_123_000,
        ),
    ],
)
def test_a_value_becomes_the_frames_type(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    found, errors = resolve(record(("v", writer)), record(("v", reader)), {"v": value})
    assert errors == [None]
    got = found[0]["v"]
    if hasattr(got, "timestamp"):
        got = round(got.timestamp() * 1_000_000)
    assert got == expected


def test_a_field_the_writer_does_not_have_gets_the_frames_default() -> None:
    wanted = [
        ("i", "int", 7), ("s", "string", "x"), ("d", "double", 2), ("n", ["null", "string"], None),
        ("b", "bytes", "\u00ff"), ("l", {"type": "array", "items": "long"}, [1, 2]),
        ("m", {"type": "map", "values": "string"}, {"k": "v"}),
        ("r", record(("x", "int"), ("y", "string", "deep"), name="Inner"), {"x": 1}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("t", {"type": "boolean"}, True),
        ("c", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\u00ff\u0000"),
    ]  # fmt: skip
    found, errors = resolve(record(("other", "string")), record(*wanted), {"other": "o"}, {"other": ""})
    assert errors == [None, None]
    expected = {
        "i": 7, "s": "x", "d": 2.0, "n": None, "b": b"\xff", "l": [1, 2], "m": {"k": "v"},
        "r": {"x": 1, "y": "deep"}, "e": "B", "t": True, "c": decimal.Decimal("-2.56"),
    }  # fmt: skip
    assert found == [expected, expected]


def test_a_renamed_field_is_found_by_its_alias() -> None:
    reader = record(("fresh", "long"))
    reader["fields"][0]["aliases"] = ["old"]
    assert resolve(record(("old", "int")), reader, {"old": 5}) == ([{"fresh": 5}], [None])


def test_an_enum_symbol_the_frame_does_not_know_is_its_default_or_a_bad_row() -> None:
    writer = {"type": "enum", "name": "E", "symbols": ["A", "NEW"]}
    reader = {"type": "enum", "name": "E", "symbols": ["A", "OTHER"], "default": "OTHER"}
    strict = {"type": "enum", "name": "E", "symbols": ["A"]}
    assert resolve(record(("v", writer)), record(("v", reader)), {"v": "NEW"}) == ([{"v": "OTHER"}], [None])
    found, errors = resolve(record(("v", writer)), record(("v", strict)), {"v": "NEW"}, {"v": "A"})
    assert found == [None, {"v": "A"}]
    assert errors[0] == "an enum has no such symbol (near `v`)"


def test_a_null_where_the_frame_has_none_is_a_bad_row_and_only_that() -> None:
    found, errors = resolve(record(("v", ["null", "int"])), record(("v", "int")), {"v": None}, {"v": 1})
    assert found == [None, {"v": 1}]
    assert errors[0] == "a union holds a branch that the frame's type does not have (near `v`)"


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record(("v", "string")), record(("v", "int"))),
        (record(("w", "string")), record(("v", "int"))),
        ("string", record(("v", "int"))),
        (record(("v", {"type": "array", "items": "int"})), record(("v", {"type": "map", "values": "int"}))),
        (record(("v", {"type": "fixed", "name": "F", "size": 2})),
         record(("v", {"type": "fixed", "name": "F", "size": 3}))),
        (record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
         record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}))),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_become_the_frames_makes_bad_rows_that_say_so(writer: Any, reader: Any) -> None:
    forget_schemas()
    with RegistryServer() as registry:
        bad = registry.register("s", json.dumps(writer))
        good = registry.register("s", json.dumps(reader))
        decoder = AvroDecoder(json.dumps(reader), (), RegistrySettings((registry.url,)))
        _, errors = decode(decoder, frame(bad, b"\0"), frame(good, b""), frame(bad, b"\1"))
        assert str(errors[0]).startswith(f"SCHEMA_INCOMPATIBLE: schema {bad} cannot be read")
        assert errors[2] == errors[0]
        assert errors[1] == "the value ends too early (near `v`)"


# --- frames and registries ----------------------------------------------------------------------------


def test_one_batch_may_hold_values_of_many_writers() -> None:
    forget_schemas()
    first, second = record(("a", "int")), record(("b", "string"), ("a", "long"))
    reader = record(("a", "long"), ("b", ["null", "string"], None))
    with RegistryServer() as registry:
        one, two = (registry.register("s", json.dumps(each)) for each in (first, second))
        decoder = AvroDecoder(json.dumps(reader), (), RegistrySettings((registry.url,)))
        values: list[bytes | None] = []
        for n in range(300):
            values.append(frame(one, encode(first, {"a": n})))
            values.append(frame(two, encode(second, {"a": -n, "b": str(n)})))
            values.append(None)
        found, errors = decode(decoder, *values)
        assert errors == [None] * 900
        assert found[:3] == [{"a": 0, "b": None}, {"a": 0, "b": "0"}, None]
        assert found[-3:] == [{"a": 299, "b": None}, {"a": -299, "b": "299"}, None]
        assert len(registry.requests) == 2  # once per schema, not per value


def test_values_without_a_frame_or_with_an_unknown_id_are_bad_rows() -> None:
    forget_schemas()
    schema = record(("a", "int"))
    with RegistryServer() as registry:
        known = registry.register("s", json.dumps(schema))
        decoder = AvroDecoder(json.dumps(schema), (), RegistrySettings((registry.url,)))
        good = frame(known, encode(schema, {"a": 1}))
        noise = [b"", b"\0", b"\0\0\0\0", b"\1" + good[1:], frame(99, b"\2"), frame(2**32 - 1, b""), good]
        found, errors = decode(decoder, *noise)
        assert found == [None] * 6 + [{"a": 1}]
        assert errors[:4] == ["the value does not begin with a schema id"] * 4
        assert errors[4:6] == ["the schema registry does not know the value's schema id"] * 2


def test_a_batch_of_noise_does_not_become_a_flood_of_questions() -> None:
    """An attempt without any memory (each may be in another worker) asks for the same few ids."""
    with RegistryServer(first_id=5000) as registry:
        known = registry.register("s", '"int"')
        settings = RegistrySettings((registry.url,), second_look_ms=1, max_unknown_ids=100)
        decoder = AvroDecoder('"int"', (), settings)
        noise = [frame(1000 + n, b"\2") for n in range(250)]
        for _ in range(2):
            forget_schemas()
            registry.requests.clear()
            with pytest.raises(DecodeError, match=r"SCHEMA_IDS_UNKNOWN.* 101 .*; 150 more") as caught:
                decode(decoder, *noise, frame(known, b"\2"))
            assert not caught.value.retriable  # the bad rows stay bad wherever they are decoded
            assert len(registry.requests) == 2 * 101


def test_whoever_allows_the_bad_rows_passes_a_batch_that_is_stuck_without_it() -> None:
    """The bound follows the quota, and needs nothing that another attempt has learned."""
    with RegistryServer(first_id=5000) as registry:
        known = registry.register("s", '"int"')
        options = {"schemaRegistry.url": registry.url, "valueFormat": "avro", "valueSchema": '"int"'}
        noise = [frame(1000 + n, b"\2") for n in range(150)]

        def read(**more: str) -> tuple[list[Any], list[str | None]]:
            forget_schemas()
            decoder = build_decoders(read_surface(FormatTable, {**options, **more}))["valueData"]
            assert isinstance(decoder, AvroDecoder)
            assert decoder.registry is not None
            decoder = replace(decoder, registry=replace(decoder.registry, second_look_ms=1))
            return decode(decoder, *noise, frame(known, b"\2"))

        for too_few in ({}, {"onDecodeError": "null", "decodeErrorQuota": "120"}):
            with pytest.raises(DecodeError, match="SCHEMA_IDS_UNKNOWN"):
                read(**too_few)
        found, errors = read(onDecodeError="null", decodeErrorQuota="150")
        assert found == [None] * 150 + [1]
        assert errors.count("the schema registry does not know the value's schema id") == 150


def test_a_producer_of_unknown_ids_spoils_nobody_elses_rows() -> None:
    forget_schemas()
    with RegistryServer(first_id=5000) as registry:
        known, late = registry.register("s", '"int"'), registry.register("s", '"long"')
        decoder = AvroDecoder('"long"', (), RegistrySettings((registry.url,), second_look_ms=1))
        assert decode(decoder, frame(known, b"\2")) == ([1], [None])
        noise = [frame(1000 + n, b"\2") for n in range(150)]  # all of them lower than the good ids
        found, errors = decode(decoder, *noise, frame(known, b"\4"), frame(late, b"\6"))
        assert found == [None] * 150 + [2, 3]
        assert errors == ["the schema registry does not know the value's schema id"] * 150 + [None] * 2
        later, _ = decode(decoder, *(frame(2000 + n, b"\2") for n in range(150)), frame(known, b"\4"))
        assert later[-1] == 2


def test_an_id_that_the_registry_learns_in_between_makes_no_bad_row() -> None:
    forget_schemas()
    with RegistryServer() as registry:
        schema_id = registry.register("s", '"int"')
        registry.lagging[schema_id] = 1
        decoder = AvroDecoder('"int"', (), RegistrySettings((registry.url,)))
        assert decode(decoder, frame(schema_id, b"\2")) == ([1], [None])


def test_the_ids_of_most_rows_are_asked_for_first() -> None:
    forget_schemas()
    with RegistryServer(first_id=5000) as registry:
        schema_id = registry.register("s", '"int"')
        decoder = AvroDecoder('"int"', (), RegistrySettings((registry.url,), second_look_ms=1))
        decode(decoder, frame(7, b""), *[frame(schema_id, b"\2")] * 3, *[frame(9, b"")] * 2)
        assert registry.requests[:3] == [f"/schemas/ids/{each}" for each in (schema_id, 9, 7)]


def test_a_registry_that_goes_away_makes_an_error_to_try_again_and_no_bad_rows() -> None:
    forget_schemas()
    with RegistryServer() as registry:
        known = registry.register("s", '"int"')
        decoder = AvroDecoder('"int"', (), RegistrySettings((registry.url,), second_look_ms=1))
        assert decode(decoder, frame(known, b"\2")) == ([1], [None])
        registry.fail_with = 503
        with pytest.raises(DecodeError, match="SCHEMA_REGISTRY_UNREACHABLE") as caught:
            decode(decoder, frame(known, b"\2"), frame(99, b"\2"))
        assert caught.value.retriable
        registry.fail_with = None
        assert decode(decoder, frame(known, b"\2"), frame(99, b""))[0] == [1, None]


def test_a_schema_may_use_types_of_other_subjects() -> None:
    forget_schemas()
    inner = record(("x", "int"), name="shop.Inner")
    outer = record(("i", "shop.Inner"), name="shop.Outer")
    with RegistryServer() as registry:
        registry.register("inner", json.dumps(inner))
        uses = [{"name": "shop.Inner", "subject": "inner", "version": 1}]
        schema_id = registry.register("outer", json.dumps(outer), references=uses)
        decoder = AvroDecoder(json.dumps(outer), (json.dumps(inner),), RegistrySettings((registry.url,)))
        assert decode(decoder, frame(schema_id, b"\4")) == ([{"i": {"x": 2}}], [None])


def test_a_decoder_travels_with_its_registry_and_hides_the_login() -> None:
    from penstock.core.client.client_settings import Secret

    settings = RegistrySettings(("http://r:1",), Secret("me:hunter2"))
    decoder = AvroDecoder('"string"', (), settings)
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert hash(copy) == hash(decoder)
    assert copy.registry.basic_auth.reveal() == "me:hunter2"
    assert "hunter2" not in repr(decoder)
    assert isinstance(decoder, ColumnDecoder)


# --- hostile bytes and hostile schemas ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("long", b"", "the value ends too early"),
        ("long", b"\x80", "the value ends too early"),
        ("long", b"\xff" * 11, "a number is malformed"),
        ("long", b"\xff" * 9 + b"\x02", "a number is malformed"),
        ("int", b"\x80\x80\x80\x80\x20", "a number is too large"),
        ("boolean", b"\x02", "a number is malformed"),
        ("string", b"\x0aabc", "a length points outside the value"),
        ("string", b"\x01", "a length points outside the value"),
        ("string", b"\xff" * 9 + b"\x01", "a length points outside the value"),
        ("string", b"\x02\xff", "a text is not UTF-8"),
        ("double", b"1234567", "the value ends too early"),
        ("int", b"\x02\x02", "bytes are left over behind the value: it was written with another schema"),
        ({"type": "array", "items": ["null", "int"]}, b"\xfe\xff\xff\xff\x0f\0",
         "an array or map has more elements than the value has room for"),
        ({"type": "array", "items": "long"}, b"\xff" * 9 + b"\x01\0",
         "an array or map has more elements than the value has room for"),
        (["null", "int"], b"\x04", "a union has no such branch"),
        (["null", "int"], b"\x01", "a union has no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "an enum has no such symbol"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64",
         "a number is too large"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01",
         "a number is too large"),
    ],
)  # fmt: skip
def test_bytes_that_do_not_fit_their_schema_are_a_bad_row(schema: Any, value: bytes, reason: str) -> None:
    decoded = AvroDecoder(json.dumps(schema)).decode(pa.array([value, None, value], pa.binary()))
    assert decoded.column.to_pylist() == [None, None, None]
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [reason, None, reason]


def test_elements_without_bytes_do_not_go_on_for_ever() -> None:
    """A skipped array of nulls takes no bytes per element, so a count of a billion must end at once."""
    writer = record(("skipped", {"type": "array", "items": "null"}), ("v", "int"))
    forget_schemas()
    with RegistryServer() as registry:
        schema_id = registry.register("s", json.dumps(writer))
        decoder = AvroDecoder(json.dumps(record(("v", "int"))), (), RegistrySettings((registry.url,)))
        few = frame(schema_id, encode(writer, {"skipped": [None] * 1000, "v": 1}))
        many = frame(schema_id, b"\x80\x80\x80\x80\x80\x80\x80\x80\x40\0\2")
        found, errors = decode(decoder, few, many)
        assert found == [{"v": 1}, None]
        assert errors == [None, "an array or map has more elements than the value has room for"]


@pytest.mark.parametrize(
    ("schema", "condition"),
    [
        ("{", "SCHEMA_INVALID"),
        ('{"type":"record","name":"R"}', "FORMAT_UNSUPPORTED"),
        ('{"type":"record","fields":[]}', "SCHEMA_INVALID"),
        ('"Unknown"', "SCHEMA_INVALID"),
        ("[]", "SCHEMA_INVALID"),
        ("7", "SCHEMA_INVALID"),
        ('"null"', "FORMAT_UNSUPPORTED"),
        ('{"type":"record","name":"R","fields":[{"name":"me","type":["null","R"]}]}', "FORMAT_UNSUPPORTED"),
        (json.dumps(record(("a", "null"))), "FORMAT_UNSUPPORTED"),
        ('{"type":"array","items":' * 40 + '"int"' + "}" * 40, "SCHEMA_INVALID"),
    ],
)
def test_a_schema_no_column_can_hold_is_refused_at_once(schema: str, condition: str) -> None:
    with pytest.raises(OptionError) as caught:
        AvroDecoder(schema)
    assert caught.value.condition == condition


def test_a_schema_made_to_unroll_for_ever_is_refused() -> None:
    """Twenty records, each with ten fields of the previous one's type, would be 10^20 operations."""
    names = ["int"]
    text = []
    for n in range(20):
        text.append(json.dumps(record(*((f"f{i}", names[-1]) for i in range(10)), name=f"B{n}")))
        names.append(f"B{n}")
    forget_schemas()
    with RegistryServer() as registry:
        uses = []
        for n, each in enumerate(text[:-1]):
            registry.register(f"b{n}", each, references=uses)
            uses = [{"name": f"B{n}", "subject": f"b{n}", "version": 1}]
        schema_id = registry.register("top", text[-1], references=uses)
        decoder = AvroDecoder(json.dumps(record(("v", "int", 0))), (), RegistrySettings((registry.url,)))
        _, errors = decode(decoder, frame(schema_id, b"\0" * 100))
        assert errors == [
            f"SCHEMA_INCOMPATIBLE: schema {schema_id} cannot be read as the frame's: it is too large"
        ]
    with pytest.raises(OptionError, match="FORMAT_UNSUPPORTED"):
        AvroDecoder(text[-1], tuple(text[:-1]))


def test_a_special_double_stays_itself() -> None:
    found, _ = decode(AvroDecoder('"double"'), encode("double", math.nan), encode("double", -0.0))
    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1
