"""The plan of a message for the Protobuf kernel: its columns, and a table of its fields.

Choices: an enum is its name (a number without a name, from a newer producer, is its digits), unsigned 64-bit
numbers are decimal(20,0), unsigned 32-bit ones are bigint, and absent maps and repeated fields are empty. An
absent field without presence (a plain one of proto3) has its zero value: a producer that writes 0 sends
nothing, and null would lose that meaning. An absent field with presence (optional, oneof, proto2, messages)
is null. A message that contains itself cannot become columns and is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.errors import OptionError
from penstock.formats.columns import column_builder as s
from penstock.formats.columns.column_layout import Layout
from penstock.formats.columns.column_types import ColumnType, Decimal, Field, List, Map, Scalar, Struct
from penstock.kernels.byte_columns import Array

#: The most fields of a message, with the messages inside it expanded.
MAX_FIELDS = 5000
_COLUMNS: dict[str, ColumnType] = {
    "DOUBLE": Scalar("double"), "FLOAT": Scalar("float"), "INT64": Scalar("bigint"), "UINT64": Decimal(20, 0),
    "INT32": Scalar("int"), "FIXED64": Decimal(20, 0), "FIXED32": Scalar("bigint"), "BOOL": Scalar("boolean"),
    "STRING": Scalar("string"), "BYTES": Scalar("binary"), "UINT32": Scalar("bigint"),
    "ENUM": Scalar("string"), "SFIXED32": Scalar("int"), "SFIXED64": Scalar("bigint"),
    "SINT32": Scalar("int"), "SINT64": Scalar("bigint"),
}  # fmt: skip


def load_message(descriptors: bytes, name: str) -> Any:
    """Return the descriptor of a message in a serialized FileDescriptorSet, or raise an `OptionError`."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message
    except ImportError as error:
        raise OptionError(
            "PACKAGE_MISSING",
            "Reading Protobuf needs the package `protobuf`, which is not installed here.",
            hint="Install penstock[protobuf] on the driver and the workers.",
        ) from error
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        known = {each.name: each for each in files.file}
        for each in files.file:
            _add_file(pool, each.name, known, set())
    except (message.DecodeError, TypeError, ValueError, KeyError) as error:
        raise OptionError(
            "SCHEMA_INVALID",
            f"The Protobuf descriptors cannot be used ({error}).",
            hint="Make them with protoc --include_imports --descriptor_set_out=FILE.",
        ) from error
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = sorted(
            f"{each.package}.{top.name}".lstrip(".") for each in files.file for top in each.message_type
        )
        raise OptionError(
            "SCHEMA_NOT_FOUND",
            f"The Protobuf descriptors have no message `{name}`.",
            hint=f"They have {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}.",
            facts={"message": name},
        ) from None


def _add_file(pool: Any, name: str, known: dict[str, Any], open_files: set[str]) -> None:
    """Add a file to the pool after those it imports. Google's own files come with the library."""
    if name in open_files:
        return
    open_files.add(name)
    if name not in known:
        from google.protobuf import descriptor_pb2, descriptor_pool

        for module in ("timestamp", "duration", "wrappers", "any", "struct", "empty", "field_mask"):
            __import__(f"google.protobuf.{module}_pb2")
        own = descriptor_pool.Default().FindFileByName(name)
        copy = descriptor_pb2.FileDescriptorProto()
        own.CopyToProto(copy)
        known[name] = copy
    for each in known[name].dependency:
        _add_file(pool, each, known, open_files)
    try:
        pool.FindFileByName(name)
    except KeyError:
        pool.Add(known[name])


def join_files(texts: Iterable[str]) -> bytes:
    """Return a serialized FileDescriptorSet of files that a registry gave as base64 text."""
    from google.protobuf import descriptor_pb2, message

    files = descriptor_pb2.FileDescriptorSet()
    for text in texts:
        try:
            files.file.append(
                descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            )
        except (binascii.Error, ValueError, message.DecodeError) as error:
            raise OptionError(
                "SCHEMA_INVALID",
                "The schema registry did not return a serialized Protobuf descriptor.",
                hint="It must support `?format=serialized`; otherwise give the descriptors yourself.",
            ) from error
    return bytes(files.SerializeToString(deterministic=True))


def first_message(text: str) -> str:
    """Return the full name of the first message of a file that a registry gave."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(join_files([text])).file[0]
    if not file.message_type:
        raise _unsupported(file.name, "its file has no message")
    return f"{file.package}.{file.message_type[0].name}".lstrip(".")


def column_type(descriptor: Any) -> Struct:
    """Return the column type of a message."""
    found = _struct_of(descriptor, (), [0])
    if found is None:
        raise _unsupported(descriptor.full_name, "it has no fields")
    return found


def _struct_of(descriptor: Any, around: tuple[str, ...], count: list[int]) -> Struct | None:
    if descriptor.full_name in around:
        raise _unsupported(descriptor.full_name, "it contains itself")
    count[0] += len(descriptor.fields)
    if count[0] > MAX_FIELDS:
        raise _unsupported(
            descriptor.full_name, f"it has more than {MAX_FIELDS} fields with inner messages expanded"
        )
    inside = (*around, descriptor.full_name)
    fields = ((each.name, _field_type(each, inside, count)) for each in descriptor.fields)
    kept = tuple(Field(name, column) for name, column in fields if column is not None)
    return Struct(kept) if kept else None


def _field_type(each: Any, around: tuple[str, ...], count: list[int]) -> ColumnType | None:
    """Return the type of a field; None for a message without fields, which has no column in Spark either."""
    if _is_map(each):
        key, value = (
            _field_type(each.message_type.fields_by_name[name], around, count) for name in ("key", "value")
        )
        return None if key is None or value is None else Map(key, value)
    kind = _kind_name(each)
    if kind == "GROUP":
        raise _unsupported(f"{around[-1]}.{each.name}", "it is a group")
    found = _struct_of(each.message_type, around, count) if kind == "MESSAGE" else _COLUMNS[kind]
    return List(found) if found is not None and _is_repeated(each) else found


def _is_map(each: Any) -> bool:
    return _kind_name(each) == "MESSAGE" and bool(each.message_type.GetOptions().map_entry)


def _is_repeated(each: Any) -> bool:
    repeated = getattr(each, "is_repeated", None)  # protobuf 5 has only the label, 7 warns about it
    return bool(each.label == 3 if repeated is None else repeated)


def _kind_name(each: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(each.type)).removeprefix("TYPE_")


def _unsupported(name: str, why: str) -> OptionError:
    return OptionError(
        "FORMAT_UNSUPPORTED",
        f"The Protobuf message `{name}` cannot be a column: {why}.",
        hint="Read the column as binary and decode it in your own function.",
        facts={"message": name},
    )


@dataclass
class Plan:
    """The kernel's tables for one message type."""

    fields: Array
    messages: Array
    enums: Array
    names: bytes
    missing: dict[int, int] = field(default_factory=dict)
    first_names: dict[int, str] = field(default_factory=dict)


class _Planner:
    def __init__(self, layout: Layout) -> None:
        from penstock.formats.protobuf import protobuf_kernel as k

        self._k, self._layout = k, layout
        self._messages: list[list[list[int]]] = []
        self._heads: list[tuple[int, int]] = []
        self._enums: list[tuple[int, int, int]] = []
        self._enum_at: dict[str, tuple[int, int]] = {}
        self._names = b""
        self.missing: dict[int, int] = {}
        self.first_names: dict[int, str] = {}

    def add_message(self, descriptor: Any, node: int, entry: bool) -> int:
        """Plan a message whose struct (or map, for a map entry) is `node`; return the message's number."""
        here = len(self._messages)
        rows: list[list[int]] = []
        self._messages.append(rows)
        self._heads.append((node, int(entry)))
        children = dict(zip(self._names_below(node, entry), self._layout.children(node), strict=True))
        for each in sorted(descriptor.fields, key=lambda one: one.number):
            if each.name in children:
                rows.append(self._plan_field(each, children[each.name], entry))
        return here

    def _names_below(self, node: int, entry: bool) -> list[str]:
        if entry:
            return ["key", "value"]
        return [self._layout.names[child] for child in self._layout.children(node)]

    def _plan_field(self, each: Any, node: int, entry: bool) -> list[int]:
        k, kind = self._k, _kind_name(each)
        oneof, target, inner = -1, node, -1
        if _is_repeated(each):
            self.missing[node] = s.EMPTY_LIST
            target = node if _is_map(each) else node + 1
        elif kind == "MESSAGE":
            self.missing[node] = s.EMPTY_STRUCT if entry else s.NULL
        elif entry or not each.has_presence:
            self.missing[node] = s.FIRST_NAME if kind == "ENUM" else s.ZERO
        if each.containing_oneof is not None:
            oneof = each.containing_oneof.index
        if kind == "MESSAGE":
            inner = self.add_message(each.message_type, target, _is_map(each))
        at, count = self._plan_enum(each.enum_type, node) if kind == "ENUM" else (0, 0)
        kinds = {
            "INT64": k.VARINT, "UINT64": k.UINT64, "INT32": k.INT32, "UINT32": k.UINT32, "SINT32": k.SINT32,
            "SINT64": k.ZIGZAG, "BOOL": k.BOOL, "ENUM": k.ENUM, "FIXED64": k.FIXED64, "SFIXED64": k.FIXED64,
            "FIXED32": k.UFIXED32, "SFIXED32": k.SFIXED32, "DOUBLE": k.DOUBLE, "FLOAT": k.FLOAT,
            "STRING": k.STRING, "BYTES": k.BYTES, "MESSAGE": k.NESTED,
        }  # fmt: skip
        return [each.number, kinds[kind], target, int(_is_repeated(each)), oneof, inner, at, count]

    def _plan_enum(self, enum: Any, node: int) -> tuple[int, int]:
        if enum.full_name not in self._enum_at:
            by_number = {
                each.number: each.name for each in reversed(enum.values)
            }  # the first of aliases counts
            begin = len(self._enums)
            for number, name in sorted(by_number.items()):
                self._enums.append((number, len(self._names), len(name.encode())))
                self._names += name.encode()
            self._enum_at[enum.full_name] = (begin, len(by_number))
        zero = [each.name for each in enum.values if each.number == 0]
        self.first_names[node] = zero[0] if zero else enum.values[0].name
        return self._enum_at[enum.full_name]

    def finish(self) -> Plan:
        k = self._k
        rows: list[list[int]] = []
        heads: list[tuple[int, int, int, int]] = []
        for fields, (node, entry) in zip(self._messages, self._heads, strict=True):
            heads.append((len(rows), len(rows) + len(fields), node, entry))
            rows += fields
        return Plan(
            np.array(rows, np.int64).reshape(-1, k.FIELD_WIDTH),
            np.array(heads, np.int64).reshape(-1, k.MESSAGE_WIDTH),
            np.array(self._enums, np.int64).reshape(-1, 3),
            self._names,
            self.missing,
            self.first_names,
        )


def make_plan(descriptor: Any, layout: Layout) -> Plan:
    planner = _Planner(layout)
    planner.add_message(descriptor, 0, False)
    return planner.finish()
