"""Compiles a writer's schema and the data frame's into a program for the Avro kernel.

Rule: how a writer's schema maps to the data frame is decided once, here, and never per record. Fields that
the frame does not ask for are skipped. Fields that the writer does not have get the frame's default. Numbers
are widened as Avro allows. A branch that does not fit is a fault of the rows that use it. A schema that
cannot be resolved at all raises `Incompatible`, and its rows are bad. Names of records are compared only in
unions, because producers often rename their top record without meaning anything by it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.formats.avro import avro_kernel as k
from penstock.formats.avro.avro_schema import (
    ArrayOf,
    AvroRecord,
    AvroType,
    Enum,
    Fixed,
    MapOf,
    Part,
    Primitive,
    Union,
    member_types,
    simplify_union,
)
from penstock.formats.columns.column_layout import Layout
from penstock.kernels.byte_columns import Array

#: The most operations of a program; a schema that unrolls to more was made to be large.
MAX_OPERATIONS = 100_000
_WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
_NULL = Primitive("null")
_SKIP = -1


class Incompatible(Exception):  # noqa: N818  (an outcome, caught where programs are made)
    """A writer's schema that cannot be read as the frame's; the text says where."""


class AvroProgram:
    """The programs of all writers' schemas found so far, one after the other."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._operations: list[tuple[int, int, int, int]] = []
        self._targets: list[int] = []
        self._constants = b""
        self.arrays: tuple[Array, Array, Array] = self._freeze()

    def add(self, writer: AvroType, reader: AvroType) -> int:
        """Append the program that reads `writer` as `reader`, and return where it begins."""
        before = (len(self._operations), len(self._targets), self._constants)
        try:
            self._resolve(writer, reader, 0, "")
            self._emit(k.END)
        except Incompatible:
            del self._operations[before[0] :], self._targets[before[1] :]
            self._constants = before[2]
            raise
        self.arrays = self._freeze()
        return before[0]

    def _freeze(self) -> tuple[Array, Array, Array]:
        operations = np.array(self._operations, np.int64).reshape(-1, k.PROGRAM_WIDTH)
        return (
            operations,
            np.array(self._targets, np.int64),
            np.frombuffer(bytearray(self._constants or b"\0"), np.uint8),
        )

    # --- emitting -------------------------------------------------------------------------------------

    def _emit(self, operation: int, node: int = _SKIP, a: int = 0, b: int = 0) -> int:
        if len(self._operations) >= MAX_OPERATIONS:
            raise Incompatible("it is too large")
        self._operations.append((operation, node, a, b))
        return len(self._operations) - 1

    def _patch(self, at: int) -> None:
        """Make the operation at `at` jump to the next one."""
        operation, node, _, b = self._operations[at]
        self._operations[at] = (operation, node, len(self._operations), b)

    def _constant(self, data: bytes) -> int:
        self._constants += data
        return len(self._constants) - len(data)

    # --- resolving ------------------------------------------------------------------------------------

    def _resolve(self, writer: AvroType, reader: AvroType | None, node: int, path: str) -> None:
        """Emit operations that read `writer` as `reader`, or that check and skip it if `reader` is None."""
        if isinstance(writer, Union):
            self._resolve_union(writer, reader, node, path)
        elif isinstance(reader, Union):
            self._choose(writer, reader, node, path)
        elif isinstance(writer, AvroRecord):
            self._resolve_record(writer, reader, node, path)
        elif isinstance(writer, ArrayOf | MapOf):
            self._resolve_loop(writer, reader, node, path)
        elif isinstance(writer, Enum):
            self._resolve_enum(writer, reader, node, path)
        elif isinstance(writer, Fixed):
            self._resolve_fixed(writer, reader, node, path)
        else:
            self._resolve_primitive(writer, reader, node, path)

    def _resolve_union(self, writer: Union, reader: AvroType | None, node: int, path: str) -> None:
        table = len(self._targets)
        self._targets += [0] * len(writer.branches)
        self._emit(k.UNION, node, table, len(writer.branches))
        exits, fitting = [], 0
        for n, branch in enumerate(writer.branches):
            begin = self._targets[table + n] = len(self._operations)
            marks = len(self._targets)
            try:
                self._resolve(branch, reader, node, path)
                fitting += 1
            except Incompatible:
                del self._operations[begin:], self._targets[marks:]
                self._emit(k.BAD, node)
            exits.append(self._emit(k.JUMP))
        if not fitting:
            raise Incompatible(f"no branch of `{path}` fits")
        for each in exits:
            self._patch(each)

    def _choose(self, writer: AvroType, reader: Union, node: int, path: str) -> None:
        """Emit operations that read a writer's single type as the member of `reader` that fits it."""
        if writer == _NULL:
            if _NULL not in reader.branches:
                raise _mismatch(writer, reader, path)
            self._emit(k.NULL, node)
            return
        only = simplify_union(reader)
        if not isinstance(only, Union):
            self._resolve(writer, only, node, path)
            return
        members = member_types(only)
        chosen = _find_branch(writer, members)
        if chosen is None:
            raise _mismatch(writer, reader, path)
        self._emit(k.STRUCT, node)
        for n, child in enumerate(self._layout.children(node)):
            if n == chosen:
                self._resolve(writer, members[n], child, path)
            else:
                self._emit(k.NULL, child)

    def _resolve_record(self, writer: AvroRecord, reader: AvroType | None, node: int, path: str) -> None:
        if reader is not None and not isinstance(reader, AvroRecord):
            raise _mismatch(writer, reader, path)
        wanted: dict[str, tuple[Part, int]] = {}
        missing: list[tuple[Part, int]] = []
        if reader is not None:
            self._emit(k.STRUCT, node)
            written = {each.name for each in writer.parts}
            for part, child in zip(reader.parts, self._layout.children(node), strict=True):
                name = next((each for each in (part.name, *part.aliases) if each in written), None)
                if name is None or name in wanted:
                    missing.append((part, child))
                else:
                    wanted[name] = (part, child)
        for each in writer.parts:
            part_node = wanted.get(each.name)
            inner = f"{path}.{each.name}" if path else each.name
            if part_node is None:
                self._resolve(each.type, None, _SKIP, inner)
            else:
                self._resolve(each.type, part_node[0].type, part_node[1], inner)
        for part, child in missing:
            inner = f"{path}.{part.name}" if path else part.name
            if not part.optional:
                raise Incompatible(f"field `{inner}` is missing and has no default")
            self._put_default(part.default, part.type, child, inner)

    def _resolve_loop(self, writer: ArrayOf | MapOf, reader: AvroType | None, node: int, path: str) -> None:
        if reader is not None and type(reader) is not type(writer):
            raise _mismatch(writer, reader, path)
        is_map = isinstance(writer, MapOf)
        self._emit(k.LOOP)
        head = self._emit(k.NEXT, node, 0, int(is_map))
        # A map's node is followed by its keys, then its values; a list's by its elements.
        child = _SKIP if reader is None else list(self._layout.children(node))[-1]
        if isinstance(writer, MapOf):
            inner = reader.values if isinstance(reader, MapOf) else None
            self._resolve(writer.values, inner, child, f"{path}{{}}")
        else:
            inner = reader.items if isinstance(reader, ArrayOf) else None
            self._resolve(writer.items, inner, child, f"{path}[]")
        self._emit(k.JUMP, _SKIP, head)
        self._patch(head)

    def _resolve_enum(self, writer: Enum, reader: AvroType | None, node: int, path: str) -> None:
        known: Sequence[str] = writer.symbols
        default = None
        if isinstance(reader, Enum):
            known, default = reader.symbols, reader.default
        elif reader is not None and reader != Primitive("string"):
            raise _mismatch(writer, reader, path)
        table = len(self._targets)
        for symbol in writer.symbols:
            shown = symbol if symbol in known else default
            where = -1 if shown is None else self._constant(shown.encode())
            self._targets += [where, len((shown or "").encode())]
        self._emit(k.ENUM, node, table, len(writer.symbols))

    def _resolve_fixed(self, writer: Fixed, reader: AvroType | None, node: int, path: str) -> None:
        if reader is None:
            self._emit(k.FIXED, _SKIP, writer.size)
            return
        if isinstance(reader, Fixed) and reader.size != writer.size:
            raise _mismatch(writer, reader, path)
        if not isinstance(reader, Fixed) and not (isinstance(reader, Primitive) and reader.name == "bytes"):
            raise _mismatch(writer, reader, path)
        if reader.logical == "decimal":
            _check_scale(writer, reader, path)
            self._emit(k.DECIMAL, node, writer.size)
        else:
            self._emit(k.FIXED, node, writer.size)

    def _resolve_primitive(self, writer: Primitive, reader: AvroType | None, node: int, path: str) -> None:
        name = writer.name
        if reader is None:
            reader = writer if not writer.logical else Primitive(name)
        if isinstance(reader, Fixed) and name == "bytes" and reader.logical == writer.logical == "decimal":
            reader = Primitive("bytes", "decimal", reader.precision, reader.scale)
        if not isinstance(reader, Primitive) or not _fits(name, reader.name):
            raise _mismatch(writer, reader, path)
        if name == "null":
            self._emit(k.NULL, node)
        elif name == "boolean":
            self._emit(k.BOOLEAN, node)
        elif name in ("int", "long"):
            unit = writer.logical if "timestamp" in writer.logical else reader.logical
            how = k.AS_REAL if reader.name in ("float", "double") else k.AS_IS
            if "timestamp" in reader.logical and unit.endswith("millis"):
                how = k.THOUSANDFOLD
            self._emit(k.LONG, node, int(name == "int"), how)
        elif name in ("float", "double"):
            self._emit(k.FLOAT if name == "float" else k.DOUBLE, node)
        elif reader.logical == "decimal":
            _check_scale(writer, reader, path)
            self._emit(k.DECIMAL, node, -1)
        else:
            self._emit(k.BYTES, node, int(reader.name == "string"))

    # --- defaults -------------------------------------------------------------------------------------

    def _put_default(self, value: Any, reader: AvroType, node: int, path: str) -> None:
        try:
            self._put_constant(value, reader, node, path)
        except (TypeError, ValueError, AttributeError, KeyError, struct.error, OverflowError) as error:
            raise Incompatible(f"the default of `{path}` does not have its type") from error

    def _put_constant(self, value: Any, reader: AvroType, node: int, path: str) -> None:
        if isinstance(reader, Union):
            self._put_branch(value, reader, node, path)
        elif isinstance(reader, AvroRecord):
            self._emit(k.STRUCT, node)
            for part, child in zip(reader.parts, self._layout.children(node), strict=True):
                if part.name not in value and not part.optional:
                    raise KeyError(part.name)
                self._put_constant(value.get(part.name, part.default), part.type, child, path)
        elif isinstance(reader, ArrayOf):
            for each in list(value):
                self._put_constant(each, reader.items, node + 1, path)
            self._emit(k.PUT_LIST, node)
        elif isinstance(reader, MapOf):
            key, child = self._layout.children(node)
            for name, each in value.items():
                self._put_text(key, name.encode())
                self._put_constant(each, reader.values, child, path)
            self._emit(k.PUT_LIST, node)
        elif reader == _NULL or value is None:
            if value is not None or reader != _NULL:
                raise TypeError("null")
            self._emit(k.NULL, node)
        else:
            self._put_scalar(value, reader, node)

    def _put_branch(self, value: Any, reader: Union, node: int, path: str) -> None:
        if value is None and _NULL in reader.branches:
            self._emit(k.NULL, node)
            return
        only = simplify_union(reader)
        if not isinstance(only, Union):
            self._put_constant(value, only, node, path)
            return
        # In Avro a union's default belongs to the first branch.
        self._emit(k.STRUCT, node)
        for n, child in enumerate(self._layout.children(node)):
            if n == 0:
                self._put_constant(value, member_types(only)[0], child, path)
            else:
                self._emit(k.NULL, child)

    def _put_scalar(self, value: Any, reader: Primitive | Fixed | Enum, node: int) -> None:
        if isinstance(reader, Enum) or reader.name == "string":
            self._put_text(node, value.encode())
        elif reader.logical == "decimal":
            wide = int.from_bytes(value.encode("latin-1"), "big", signed=True) & ((1 << 128) - 1)
            self._emit(k.PUT_WIDE, node, _signed(wide >> 64), _signed(wide & ((1 << 64) - 1)))
        elif isinstance(reader, Fixed) or reader.name == "bytes":
            self._put_text(node, value.encode("latin-1"))
        elif reader.name in ("float", "double"):
            self._emit(k.PUT_LONG, node, struct.unpack("<q", struct.pack("<d", float(value)))[0])
        else:
            whole = int(value)
            if whole != value or not -(1 << 63) <= whole < 1 << 63:
                raise ValueError("not a whole number")
            self._emit(k.PUT_LONG, node, whole * 1000 if reader.logical.endswith("millis") else whole)

    def _put_text(self, node: int, data: bytes) -> None:
        self._emit(k.PUT_TEXT, node, self._constant(data), len(data))


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _fits(writer: str, reader: str) -> bool:
    return writer == reader or reader in _WIDER.get(writer, ()) or {writer, reader} == {"bytes", "string"}


def _find_branch(writer: AvroType, members: Sequence[AvroType]) -> int | None:
    """Return the member for a value of the writer's type: the same type first, then one it widens to."""
    for n, each in enumerate(members):
        if type(each) is not type(writer):
            continue
        if isinstance(each, ArrayOf | MapOf) or _short_name(each) == _short_name(writer):
            return n
    if isinstance(writer, Primitive):
        for n, each in enumerate(members):
            if isinstance(each, Primitive) and _fits(writer.name, each.name):
                return n
    same_kind = [n for n, each in enumerate(members) if type(each) is type(writer)]
    return same_kind[0] if len(same_kind) == 1 and isinstance(writer, AvroRecord) else None


def _short_name(avro: AvroType) -> str:
    name: str = getattr(avro, "name", "")
    return name.rpartition(".")[2]


def _check_scale(writer: Primitive | Fixed, reader: Primitive | Fixed, path: str) -> None:
    if writer.logical == "decimal" and writer.scale != reader.scale:
        raise Incompatible(f"`{path}` has {writer.scale} decimal places, the frame {reader.scale}")


def _mismatch(writer: AvroType, reader: AvroType, path: str) -> Incompatible:
    return Incompatible(f"`{path or 'the value'}` is {_say(writer)}, the frame has {_say(reader)}")


def _say(avro: AvroType) -> str:
    if isinstance(avro, Primitive):
        return avro.logical or avro.name
    return type(avro).__name__.lower().removesuffix("of")
