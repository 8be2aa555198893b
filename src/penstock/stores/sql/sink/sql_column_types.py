"""The type of an Arrow column in each database, and whether it fits into an existing column.

Rule: nothing is silently rounded, cut or converted. A column fits when every value either arrives unchanged
or is refused by the database with an error. Where a database would silently shorten it (digits after the
decimal point, microseconds, single-precision floats), the column does not fit.

Timestamps are kept in UTC. SQLite has no types for decimals, dates and timestamps, so they are text there.

>>> name_type("postgresql", pa.int32()), name_type("mysql", pa.binary())
('INTEGER', 'LONGBLOB')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.core.errors import SinkError
from penstock.core.options.storage_addresses import Dialect
from penstock.stores.sql.connections.sql_dialects import MYSQL_TEXT

Kind: TypeAlias = Literal[
    "boolean", "integer", "float", "decimal", "text", "binary", "date", "timestamp", "other"
]
MICROSECONDS = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in a database. `digits` and `scale` are None if it sets no limit."""

    name: str
    kind: Kind
    declared: str
    may_be_null: bool = True
    has_default: bool = False
    digits: int | None = None
    scale: int | None = None
    bits: int = 64
    collation: str = ""


def normalise_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type we load for all types with the same meaning."""
    if pa.types.is_dictionary(arrow):
        return normalise_type(arrow.value_type)
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    if pa.types.is_int8(arrow) or pa.types.is_uint8(arrow):
        return pa.int16()
    if pa.types.is_uint16(arrow):
        return pa.int32()
    if pa.types.is_uint32(arrow):
        return pa.int64()
    if pa.types.is_uint64(arrow):
        return pa.decimal128(20, 0)
    if pa.types.is_float16(arrow):
        return pa.float32()
    if pa.types.is_date64(arrow):
        return pa.date32()
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", tz=arrow.tz and "UTC")
    return arrow


def find_kind(arrow: pa.DataType) -> Kind | None:
    """Return the kind of a normalised type; None for types that a table cannot hold: lists, structs, maps."""
    tests: tuple[tuple[Kind, bool], ...] = (
        ("boolean", pa.types.is_boolean(arrow)),
        ("integer", pa.types.is_integer(arrow)),
        ("float", pa.types.is_floating(arrow)),
        ("decimal", pa.types.is_decimal128(arrow)),
        ("text", pa.types.is_string(arrow)),
        ("binary", pa.types.is_binary(arrow)),
        ("date", pa.types.is_date(arrow)),
        ("timestamp", pa.types.is_timestamp(arrow)),
    )
    return next((kind for kind, is_it in tests if is_it), None)


def name_type(dialect: Dialect, arrow: pa.DataType, *, in_key: bool = False) -> str:
    """Return the type of a new column for such values. MySQL cannot have long text in a key."""
    arrow = normalise_type(arrow)
    kind = find_kind(arrow)
    if kind is None:
        raise SinkError(
            "TYPE_NOT_STORABLE",
            f"A value of type {arrow} cannot be stored in a column of an SQL table.",
            hint="Split it into separate columns, or convert it to text (`to_json`).",
            facts={"type": str(arrow)},
        )
    if dialect == "sqlite":
        return {"boolean": "BOOLEAN", "integer": "INTEGER", "float": "REAL", "binary": "BLOB"}.get(
            kind, "TEXT"
        )
    if kind == "decimal":
        return f"DECIMAL({arrow.precision}, {arrow.scale})"
    if kind == "integer":
        return {16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}[arrow.bit_width]
    if dialect == "mysql":
        return {
            "boolean": "BOOLEAN",
            "float": "FLOAT" if arrow == pa.float32() else "DOUBLE",
            "text": f"VARCHAR(255) {MYSQL_TEXT}" if in_key else f"LONGTEXT {MYSQL_TEXT}",
            "binary": "VARBINARY(255)" if in_key else "LONGBLOB",
            "date": "DATE",
            "timestamp": "DATETIME(6)",
        }[kind]
    return {
        "boolean": "BOOLEAN",
        "float": "REAL" if arrow == pa.float32() else "DOUBLE PRECISION",
        "text": "TEXT",
        "binary": "BYTEA",
        "date": "DATE",
        "timestamp": "TIMESTAMPTZ" if kind == "timestamp" and arrow.tz else "TIMESTAMP",
    }[kind]


def explain_misfit(dialect: Dialect, arrow: pa.DataType, column: Column) -> str | None:
    """Return why the column would change values of this type; None if it would not."""
    arrow = normalise_type(arrow)
    kind = find_kind(arrow)
    if kind is None:
        return "lists, structs and maps cannot be stored in a column"
    if dialect == "sqlite":
        return _explain_sqlite(kind, column)
    if kind == "text" and column.kind == "other":
        # The database reads json, uuid and enums from text, or refuses the text.
        return None
    if kind == "boolean" and column.kind == "integer" and dialect == "mysql":
        return None
    if kind == "integer" and column.kind == "decimal":
        return None  # the database refuses too many digits
    if kind == "decimal" and column.kind == "integer" and arrow.scale == 0:
        return None
    if kind != column.kind:
        return f"it holds {column.kind} values"
    if kind == "float" and arrow.bit_width > column.bits:
        return "it holds floats of half the precision"
    if kind == "decimal" and column.scale is not None and arrow.scale > column.scale:
        return f"it keeps {column.scale} digits after the decimal point and would round the rest"
    if kind == "timestamp" and column.scale is not None and column.scale < MICROSECONDS:
        return f"it keeps {column.scale} decimal digits of a second and would round the rest"
    return None


def _explain_sqlite(kind: Kind, column: Column) -> str | None:
    """Return why SQLite's affinity would change values: a numeric column turns `"1"` into a number."""
    allowed: dict[Kind, tuple[Kind, ...]] = {
        "boolean": ("integer", "decimal", "boolean"),
        "integer": ("integer", "decimal"),
        "float": ("float",),
        "decimal": ("text",),
        "text": ("text",),
        "binary": ("binary",),
        "date": ("text", "decimal", "date"),
        "timestamp": ("text", "decimal", "timestamp"),
    }
    return (
        None if column.kind in (*allowed[kind], "other") else f"it is declared {column.declared or 'blank'}"
    )
