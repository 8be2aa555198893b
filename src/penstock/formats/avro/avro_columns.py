"""Runs the Avro kernel over a column, with a program for each writer's schema found so far."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.core.errors import OptionError
from penstock.core.typed_columns import Decoded
from penstock.formats.avro import avro_kernel as k
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.avro.avro_program import AvroProgram, Incompatible
from penstock.formats.avro.avro_schema import MAX_DEPTH, column_type, parse_avro
from penstock.formats.columns.column_layout import IdleWorkspaces, Layout, Workspace, explain
from penstock.formats.registry.schema_lookups import find_schemas
from penstock.formats.registry.schema_registry import RegisteredSchema, RegistrySettings
from penstock.formats.registry.value_framing import FRAME_BYTES, choose_entries, read_ids
from penstock.kernels.byte_columns import ByteColumn, open_column

#: The first fault number for writers' schemas that cannot be read as the frame's.
_FIRST_REFUSED = 1000
_REASONS = {
    k.CUT_OFF: "the value ends too early",
    k.BAD_NUMBER: "a number is malformed",
    k.BAD_LENGTH: "a length points outside the value",
    k.BAD_TEXT: "a text is not UTF-8",
    k.BAD_BRANCH: "a union has no such branch",
    k.BAD_SYMBOL: "an enum has no such symbol",
    k.OUT_OF_RANGE: "a number is too large",
    k.TOO_MANY: "an array or map has more elements than the value has room for",
    k.TRAILING: "bytes are left over behind the value: it was written with another schema",
    k.NO_FRAME: "the value does not begin with a schema id",
    k.NO_SCHEMA: "the schema registry does not know the value's schema id",
    k.NO_MATCH: "a union holds a branch that the frame's type does not have",
}
_WITHOUT_FIELD = (k.TRAILING, k.NO_FRAME, k.NO_SCHEMA)


class _Values:
    """The memory and programs for decoding values to one schema of a frame."""

    def __init__(self, decoder: AvroDecoder) -> None:
        self._reader = parse_avro(decoder.schema, decoder.references)
        self._registry = decoder.registry
        self._layout = Layout.of(column_type(self._reader))
        self._workspace = Workspace(self._layout)
        self._program = AvroProgram(self._layout)
        self._frames = np.zeros(MAX_DEPTH + 1, np.int64)
        self._state = np.zeros(1, np.int64)
        self._entries: dict[int, int] = {}
        self._refusals: list[str] = []
        self._bare = self._program.add(self._reader, self._reader) if self._registry is None else 0

    def decode(self, source: ByteColumn) -> Decoded:
        rows, skip = source.rows, 0
        entries = np.full(rows, self._bare, np.int64)
        if self._registry is not None:
            registry, skip = self._registry, FRAME_BYTES
            ids = read_ids(source)
            entries = choose_entries(ids, lambda each: self._find_entries(registry, each), k.NO_FRAME)
        faults, nodes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._workspace.begin(rows, source.total_bytes)
        done = 0
        while True:
            done = k.decode_rows(
                source.data, source.ends, source.present, entries, skip, done,
                self._workspace.arrays, self._program.arrays, self._frames, self._state, faults, nodes,
            )  # fmt: skip
            if done == rows:
                break
            self._workspace.grow()
        return Decoded(self._workspace.finish(), explain(faults, nodes, self._describe))

    def _find_entries(self, registry: RegistrySettings, ids: list[int]) -> list[int]:
        new = find_schemas(registry, [each for each in ids if each not in self._entries])
        for schema_id, schema in new.items():
            if schema is not None:
                self._entries[schema_id] = self._add(schema_id, schema)
        return [self._entries.get(each, -k.NO_SCHEMA) for each in ids]

    def _add(self, schema_id: int, schema: RegisteredSchema) -> int:
        try:
            writer = parse_avro(schema.text, [text for _, text in schema.references])
            return self._program.add(writer, self._reader)
        except (Incompatible, OptionError) as error:
            self._refusals.append(
                f"SCHEMA_INCOMPATIBLE: schema {schema_id} cannot be read as the frame's: {error}"
            )
            return -(_FIRST_REFUSED + len(self._refusals) - 1)

    def _describe(self, fault: int, node: int) -> str:
        if fault >= _FIRST_REFUSED:
            return self._refusals[fault - _FIRST_REFUSED]
        path = self._layout.paths[node]
        return _REASONS[fault] + (f" (near `{path[:80]}`)" if path and fault not in _WITHOUT_FIELD else "")


_idle = IdleWorkspaces(_Values)


def decode_avro(decoder: AvroDecoder, values: pa.Array) -> Decoded:
    """Return the decoded values; reuse the memory and programs that this thread has for the decoder."""
    with _idle.borrow(decoder) as found:
        return found.decode(open_column(values))
