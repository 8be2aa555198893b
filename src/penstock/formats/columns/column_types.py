"""The types that a decoded column can have, each with its name in Spark and its Arrow type.

Rule: the Arrow type is exactly the one that Spark expects for the Spark type, including the names of inner
fields. Spark refuses a batch that differs. Everything is nullable, because a bad or missing value is null.

>>> Struct((Field("id", Scalar("bigint")), Field("tags", List(Scalar("string"))))).ddl
'struct<id:bigint,tags:array<string>>'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts. `name` is Spark's name for it."""

    name: str

    @property
    def ddl(self) -> str:
        return self.name

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self.name]


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number of at most `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    @property
    def ddl(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    @property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True, slots=True)
class List:
    """Any number of elements of one type."""

    element: ColumnType

    @property
    def ddl(self) -> str:
        return f"array<{self.element.ddl}>"

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element.arrow))


@dataclass(frozen=True, slots=True)
class Map:
    """Key-value pairs, in the order they were written."""

    key: ColumnType
    value: ColumnType

    @property
    def ddl(self) -> str:
        return f"map<{self.key.ddl},{self.value.ddl}>"

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(self.key.arrow, self.value.arrow)


@dataclass(frozen=True, slots=True)
class Field:
    """One named part of a struct."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Struct:
    """Named parts, each of its own type."""

    fields: tuple[Field, ...]

    @property
    def ddl(self) -> str:
        return f"struct<{','.join(f'{quote(each.name)}:{each.type.ddl}' for each in self.fields)}>"

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([pa.field(each.name, each.type.arrow) for each in self.fields])


ColumnType: TypeAlias = Scalar | Decimal | List | Map | Struct


def quote(name: str) -> str:
    """Return a field's name for DDL, in backticks unless it is plain."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
