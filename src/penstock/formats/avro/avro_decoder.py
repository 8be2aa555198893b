"""Decodes Avro values into a column: with a schema registry, or bare ones of one schema.

Rule: the data frame's schema is fixed when the query starts; every writer's schema is resolved to it, so a
new version of the producer changes no column. With a registry each value names its writer's schema; without
one all values are written in the given schema. A writer's schema that cannot become the frame's makes bad
rows, with the reason.

>>> AvroDecoder('{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}').spark_type
'struct<id:bigint>'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.typed_columns import Decoded
from penstock.formats.avro.avro_schema import column_type, parse_avro
from penstock.formats.registry.schema_registry import RegistrySettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """A decoder to `schema` (with the schemas it refers to); `registry` None: bare values without a frame."""

    schema: str
    references: tuple[str, ...] = ()
    registry: RegistrySettings | None = None

    def __post_init__(self) -> None:
        column_type(parse_avro(self.schema, self.references))

    @property
    def spark_type(self) -> str:
        return column_type(parse_avro(self.schema, self.references)).ddl

    def decode(self, values: pa.Array) -> Decoded:
        from penstock.formats.avro.avro_columns import decode_avro  # loads numba: in workers only

        return decode_avro(self, values)
