"""Runs the Protobuf kernel over a column, and joins messages that come in two pieces.

Such messages, and maps that have a key twice, are legal but unused in practice. Google's library parses and
serializes the few rows that hold one, which joins the pieces and keeps the last value of a key. Then they are
decoded again with the rest of their batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import OptionError
from penstock.core.typed_columns import Decoded
from penstock.formats.columns.column_layout import IdleWorkspaces, Layout, Workspace, explain
from penstock.formats.protobuf import protobuf_kernel as k
from penstock.formats.protobuf.protobuf_decoder import ProtobufDecoder
from penstock.formats.protobuf.protobuf_schema import column_type, join_files, load_message, make_plan
from penstock.formats.registry.schema_lookups import find_schemas
from penstock.formats.registry.schema_registry import RegistrySettings
from penstock.formats.registry.value_framing import FRAME_BYTES, choose_entries, read_ids
from penstock.kernels.byte_columns import Array, ByteColumn, open_column

_MAX_INDEXES = 8
_REASONS = {
    k.CUT_OFF: "the value ends too early",
    k.BAD_NUMBER: "a number is malformed",
    k.BAD_TAG: "a field's tag is malformed",
    k.BAD_LENGTH: "a length points outside its message",
    k.BAD_TEXT: "a text is not UTF-8",
    k.TOO_DEEP: f"messages are nested deeper than {k.MAX_DEPTH} levels",
    k.SPLIT: "a message in two pieces is malformed",
    k.NO_FRAME: "the value does not begin with a schema id and message indexes",
    k.NO_SCHEMA: "the schema registry does not know the value's schema id",
    k.WRONG_MESSAGE: "the value is another message type than the frame's",
}
_WITHOUT_FIELD = (k.NO_FRAME, k.NO_SCHEMA, k.WRONG_MESSAGE, k.BAD_TAG)


class _Messages:
    """The memory and tables for decoding one message type."""

    def __init__(self, decoder: ProtobufDecoder) -> None:
        self._registry = decoder.registry
        self._descriptor = load_message(decoder.descriptors, decoder.message)
        self._layout = Layout.of(column_type(self._descriptor))
        plan = make_plan(self._descriptor, self._layout)
        self._workspace = Workspace(
            self._layout, missing=plan.missing, first_names=plan.first_names, constants=plan.names
        )
        enums = plan.enums.copy()
        enums[:, 1] += self._workspace.constants_at
        self._tables = (plan.fields, plan.messages, enums)
        self._frames = np.zeros((k.MAX_DEPTH, 3), np.int64)
        self._state = np.zeros(k.STATE_WIDTH, np.int64)
        self._names: dict[int, dict[tuple[int, ...], str] | None] = {}

    def decode(self, values: pa.Array) -> Decoded:
        source = open_column(values)
        starts, roots = self._open(source)
        self._state[k.JOINED] = 0
        faults, nodes = self._run(source, starts, roots)
        split = np.flatnonzero(faults == k.SPLIT)
        if len(split):
            source = open_column(self._join_pieces(values, source, starts, split))
            starts, roots = self._open(source)
            self._state[k.JOINED] = 1
            faults, nodes = self._run(source, starts, roots)
        return Decoded(self._workspace.finish(), explain(faults, nodes, self._describe))

    def _run(self, source: ByteColumn, starts: Array, roots: Array) -> tuple[Array, Array]:
        rows, done = source.rows, 0
        faults, nodes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        ends = source.ends[1:].astype(np.int64)
        self._workspace.begin(rows, source.total_bytes)
        while True:
            done = k.decode_rows(
                source.data, starts, ends, source.present, roots, done,
                self._workspace.arrays, self._tables, self._frames, self._state, faults, nodes,
            )  # fmt: skip
            if done == rows:
                return faults, nodes
            self._workspace.grow()

    def _open(self, source: ByteColumn) -> tuple[Array, Array]:
        """Return where each message begins, and its type: 0, or a negated fault."""
        starts = source.ends[:-1].astype(np.int64)
        if self._registry is None:
            return starts, np.zeros(source.rows, np.int64)
        registry, ids = self._registry, read_ids(source)
        framed = ids >= 0
        inner, stops = starts + np.where(framed, FRAME_BYTES, 0), source.ends[1:].astype(np.int64)
        indexes = np.full((source.rows, _MAX_INDEXES), -1, np.int64)
        k.read_indexes(source.data, inner, stops, indexes)
        ids[indexes[:, 0] == -2] = -1
        if not source.rows:
            return inner, ids
        known = choose_entries(ids, lambda each: self._learn(registry, each), k.NO_FRAME)
        kinds, which = np.unique(np.column_stack([ids, indexes]), axis=0, return_inverse=True)
        paths = [tuple(int(each) for each in row[1:] if each >= 0) for row in kinds]
        judged = np.array([self._judge(int(row[0]), path) for row, path in zip(kinds, paths, strict=True)])
        return inner, np.where(known == 0, judged[which.reshape(-1)], known)

    def _learn(self, registry: RegistrySettings, ids: list[int]) -> list[int]:
        """Remember the messages of each schema; return 0 for each schema, or a negated fault."""
        new = find_schemas(registry, [each for each in ids if each not in self._names], serialized=True)
        for schema_id, schema in new.items():
            if schema is None:
                continue
            try:
                self._names[schema_id] = _message_names(schema.text)
            except OptionError:
                self._names[schema_id] = None
        return [0 if each in self._names else -k.NO_SCHEMA for each in ids]

    def _judge(self, schema_id: int, path: tuple[int, ...]) -> int:
        """Return 0 if the message at this path of the schema's file is the frame's, else a negated fault."""
        names = self._names.get(schema_id)
        if names is None or names.get(path) != self._descriptor.full_name:
            return -k.WRONG_MESSAGE
        return 0

    def _join_pieces(self, values: pa.Array, source: ByteColumn, starts: Array, rows: Array) -> pa.Array:
        from google.protobuf import message, message_factory

        kind = message_factory.GetMessageClass(self._descriptor)
        replacements: list[bytes] = []
        for row in rows:
            begin, start, end = int(source.ends[row]), int(starts[row]), int(source.ends[row + 1])
            whole = source.data[begin:end].tobytes()
            try:
                joined = kind.FromString(whole[start - begin :]).SerializeToString()
                replacements.append(whole[: start - begin] + joined)
            except (message.DecodeError, ValueError):
                replacements.append(whole)
        mask = np.zeros(source.rows, np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(values, pa.array(mask), pa.array(replacements, pa.binary()))

    def _describe(self, fault: int, node: int) -> str:
        path = self._layout.paths[node]
        return _REASONS[fault] + (f" (near `{path[:80]}`)" if path and fault not in _WITHOUT_FIELD else "")


_idle = IdleWorkspaces(_Messages)


def _message_names(text: str) -> dict[tuple[int, ...], str]:
    """Return the full names of all messages of a file, by their paths of indexes."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(join_files([text]))
    names: dict[tuple[int, ...], str] = {}

    def walk(messages: Any, path: tuple[int, ...], prefix: str) -> None:
        for n, each in enumerate(messages):
            full = f"{prefix}.{each.name}" if prefix else each.name
            names[(*path, n)] = full
            walk(each.nested_type, (*path, n), full)

    walk(files.file[0].message_type, (), files.file[0].package)
    return names


def decode_protobuf(decoder: ProtobufDecoder, values: pa.Array) -> Decoded:
    """Return the decoded values; reuse the memory and tables that this thread has for the decoder."""
    with _idle.borrow(decoder) as found:
        return found.decode(values)
