"""Parses the Avro schemas of writers and of the data frame into types, and gives the columns of a type.

Rule: every schema is a finite tree here. A type that contains itself cannot become columns, and a program
unrolled from it would be endless, so it is refused when it is parsed. Columns follow Spark's Avro support: an
enum is a string, a fixed is binary, a union with null is its other branch, int and long together are a
bigint, and any other union is a struct with one member per branch.

>>> column_type(parse_avro('{"type":"array","items":["null","long"]}')).ddl
'array<bigint>'
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.core.errors import OptionError
from penstock.formats.columns.column_types import ColumnType, Decimal, Field, List, Map, Scalar, Struct

#: The deepest nesting: the kernel's stack of open arrays and maps has this height.
MAX_DEPTH = 32
#: The most parts of a frame's schema.
MAX_TYPES = 5000
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of Avro's simple types, with its logical type."""

    name: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number of bytes."""

    name: str
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Enum:
    """One of several names. `default` replaces a name that the reader does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ArrayOf:
    items: AvroType


@dataclass(frozen=True, slots=True)
class MapOf:
    values: AvroType


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[AvroType, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a record. `default` is JSON; `optional` says whether there is one."""

    name: str
    type: AvroType
    optional: bool
    default: Any
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroRecord:
    name: str
    parts: tuple[Part, ...]


AvroType: TypeAlias = Primitive | Fixed | Enum | ArrayOf | MapOf | Union | AvroRecord


def parse_avro(text: str, references: Iterable[str] = ()) -> AvroType:
    """Return the type of a JSON text. `references` are schemas whose named types it may use, in order."""
    known: dict[str, AvroType | None] = {}
    for each in references:
        _parse(_load(each), "", known, 0)
    return _parse(_load(text), "", known, 0)


def _load(text: str) -> Any:
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid("it is not JSON") from error


def _parse(node: Any, namespace: str, known: dict[str, AvroType | None], depth: int) -> AvroType:
    if depth > MAX_DEPTH:
        raise _invalid(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, str):
        return _parse_name(node, namespace, known)
    if isinstance(node, list):
        branches = tuple(_parse(each, namespace, known, depth + 1) for each in node)
        if not branches or any(isinstance(each, Union) for each in branches):
            raise _invalid("a union is empty or directly inside another")
        return Union(branches)
    if not isinstance(node, Mapping) or "type" not in node:
        raise _invalid("a type is neither a name, nor a list, nor an object with `type`")
    kind = node["type"]
    if kind == "array":
        return ArrayOf(_parse(node.get("items"), namespace, known, depth + 1))
    if kind == "map":
        return MapOf(_parse(node.get("values"), namespace, known, depth + 1))
    if kind in ("record", "error", "enum", "fixed"):
        return _parse_named(node, namespace, known, depth)
    if isinstance(kind, str) and kind in PRIMITIVES:
        return Primitive(kind, *_logical(node, kind))
    return _parse(kind, namespace, known, depth + 1)


def _parse_name(name: str, namespace: str, known: Mapping[str, AvroType | None]) -> AvroType:
    if name in PRIMITIVES:
        return Primitive(name)
    for full in (f"{namespace}.{name}", name) if namespace and "." not in name else (name,):
        if full in known:
            found = known[full]
            if found is None:
                raise OptionError(
                    "FORMAT_UNSUPPORTED",
                    f"The Avro type `{full}` contains itself, which no column can hold.",
                    hint="Read the column as binary and decode it in your own function.",
                    facts={"type": full},
                )
            return found
    raise _invalid(f"the type `{name}` is not defined")


def _parse_named(
    node: Mapping[str, Any], namespace: str, known: dict[str, AvroType | None], depth: int
) -> AvroType:
    name = node.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid("a record, enum or fixed has no name")
    own = node.get("namespace")
    if "." not in name:
        space = own if isinstance(own, str) else namespace
        name = f"{space}.{name}" if space else name
    known[name] = None  # it is being defined, so a use of it now is inside itself
    found: AvroType
    if node["type"] == "enum":
        symbols = tuple(str(each) for each in node.get("symbols", ()))
        found = Enum(name, symbols, node.get("default"))
    elif node["type"] == "fixed":
        size = node.get("size")
        if not isinstance(size, int) or not 0 <= size <= 1 << 20:
            raise _invalid(f"the fixed type `{name}` has no usable size")
        found = Fixed(name, size, *_logical(node, "fixed"))
    else:
        inner = name.rpartition(".")[0]
        found = AvroRecord(
            name, tuple(_parse_part(each, inner, known, depth) for each in node.get("fields", ()))
        )
    known[name] = found
    return found


def _parse_part(node: Any, namespace: str, known: dict[str, AvroType | None], depth: int) -> Part:
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str) or "type" not in node:
        raise _invalid("a field has no name or no type")
    kind = _parse(node["type"], namespace, known, depth + 1)
    if isinstance(kind, Primitive) and "logicalType" in node and not kind.logical:
        kind = Primitive(kind.name, *_logical(node, kind.name))  # often written one level too high
    aliases = tuple(str(each) for each in node.get("aliases", ()))
    return Part(node["name"], kind, "default" in node, node.get("default"), aliases)


_LOGICAL = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}


def _logical(node: Mapping[str, Any], kind: str) -> tuple[str, int, int]:
    """Return a known logical type where it is allowed; ignore all others, as Avro requires."""
    logical = node.get("logicalType")
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return "", 0, 0
    if logical != "decimal":
        return logical, 0, 0
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return "", 0, 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        return "", 0, 0  # more digits than a decimal column has: stays bytes
    return logical, precision, scale


def column_type(avro: AvroType) -> ColumnType:
    """Return the column type of a schema."""
    if _count_types(avro, {}) > MAX_TYPES:
        raise _unsupported("", f"more than {MAX_TYPES} parts, most of them repeated")
    return _column_type(avro, "")


def _count_types(avro: AvroType, known: dict[int, int]) -> int:
    """Return the number of types with shared ones expanded. A few lines of schema can make billions."""
    if id(avro) not in known:
        inner: tuple[AvroType, ...] = ()
        if isinstance(avro, AvroRecord):
            inner = tuple(each.type for each in avro.parts)
        elif isinstance(avro, Union):
            inner = avro.branches
        elif isinstance(avro, ArrayOf | MapOf):
            inner = (avro.items if isinstance(avro, ArrayOf) else avro.values,)
        known[id(avro)] = 1 + sum(_count_types(each, known) for each in inner)
    return known[id(avro)]


def _column_type(avro: AvroType, path: str) -> ColumnType:
    if isinstance(avro, AvroRecord):
        fields = tuple(
            Field(each.name, _column_type(each.type, f"{path}.{each.name}" if path else each.name))
            for each in avro.parts
        )
        names = [each.name for each in fields]
        if not fields or len(set(names)) < len(names):
            raise _unsupported(path or avro.name, "a record without fields or with two of one name")
        return Struct(fields)
    if isinstance(avro, ArrayOf):
        return List(_column_type(avro.items, f"{path}[]"))
    if isinstance(avro, MapOf):
        return Map(Scalar("string"), _column_type(avro.values, f"{path}{{}}"))
    if isinstance(avro, Enum):
        return Scalar("string")
    if isinstance(avro, Union):
        return _union_type(avro, path)
    if avro.logical == "decimal":
        return Decimal(avro.precision, avro.scale)
    if isinstance(avro, Fixed):
        return Scalar("binary")
    if avro.name == "null":
        raise _unsupported(path, "a field that can only be null")
    by_logical = {"date": "date", "timestamp": "timestamp", "local": "timestamp_ntz"}
    by_name = {"int": "int", "long": "bigint", "bytes": "binary"}
    return Scalar(by_logical.get(avro.logical.partition("-")[0]) or by_name.get(avro.name, avro.name))


def _union_type(avro: Union, path: str) -> ColumnType:
    kept = simplify_union(avro)
    if isinstance(kept, Union):
        members = (
            Field(f"member{n}", _column_type(each, f"{path}.member{n}"))
            for n, each in enumerate(member_types(kept))
        )
        return Struct(tuple(members))
    return _column_type(kept, path)


def member_types(avro: Union) -> tuple[AvroType, ...]:
    """Return the branches that are not null."""
    return tuple(each for each in avro.branches if each != Primitive("null"))


def simplify_union(avro: Union) -> AvroType:
    """Return a union's type if it is one column (its only branch beside null, or the wider of two numbers),
    else the union itself."""
    members = member_types(avro)
    if len(members) == 1:
        return members[0]
    names = sorted(each.name for each in members if isinstance(each, Primitive) and not each.logical)
    if len(names) == len(members) == 2:
        if names == ["int", "long"]:
            return Primitive("long")
        if names == ["double", "float"]:
            return Primitive("double")
    return avro if members else Primitive("null")


def _invalid(why: str) -> OptionError:
    return OptionError(
        "SCHEMA_INVALID",
        f"The text is not an Avro schema: {why}.",
        hint="Check it with the tool that made it.",
    )


def _unsupported(path: str, what: str) -> OptionError:
    return OptionError(
        "FORMAT_UNSUPPORTED",
        f"The Avro schema has {what}{f' (`{path}`)' if path else ''}, which no column can hold.",
        hint="Leave it out of the schema given for the frame.",
        facts={"field": path},
    )
