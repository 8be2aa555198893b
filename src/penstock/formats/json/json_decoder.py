"""Decodes JSON documents into a struct column, by a schema in Spark's DDL.

Semantics: as in `from_json`, a field that is missing or null is null, one that is not in the schema is
checked and left out, the last of two equal names counts, and an object or a number that the schema declares
as `string` keeps its own text. If a value has another type than its field, the field is null, the others are
kept, and the row gets a reason that names the field, because half a row with a null in it would look like
data. With `strict` the whole row is null. A document that is not exactly one JSON object is always null. A
time without a zone is UTC. The page of differences lists all other differences from `from_json`.

>>> decoder = JsonDecoder("id BIGINT, name STRING")
>>> decoder.spark_type
'struct<id:bigint,name:string>'
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import OptionError
from penstock.core.typed_columns import Decoded
from penstock.formats.columns.column_types import ColumnType, List, Map, Scalar, Struct
from penstock.formats.columns.spark_ddl import parse_ddl

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """A decoder of documents. Its schema is DDL: a list of columns or `struct<...>`."""

    schema: str
    strict: bool = False

    def __post_init__(self) -> None:
        check_json_type(parse_schema(self.schema), "")

    @property
    def spark_type(self) -> str:
        return parse_schema(self.schema).ddl

    def decode(self, values: pa.Array) -> Decoded:
        from penstock.formats.json.json_columns import decode_json  # loads numba: in workers only

        return decode_json(parse_schema(self.schema), values, strict=self.strict)


@functools.lru_cache(maxsize=64)
def parse_schema(schema: str) -> Struct:
    return parse_ddl(schema)


def check_json_type(column: ColumnType, path: str) -> None:
    """Raise an error if JSON cannot hold the type: the keys of its objects are texts."""
    if isinstance(column, Struct):
        for each in column.fields:
            check_json_type(each.type, f"{path}.{each.name}" if path else each.name)
    elif isinstance(column, List):
        check_json_type(column.element, f"{path}[]")
    elif isinstance(column, Map):
        if column.key != Scalar("string"):
            raise OptionError(
                "FORMAT_UNSUPPORTED",
                f"Field `{path}` is a map with keys of type {column.key.ddl}; names in JSON are texts.",
                hint="Declare it as map<string, ...> and cast the keys afterwards.",
                facts={"field": path},
            )
        check_json_type(column.value, f"{path}{{}}")
