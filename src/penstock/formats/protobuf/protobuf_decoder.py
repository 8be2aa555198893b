"""Decodes Protobuf messages into a struct column: with a schema registry, or bare ones of one type.

Rule: the data frame's message type is fixed when the query starts. Fields are found by their numbers, so
values of older and newer producers are read alike. With a registry each value names its file and message. A
value of another message type is a bad row, because its numbers mean other things.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.typed_columns import Decoded
from penstock.formats.columns.column_types import Struct
from penstock.formats.protobuf.protobuf_schema import column_type, load_message
from penstock.formats.registry.schema_registry import RegistrySettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ProtobufDecoder:
    """A decoder of messages. `descriptors` is a serialized FileDescriptorSet, `message` a full name in it."""

    descriptors: bytes = field(repr=False)
    message: str
    registry: RegistrySettings | None = None

    def __post_init__(self) -> None:
        _column_of(self.descriptors, self.message)

    @property
    def spark_type(self) -> str:
        return _column_of(self.descriptors, self.message).ddl

    def decode(self, values: pa.Array) -> Decoded:
        from penstock.formats.protobuf.protobuf_columns import decode_protobuf  # loads numba: in workers only

        return decode_protobuf(self, values)


@functools.lru_cache(maxsize=16)
def _column_of(descriptors: bytes, message: str) -> Struct:
    return column_type(load_message(descriptors, message))
