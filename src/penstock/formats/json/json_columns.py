"""Runs the JSON kernel over a column and lets Arrow parse the numbers that the kernel leaves.

The kernel records the places of numbers that it cannot make exactly (more than 53 bits of digits, large
powers of ten), and Arrow parses all of them at once afterwards.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.typed_columns import Decoded
from penstock.formats.columns.column_builder import BASE, FLOAT
from penstock.formats.columns.column_layout import IdleWorkspaces, Layout, Workspace, explain
from penstock.formats.columns.column_types import ColumnType
from penstock.formats.json import json_kernel as k
from penstock.formats.json import json_scalars as v
from penstock.formats.registry.value_framing import FRAME_BYTES
from penstock.kernels.byte_columns import Array, ByteColumn, open_column

_REASONS = {
    v.NOT_AN_OBJECT: "the value is not a JSON object",
    v.CUT_OFF: "the document ends too early",
    v.SYNTAX: "the document is not JSON",
    v.BAD_TEXT: "a string is cut off, not UTF-8, or has a control character or an unknown escape",
    v.TOO_DEEP: f"the document is nested deeper than {k.MAX_DEPTH} levels",
    v.TRAILING: "something follows the JSON object",
    v.NO_FRAME: "the value does not begin with a schema id",
}
_FIELD_REASONS = {
    v.WRONG_TYPE: "field `{}` is not {}",
    v.OUT_OF_RANGE: "field `{}` is too large for {}",
    v.HALF_PAIR: "field `{}` has half of a surrogate pair",
}


class _Documents:
    """The memory for decoding documents of one type."""

    def __init__(self, column: ColumnType) -> None:
        self.layout = Layout.of(column)
        self.workspace = Workspace(self.layout)
        self._frames = np.empty((k.MAX_DEPTH, 3), np.int64)
        self._late = np.empty((256, v.LATE_WIDTH), np.int64)
        self._state = np.zeros(v.STATE_WIDTH, np.int64)

    def decode(self, source: ByteColumn, skip: int, strict: bool) -> Decoded:
        rows = source.rows
        faults, nodes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        scratch = np.empty(source.longest + 8, np.uint8)
        self.workspace.begin(rows, source.total_bytes)
        self._state[:] = 0
        done = 0
        while True:
            done = k.decode_documents(
                source.data, source.ends, source.present, skip, strict, done,
                self.workspace.arrays, self._frames, self._late, self._state, scratch, faults, nodes,
            )  # fmt: skip
            if done == rows:
                break
            if self.workspace.table[-1, 0] == v.LATE_FULL:
                self._late = np.concatenate([self._late, np.empty_like(self._late)])
            else:
                self.workspace.grow()
        self._fill_late(source)
        return Decoded(self.workspace.finish(), explain(faults, nodes, self._describe))

    def _fill_late(self, source: ByteColumn) -> None:
        late = self._late[: self._state[v.LATE]]
        if not len(late):
            return
        singles = np.array(self.layout.kinds)[late[:, 0]] == FLOAT
        for some, kind in ((late[singles], pa.float32()), (late[~singles], pa.float64())):
            where = self.workspace.table[some[:, 0], BASE] + some[:, 1]
            numbers = parse_reals(source.data, some[:, 2], some[:, 3], kind)
            self.workspace.slots.view(np.float64)[where] = numbers

    def _describe(self, fault: int, node: int) -> str:
        if fault in _FIELD_REASONS:
            return _FIELD_REASONS[fault].format(
                self.layout.paths[node][:80], self.layout.types[node].ddl[:80]
            )
        return _REASONS[fault]


_idle = IdleWorkspaces(_Documents)


def parse_reals(data: Array, starts: Array, sizes: Array, kind: pa.DataType) -> Array:
    """Return the numbers at these places, each exact to the last bit of its type."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    where = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
    texts = pa.Array.from_buffers(
        pa.string(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(data[where])]
    )
    return np.asarray(pc.cast(texts, kind))


def decode_json(
    column: ColumnType, values: pa.Array, *, framed: bool = False, strict: bool = False
) -> Decoded:
    """Return the decoded values; reuse the memory that this thread has for the type."""
    with _idle.borrow(column) as documents:
        return documents.decode(open_column(values), FRAME_BYTES if framed else 0, strict)
