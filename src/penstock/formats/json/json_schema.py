"""Decodes JSON values by a JSON Schema, bare or after a schema registry's frame.

Rule: the data frame's columns come from the schema once, when the query starts, and values are then read as
plain JSON. What a JSON Schema leaves open (several types, no type, an object without properties) is a string
column with the value's own text. `format` is only a remark, so a date stays a string. References inside the
schema are followed. One that leads back to itself cannot become columns and is refused.

>>> json_schema_type('{"type":"object","properties":{"id":{"type":"integer"}}}').ddl
'struct<id:bigint>'
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.errors import OptionError
from penstock.core.typed_columns import Decoded
from penstock.formats.columns.column_types import ColumnType, Field, List, Map, Scalar, Struct

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 32
MAX_PROPERTIES = 5000
_SCALARS = {"integer": "bigint", "number": "double", "string": "string", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class JsonSchemaDecoder:
    """A decoder to a JSON Schema's columns. With `framed`, values begin with a registry's schema id.

    With `strict`, a value with one bad field is null as a whole.
    """

    schema: str
    framed: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        json_schema_type(self.schema)

    @property
    def spark_type(self) -> str:
        return json_schema_type(self.schema).ddl

    def decode(self, values: pa.Array) -> Decoded:
        from penstock.formats.json.json_columns import decode_json  # loads numba: in workers only

        return decode_json(json_schema_type(self.schema), values, framed=self.framed, strict=self.strict)


@functools.lru_cache(maxsize=64)
def json_schema_type(text: str) -> Struct:
    """Return the columns of a JSON Schema, whose top must be an object."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise _invalid("it is not JSON") from error
    found = _Reader(root).read(root, "", 0)
    if not isinstance(found, Struct):
        raise _invalid("its top is not an object with properties")
    return found


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[str] = []
        self._properties = 0

    def read(self, node: Any, path: str, depth: int) -> ColumnType:
        if depth > MAX_DEPTH:
            raise _invalid(f"it is nested deeper than {MAX_DEPTH} levels")
        if not isinstance(node, Mapping):
            return Scalar("string")  # `true`: anything
        if "$ref" in node:
            return self._follow(str(node["$ref"]), path, depth)
        kinds = node.get("type")
        if isinstance(kinds, list):
            kinds = [each for each in kinds if each != "null"]
            kinds = kinds[0] if len(kinds) == 1 else None
        for name in ("oneOf", "anyOf"):
            choices = [each for each in node.get(name) or () if each != {"type": "null"}]
            if kinds is None and len(choices) == 1:
                return self.read(choices[0], path, depth + 1)
        if kinds == "object" or (kinds is None and "properties" in node):
            return self._read_object(node, path, depth)
        if kinds == "array":
            return List(self.read(node.get("items"), f"{path}[]", depth + 1))
        return Scalar(_SCALARS.get(str(kinds), "string"))

    def _read_object(self, node: Mapping[str, Any], path: str, depth: int) -> ColumnType:
        properties = node.get("properties")
        if isinstance(properties, Mapping) and properties:
            self._properties += len(properties)
            if self._properties > MAX_PROPERTIES:
                raise _invalid(f"it has more than {MAX_PROPERTIES} properties once references are expanded")
            return Struct(
                tuple(
                    Field(name, self.read(each, f"{path}.{name}" if path else name, depth + 1))
                    for name, each in properties.items()
                )
            )
        others = node.get("additionalProperties")
        if isinstance(others, Mapping):
            return Map(Scalar("string"), self.read(others, f"{path}{{}}", depth + 1))
        return Scalar("string")

    def _follow(self, reference: str, path: str, depth: int) -> ColumnType:
        if reference in self._open:
            raise OptionError(
                "FORMAT_UNSUPPORTED",
                f"Field `{path}` of the JSON Schema contains itself, which no column can hold.",
                hint="Give a schema without it; fields that are not in the schema are left out.",
                facts={"field": path},
            )
        if not reference.startswith("#/"):
            raise _invalid(f"the reference at `{path}` leads outside the schema")
        node = self._root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _invalid(f"the reference at `{path}` leads nowhere")
            node = node[name]
        self._open.append(reference)
        found = self.read(node, path, depth + 1)
        self._open.pop()
        return found


def _invalid(why: str) -> OptionError:
    return OptionError(
        "SCHEMA_INVALID",
        f"The JSON Schema cannot make columns: {why}.",
        hint="Its top must be an object with properties, and its references must be inside it.",
    )
