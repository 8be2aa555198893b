"""Protobuf messages into columns; Google's own parser decides what they mean."""

from __future__ import annotations

import base64
import math
import pickle
import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import OptionError
from penstock.core.typed_columns import ColumnDecoder
from penstock.formats.protobuf.protobuf_decoder import ProtobufDecoder
from penstock.formats.protobuf.protobuf_schema import load_message
from penstock.formats.registry.schema_registry import RegistrySettings
from penstock.testing.registry import RegistryServer
from tests.support.proto_all_types import ALL, descriptors, expect_row, make_file
from tests.support.registry_memory import forget_schemas

DECODER = ProtobufDecoder(ALL, "t.All")
MESSAGE = message_factory.GetMessageClass(load_message(ALL, "t.All"))


def decode(decoder: ProtobufDecoder, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    errors = [None] * len(values) if decoded.errors is None else decoded.errors.to_pylist()
    return decoded.column.to_pylist(maps_as_pydicts="strict"), errors


_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_UINT32, _UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False), "int64": _INT64,
    "uint64": _UINT64, "int32": _INT32, "fixed64": _UINT64, "fixed32": _UINT32, "bool": st.booleans(),
    "string": st.text(max_size=12), "bytes": st.binary(max_size=12), "uint32": _UINT32, "sfixed32": _INT32,
    "sfixed64": _INT64, "sint32": _INT32, "sint64": _INT64, "enum": st.sampled_from([0, 5, -3, 7, -(2**31)]),
    "message": st.fixed_dictionaries({"x": _INT64, "names": st.lists(st.text(max_size=4), max_size=3)}),
}  # fmt: skip


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a serialized `t.All` with some of its fields."""
    message = MESSAGE()
    names = draw(
        st.lists(
            st.sampled_from([field.name for field in MESSAGE.DESCRIPTOR.fields]), max_size=12, unique=True
        )
    )
    for name in names:
        prefix, _, kind = name.partition("_")
        values = VALUES[kind]
        if prefix == "r":
            many = draw(st.lists(values, max_size=4))
            for each in many:
                getattr(message, name).add(**each) if kind == "message" else getattr(message, name).append(
                    each
                )
        elif prefix == "m":
            field = message.DESCRIPTOR.fields_by_name[name].message_type.fields_by_name["key"]
            keys = st.text(max_size=3) if field.type == field.TYPE_STRING else _INT32
            for key, each in draw(st.dictionaries(keys, values, max_size=3)).items():
                if kind == "message":
                    getattr(message, name)[key].CopyFrom(type(getattr(message, name)[key])(**each))
                else:
                    getattr(message, name)[key] = each
        elif kind == "message":
            getattr(message, name).SetInParent()
            for part, each in draw(values).items():
                target = getattr(message, name)
                target.names.extend(each) if part == "names" else setattr(target, part, each)
        else:
            setattr(message, name, draw(values))
    return message.SerializeToString()  # type: ignore[no-any-return]


@given(st.lists(st.none() | messages(), max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_message_reads_as_googles_parser_reads_it(values: list[bytes | None]) -> None:
    found, errors = decode(DECODER, *values)
    assert errors == [None] * len(values)
    assert found == [None if each is None else expect_row(MESSAGE.FromString(each)) for each in values]


@given(messages(), messages())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_of_a_message_written_twice_the_last_values_count_and_pieces_are_joined(
    first: bytes, second: bytes
) -> None:
    """To Protobuf, two concatenated messages are one message, with nested ones merged."""
    found, errors = decode(DECODER, first, first + second, second)
    assert errors == [None] * 3
    assert found == [expect_row(MESSAGE.FromString(each)) for each in (first, first + second, second)]


def tag(name: str, wire: int) -> bytes:
    return varint(MESSAGE.DESCRIPTOR.fields_by_name[name].number << 3 | wire)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x80", "the value ends too early"),
        (b"\x00", "a field's tag is malformed"),
        (b"\xff" * 11, "a number is malformed"),
        (tag("p_int32", 0), "the value ends too early (near `p_int32`)"),
        (tag("p_int32", 0) + b"\xff" * 10, "a number is malformed (near `p_int32`)"),
        (tag("p_string", 2) + b"\x05abc", "a length points outside its message (near `p_string`)"),
        (tag("p_string", 2) + b"\xff" * 9 + b"\x01", "a length points outside its message (near `p_string`)"),
        (tag("p_string", 2) + b"\x01\xff", "a text is not UTF-8 (near `p_string`)"),
        (tag("p_double", 1) + b"1234567", "the value ends too early (near `p_double`)"),
        (tag("p_float", 5) + b"123", "the value ends too early (near `p_float`)"),
        (tag("r_float", 2) + b"\x05" + b"12345", "the value ends too early (near `r_float[]`)"),
        (tag("p_message", 2) + b"\x02\x08\x80", "the value ends too early (near `p_message.x`)"),
        (tag("p_message", 2) + b"\x03\x12\x05a",
         "a length points outside its message (near `p_message.names[]`)"),
        (b"\x0f", "a field's tag is malformed"),
        (b"\x0c", "a field's tag is malformed"),
        (b"\x0b", "the value ends too early"),
        (b"\x0b\x14", "a field's tag is malformed"),
        (b"\x0b" * 70, "messages are nested deeper than 64 levels"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_message_are_a_bad_row(value: bytes, reason: str) -> None:
    with pytest.raises(DecodeError):
        MESSAGE.FromString(value)
    good = MESSAGE(p_int32=7, r_string=["x"]).SerializeToString()
    found, errors = decode(DECODER, good, value, good)
    assert found[1] is None
    assert found[0] == found[2] == expect_row(MESSAGE.FromString(good))
    assert errors == [None, reason, None]


def test_unknown_fields_of_every_kind_are_skipped() -> None:
    unknown = (
        varint(1000 << 3) + b"\x05" + varint(1001 << 3 | 1) + b"12345678"
        + varint(1002 << 3 | 2) + b"\x03abc"
        + varint(1003 << 3 | 3) + b"\x08\x01\x13\x14" + varint(1003 << 3 | 4)
        + varint(1004 << 3 | 5) + b"1234"
    )  # fmt: skip
    value = unknown + MESSAGE(p_int32=7).SerializeToString() + unknown
    found, errors = decode(DECODER, value)
    assert errors == [None]
    assert found[0] == expect_row(MESSAGE.FromString(value))


def test_a_number_written_in_another_way_is_an_unknown_field() -> None:
    value = tag("p_int32", 5) + b"1234" + tag("p_string", 0) + b"\x01" + tag("p_double", 2) + b"\x02ab"
    found, errors = decode(DECODER, value)
    assert errors == [None]
    assert found[0] == expect_row(MESSAGE.FromString(value))


def test_repeated_numbers_are_read_packed_and_one_by_one() -> None:
    value = (
        tag("r_int32", 0) + b"\x01" + tag("p_string", 2) + b"\x01a" + tag("r_int32", 2) + b"\x02\x02\x03"
        + tag("r_int32", 0) + b"\x04" + tag("r_double", 1) + struct.pack("<d", 0.5)
    )  # fmt: skip
    found, errors = decode(DECODER, value)
    assert errors == [None]
    assert found[0]["r_int32"] == [1, 2, 3, 4]
    assert found[0]["r_double"] == [0.5]


def test_a_map_of_any_size_keeps_the_last_value_of_a_key() -> None:
    for size in (2, 127, 128, 129, 130, 1000):
        entries = MESSAGE(m_uint64=dict.fromkeys(range(size), 1), m_string={str(n): "a" for n in range(size)})
        again = MESSAGE(m_uint64={size // 2: 2}, m_string={str(size // 3): "b"})
        values = [entries.SerializeToString(), entries.SerializeToString() + again.SerializeToString()]
        found, errors = decode(DECODER, *values)
        assert errors == [None, None]
        assert found == [expect_row(MESSAGE.FromString(each)) for each in values]


def test_an_entry_of_a_map_without_key_or_value_has_their_zeros() -> None:
    value = tag("m_message", 2) + b"\x00" + tag("m_enum", 2) + b"\x00" + tag("m_uint64", 2) + b"\x00"
    found, errors = decode(DECODER, value)
    assert errors == [None]
    assert found[0] == expect_row(MESSAGE.FromString(value))


def test_special_numbers_stay_themselves() -> None:
    found, _ = decode(
        DECODER, MESSAGE(p_double=math.nan, o_float=-0.0, r_double=[math.inf]).SerializeToString()
    )
    assert math.isnan(found[0]["p_double"])
    assert math.copysign(1, found[0]["o_float"]) == -1
    assert found[0]["r_double"] == [math.inf]


def test_a_slice_and_an_empty_column_keep_their_rows() -> None:
    good = MESSAGE(p_int32=1).SerializeToString()
    whole = pa.array([b"\0", good, None, good, b"\0"], pa.binary())
    decoded = DECODER.decode(whole[1:4])
    assert [each and each["p_int32"] for each in decoded.column.to_pylist()] == [1, None, 1]
    assert decoded.errors is None
    assert len(DECODER.decode(whole[:0]).column) == 0


def test_a_decoder_travels_and_says_its_type() -> None:
    copy = pickle.loads(pickle.dumps(DECODER))
    assert copy == DECODER
    assert hash(copy) == hash(DECODER)
    assert isinstance(DECODER, ColumnDecoder)
    assert ProtobufDecoder(ALL, "t.Inner").spark_type == "struct<x:bigint,names:array<string>>"


# --- with a registry ----------------------------------------------------------------------------------


def zigzag(*numbers: int) -> bytes:
    return b"".join(varint(2 * each) for each in numbers)


def test_a_value_names_its_file_and_its_message() -> None:
    forget_schemas()
    with RegistryServer() as registry:
        text = base64.b64encode(make_file().SerializeToString()).decode()
        schema_id = registry.register("s", text, "PROTOBUF")
        decoder = ProtobufDecoder(ALL, "t.Inner", RegistrySettings((registry.url,)))
        head, payload = b"\0" + schema_id.to_bytes(4, "big"), b"\x08\x04"
        values = [
            head + b"\0" + payload,  # short for [0], which is Inner
            head + zigzag(1, 0) + payload,
            head + zigzag(1, 1) + payload,  # All
            head + zigzag(2, 1, 0) + payload,  # an entry inside All
            head + zigzag(1, 50) + payload,
            head + zigzag(20) + payload,
            head,
            head[:4],
            b"\0\0\0\0\x63\0" + payload,
            None,
        ]
        found, errors = decode(decoder, *values)
        inner = {"x": 2, "names": []}
        assert found == [inner, inner, *[None] * 8]
        wrong = "the value is another message type than the frame's"
        no_frame = "the value does not begin with a schema id and message indexes"
        assert errors == [
            None, None, wrong, wrong, wrong, no_frame, no_frame, no_frame,
            "the schema registry does not know the value's schema id", None,
        ]  # fmt: skip
        assert registry.requests.count(f"/schemas/ids/{schema_id}?format=serialized") == 1


def test_a_producer_of_unknown_ids_spoils_nobody_elses_messages() -> None:
    forget_schemas()
    with RegistryServer(first_id=5000) as registry:
        text = base64.b64encode(make_file().SerializeToString()).decode()
        schema_id = registry.register("s", text, "PROTOBUF")
        decoder = ProtobufDecoder(ALL, "t.Inner", RegistrySettings((registry.url,), second_look_ms=1))
        noise = [b"\0" + (1000 + n).to_bytes(4, "big") + b"\0" for n in range(150)]
        found, errors = decode(decoder, *noise, b"\0" + schema_id.to_bytes(4, "big") + b"\0\x08\x04")
        assert found == [None] * 150 + [{"x": 2, "names": []}]
        assert errors == ["the schema registry does not know the value's schema id"] * 150 + [None]


# --- schemas ------------------------------------------------------------------------------------------


def test_what_no_column_can_hold_is_refused_by_name() -> None:
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="t", syntax="proto3")
    node = file.message_type.add(name="Tree")
    node.field.add(
        name="left", number=1, type=proto.TYPE_MESSAGE, type_name=".t.Tree", label=proto.LABEL_OPTIONAL
    )
    with pytest.raises(OptionError, match=r"FORMAT_UNSUPPORTED.*t\.Tree.*contains itself"):
        ProtobufDecoder(descriptors(file), "t.Tree")
    with pytest.raises(OptionError, match=r"FORMAT_UNSUPPORTED.*no fields"):
        ProtobufDecoder(ALL, "t.Empty")
    with pytest.raises(OptionError, match=r"SCHEMA_NOT_FOUND.*t\.All"):
        ProtobufDecoder(ALL, "t.Missing")
    with pytest.raises(OptionError, match="SCHEMA_INVALID"):
        ProtobufDecoder(b"\xff\xff", "t.All")


def test_googles_own_types_need_not_be_in_the_descriptors() -> None:
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Event").field.add(
        name="at",
        number=1,
        type=proto.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=proto.LABEL_OPTIONAL,
    )
    decoder = ProtobufDecoder(descriptors(file), "t.Event")
    assert decoder.spark_type == "struct<at:struct<seconds:bigint,nanos:int>>"
    assert decode(decoder, b"\x0a\x02\x08\x05") == ([{"at": {"seconds": 5, "nanos": 0}}], [None])
