"""Turns a column type into arrays for kernels to fill, and these arrays into an Arrow column.

Rule: the memory that kernels write to is reused for the next batch, so Arrow gets copies. Narrowing numbers
to their type copies anyway, and fresh pages for every batch would cost more than copying. Room starts at the
size of the input and only grows.

>>> from penstock.formats.columns.column_types import Field
>>> layout = Layout.of(Struct((Field("id", Scalar("bigint")), Field("tags", List(Scalar("string"))))))
>>> layout.paths
('', 'id', 'tags', 'tags[]')
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core.errors import DecodeError
from penstock.core.typed_columns import MAX_REASON
from penstock.formats.columns import column_builder as s
from penstock.formats.columns.column_types import ColumnType, Decimal, List, Map, Scalar, Struct
from penstock.kernels.byte_columns import Array

_KINDS = {
    "boolean": s.BOOLEAN, "tinyint": s.TINYINT, "smallint": s.SMALLINT, "int": s.INT, "bigint": s.BIGINT,
    "float": s.FLOAT, "double": s.DOUBLE, "string": s.STRING, "binary": s.BINARY, "date": s.DATE,
    "timestamp": s.TIMESTAMP, "timestamp_ntz": s.TIMESTAMP_NTZ,
}  # fmt: skip
_NUMPY = {
    s.TINYINT: np.int8, s.SMALLINT: np.int16, s.INT: np.int32, s.DATE: np.int32, s.BIGINT: np.int64,
    s.TIMESTAMP: np.int64, s.TIMESTAMP_NTZ: np.int64,
}  # fmt: skip
_TEXTS = (s.STRING, s.BINARY)
_LARGEST = np.iinfo(np.int32).max
_MOST_KEPT = 8
WorkKind = TypeVar("WorkKind")
WorkMemory = TypeVar("WorkMemory")


@dataclass(slots=True)
class _Node:
    type: ColumnType
    path: str
    name: str
    parent: int
    repeated: bool  # below a list, so it may have more entries than rows
    stop: int = 0


@dataclass(frozen=True, eq=False)
class Layout:
    """The nodes of one column type, in depth-first order."""

    type: ColumnType
    types: tuple[ColumnType, ...]
    paths: tuple[str, ...]
    names: tuple[str, ...]
    parents: tuple[int, ...]
    stops: tuple[int, ...]
    repeated: tuple[bool, ...]
    kinds: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(_kind(each) for each in self.types))

    @classmethod
    def of(cls, column: ColumnType) -> Layout:
        nodes: list[_Node] = []
        _walk(nodes, column, "", "", 0, False)
        return cls(
            column,
            *(
                tuple(getattr(each, name) for each in nodes)
                for name in ("type", "path", "name", "parent", "stop", "repeated")
            ),
        )

    def children(self, node: int) -> Iterator[int]:
        child = node + 1
        while child < self.stops[node]:
            yield child
            child = self.stops[child]


def _walk(nodes: list[_Node], column: ColumnType, path: str, name: str, parent: int, repeated: bool) -> None:
    here = len(nodes)
    nodes.append(_Node(column, path, name, parent, repeated))
    if isinstance(column, Struct):
        for each in column.fields:
            _walk(nodes, each.type, f"{path}.{each.name}" if path else each.name, each.name, here, repeated)
    elif isinstance(column, List):
        _walk(nodes, column.element, f"{path}[]", "", here, True)
    elif isinstance(column, Map):
        _walk(nodes, column.key, f"{path}{{key}}", "", here, True)
        _walk(nodes, column.value, f"{path}{{}}", "", here, True)
    nodes[here].stop = len(nodes)


def _kind(column: ColumnType) -> int:
    if isinstance(column, Scalar):
        return _KINDS[column.name]
    kinds = {Decimal: s.DECIMAL, List: s.LIST, Map: s.MAP, Struct: s.STRUCT}
    return kinds[type(column)]


class Workspace:
    """The memory of one decoding: `begin`, run a kernel on `arrays`, `grow` if it asks to, `finish`."""

    @staticmethod
    def new_memory(items: int, kind: Any) -> Array:
        """Return an uninitialised array. (The fuzz run returns memory that ends at a protected page.)"""
        return np.empty(items, kind)

    def __init__(
        self,
        layout: Layout,
        *,
        missing: Mapping[int, int] | None = None,
        first_names: Mapping[int, str] | None = None,
        constants: bytes = b"",
    ) -> None:
        self._layout = layout
        self._nodes = len(layout.types)
        self._texts = np.array([kind in _TEXTS for kind in layout.kinds], np.bool_)
        self._repeated = np.array(layout.repeated, np.bool_)
        self.table = np.zeros((self._nodes + 1, s.TABLE_WIDTH), np.int64)
        names = self._fill_table(missing or {}, first_names or {})
        self.constants_at = len(names)  # where the caller's constants begin in `text`
        self._names = names + constants
        self.slots, self.valid, self.text = (np.empty(0, kind) for kind in (np.int64, np.uint8, np.uint8))
        self._allocate(keep=False)

    def _fill_table(self, missing: Mapping[int, int], first_names: Mapping[int, str]) -> bytes:
        layout, names = self._layout, b""
        for node, row in enumerate(self.table[:-1]):
            column = layout.types[node]
            row[s.KIND], row[s.STOP], row[s.PARENT] = (
                layout.kinds[node],
                layout.stops[node],
                layout.parents[node],
            )
            row[s.WIDTH], row[s.MISSING] = 1, missing.get(node, s.NULL)
            if isinstance(column, Decimal):
                row[s.WIDTH], row[s.PRECISION], row[s.SCALE] = 2, column.precision, column.scale
            for at, text in ((s.NAME_AT, layout.names[node]), (s.FIRST_AT, first_names.get(node, ""))):
                row[at], row[at + 1] = len(names), len(text.encode())
                names += text.encode()
        return names

    def begin(self, rows: int, total_bytes: int) -> None:
        """Empty all columns and make sure that `rows` rows fit where there is one entry per row."""
        table = self.table[:-1]
        table[:, s.COUNT] = table[:, s.TEXT_USED] = 0
        least = np.where(self._repeated, 64, rows)
        # A batch's text bytes are shared among the columns; an unusual batch grows its room once.
        share = total_bytes // max(1, int(self._texts.sum())) + 64
        texts = np.where(self._texts, share, 0)
        if (table[:, s.ROOM] < least).any() or (table[:, s.TEXT_ROOM] < texts).any():
            table[:, s.ROOM] = np.maximum(table[:, s.ROOM], least)
            table[:, s.TEXT_ROOM] = np.maximum(table[:, s.TEXT_ROOM], texts)
            self._allocate(keep=False)

    def grow(self) -> None:
        """Make room for what the kernel could not place; keep everything placed so far."""
        node, size = (int(each) for each in self.table[-1, :2])
        row = self.table[node]
        if size:
            row[s.TEXT_ROOM] = max(2 * row[s.TEXT_ROOM], row[s.TEXT_USED] + size)
        else:
            row[s.ROOM] = 2 * row[s.ROOM] + 64
        if row[s.ROOM] > 2 * _LARGEST or row[s.TEXT_ROOM] > 2 * _LARGEST:
            raise _too_large(self._layout.paths[node])
        self._allocate(keep=True)

    def _allocate(self, *, keep: bool) -> None:
        table = self.table[:-1]
        old = table[:, [s.BASE, s.TEXT_BASE]].copy()
        sizes = table[:, s.ROOM] * table[:, s.WIDTH]
        table[:, s.BASE] = np.cumsum(sizes) - sizes
        table[:, s.TEXT_BASE] = np.cumsum(table[:, s.TEXT_ROOM]) - table[:, s.TEXT_ROOM] + len(self._names)
        slots = self.new_memory(max(1, int(sizes.sum())), np.int64)
        valid = self.new_memory(len(slots), np.uint8)
        text = self.new_memory(len(self._names) + max(1, int(table[:, s.TEXT_ROOM].sum())), np.uint8)
        text[: len(self._names)] = np.frombuffer(self._names, np.uint8)
        if keep:
            for row, (base, text_base) in zip(table, old, strict=True):
                used, size = row[s.COUNT] * row[s.WIDTH], row[s.TEXT_USED]
                here, there = slice(row[s.BASE], row[s.BASE] + used), slice(base, base + used)
                slots[here], valid[here] = self.slots[there], self.valid[there]
                begin = row[s.TEXT_BASE]
                text[begin : begin + size] = self.text[text_base : text_base + size]
        self.slots, self.valid, self.text = slots, valid, text

    @property
    def arrays(self) -> s.BuiltColumns:
        """Return the arrays that kernels take. `grow` replaces them."""
        return s.BuiltColumns(self.table, self.slots, self.valid, self.text)

    def finish(self) -> pa.Array:
        """Return the column, copied into its own memory."""
        return self._array(0)

    def _array(self, node: int) -> pa.Array:
        layout, row = self._layout, self.table[node]
        entries, width, base = int(row[s.COUNT]), int(row[s.WIDTH]), int(row[s.BASE])
        here = slice(base, base + entries * width)
        valid, slots = self.valid[here][::width], self.slots[here]
        nulls = entries - int(np.count_nonzero(valid))
        bits = _bits(valid) if nulls else None
        kind, arrow = layout.kinds[node], layout.types[node].arrow
        children: list[pa.Array] = [self._array(child) for child in layout.children(node)]
        buffers: list[pa.Buffer | None] = [bits]
        if kind in _NUMPY:
            buffers.append(pa.py_buffer(slots.astype(_NUMPY[kind])))  # astype copies, also to the same type
        elif kind in (s.FLOAT, s.DOUBLE):
            with np.errstate(over="ignore", invalid="ignore"):  # a double beyond float's range is infinite
                reals = slots.view(np.float64).astype(np.float32 if kind == s.FLOAT else np.float64)
            buffers.append(pa.py_buffer(reals))
        elif kind == s.BOOLEAN:
            buffers.append(_bits(slots != 0))
        elif kind == s.DECIMAL:
            buffers.append(pa.py_buffer(slots.copy()))
        elif kind in (s.STRING, s.BINARY, s.LIST, s.MAP):
            buffers.append(_ends(slots, layout.paths[node]))
        if kind in _TEXTS:
            begin = int(row[s.TEXT_BASE])
            buffers.append(pa.py_buffer(self.text[begin : begin + int(row[s.TEXT_USED])].copy()))
        if kind == s.MAP:
            pairs = pa.struct([arrow.key_field, arrow.item_field])
            children = [pa.Array.from_buffers(pairs, len(children[0]), [None], 0, 0, children)]
        return pa.Array.from_buffers(arrow, entries, buffers, nulls, 0, children)


class IdleWorkspaces(threading.local, Generic[WorkKind, WorkMemory]):
    """The memory that this thread has decoded with before, for a few kinds. `make` makes more of a kind."""

    def __init__(self, make: Callable[[WorkKind], WorkMemory]) -> None:
        self._make, self._kept = make, dict[WorkKind, WorkMemory]()

    @contextmanager
    def borrow(self, kind: WorkKind) -> Iterator[WorkMemory]:
        """Yield memory of this kind, and keep it for the next batch unless decoding failed."""
        found = self._kept.pop(kind, None) or self._make(kind)
        yield found
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[kind] = found


def explain(faults: Array, nodes: Array, describe: Callable[[int, int], str]) -> pa.StringArray | None:
    """Return each row's reason, or None if no row is bad. `describe(fault, node)` is called once per pair."""
    if not faults.any():
        return None
    # One number per pair: sorting the pairs took three times as long as decoding bad rows.
    width = int(nodes.max()) + 1
    pairs, which = np.unique(faults * width + nodes, return_inverse=True)
    split = [divmod(int(each), width) for each in pairs]
    reasons = [describe(fault, node)[:MAX_REASON] if fault else None for fault, node in split]
    return pa.array(reasons, pa.string()).take(pa.array(which.reshape(-1)))


def _bits(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _ends(slots: Array, path: str) -> pa.Buffer:
    ends = np.zeros(len(slots) + 1, np.int32)
    if len(slots) and slots[-1] > _LARGEST:
        raise _too_large(path)
    ends[1:] = slots
    return pa.py_buffer(ends)


def _too_large(path: str) -> DecodeError:
    return DecodeError(
        "COLUMN_TOO_LARGE",
        f"Field `{path}` of one batch exceeds two gigabytes.",
        hint="Read smaller batches: lower max.partition.fetch.bytes.",
    )
