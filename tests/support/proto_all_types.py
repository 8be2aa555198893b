"""A Protobuf file with a field of every type in every position, and the columns its messages must become."""

from __future__ import annotations

import decimal
from typing import Any

from google.protobuf import descriptor_pb2

TYPES = [
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
    "sfixed32", "sfixed64", "sint32", "sint64", "enum", "message",
]  # fmt: skip


def make_file() -> descriptor_pb2.FileDescriptorProto:
    """Return `t.All`: every type plain (p_), optional (o_), repeated (r_), in a oneof (u_), in a map (m_)."""
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="t", syntax="proto3")
    colours = file.enum_type.add(name="Colour")
    for number, name in ((0, "RED"), (5, "BLUE"), (-3, "NEGATIVE")):
        colours.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=proto.TYPE_SINT64, label=proto.LABEL_OPTIONAL)
    inner.field.add(name="names", number=2, type=proto.TYPE_STRING, label=proto.LABEL_REPEATED)
    every = file.message_type.add(name="All")
    every.oneof_decl.add(name="choice")
    synthetic = []
    number = 0
    for kind in TYPES:
        code = proto.Type.Value(f"TYPE_{kind.upper()}")
        name = {"enum": ".t.Colour", "message": ".t.Inner"}.get(kind)
        for prefix in "porum":
            number += 1
            field = every.field.add(name=f"{prefix}_{kind}", number=number * 3, type=code, type_name=name)
            field.label = proto.LABEL_OPTIONAL
            if prefix == "r":
                field.label = proto.LABEL_REPEATED
            elif prefix == "u":
                field.oneof_index = 0
            elif prefix == "o":
                field.proto3_optional = True
                synthetic.append(field)
            elif prefix == "m":
                entry = every.nested_type.add(name=f"M{kind.capitalize()}Entry")
                entry.options.map_entry = True
                key = proto.TYPE_STRING if number % 2 else proto.TYPE_INT32
                entry.field.add(name="key", number=1, type=key, label=proto.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=code, type_name=name, label=proto.LABEL_OPTIONAL)
                field.type, field.label = proto.TYPE_MESSAGE, proto.LABEL_REPEATED
                field.type_name = f".t.All.{entry.name}"
    for field in synthetic:
        field.oneof_index = len(every.oneof_decl)
        every.oneof_decl.add(name=f"_{field.name}")
    file.message_type.add(name="Empty")
    return file


def descriptors(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


ALL = descriptors(make_file())


def expect_row(message: Any) -> dict[str, Any]:
    """Return the expected columns of a message, asking Google's library field by field."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            row[field.name] = {key: _plain(inner, value[key]) for key in value}
        elif field.is_repeated:
            row[field.name] = [_plain(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _plain(field, value)
    return row


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return expect_row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return decimal.Decimal(value)
    return value
