"""Decodes Avro values into a column: with a schema registry, or bare ones of one schema.

Rule: the data frame's schema is fixed when the query starts. Every writer's schema is resolved to it, so a
new version of the producer changes no column. With a registry each value names its writer's schema. Without
one all values are expected in the given schema. If a writer's schema cannot be read as the frame's, its rows
are bad and have the reason.

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
    """A decoder to `schema`, which may use types of `references`. Without `registry`, values have
    no frame."""

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
