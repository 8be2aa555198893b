"""Stores the decoded values of kernels: the columns of one type, flattened into a few plain arrays.

A column type is a tree. Its nodes are the rows of `table`, in depth-first order: a node's first child is the
next node, and STOP is the first node after its subtree. Each node owns a part of three pools: `slots` (a
number per entry; for texts and lists the end of each entry), `valid` (a byte per entry) and `text`.

Rules: every write is preceded by a comparison with the node's room. A full node is not an error: the function
returns False, the kernel removes the row with `truncate`, and the caller makes more room and continues at
that row. A struct's own entry comes first, its children follow in any order, and `close_struct` fills in the
absent ones. Why not one array per column: numba would compile a kernel per schema.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.kernels.compilation import bits_of, copy_bytes, part

# Kinds of nodes.
BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL = range(8)
STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, STRUCT, LIST, MAP = range(8, 16)

# The value of an absent child.
NULL, ZERO, EMPTY_LIST, FIRST_NAME, EMPTY_STRUCT = range(5)

# Results of a kernel for a row that has no fault: 0 is good.
GOOD, FULL = 0, -1


# Columns of `table`, one row per node; an extra last row holds what was full: [node, bytes].
KIND, STOP, PARENT, COUNT, BASE, ROOM, TEXT_BASE, TEXT_USED, TEXT_ROOM = range(9)
# WIDTH: slots per entry (two for decimals). MISSING: how to fill gaps.
WIDTH, PRECISION, SCALE, MISSING = range(9, 13)
# Places in `text`: of the field's name and, for FIRST_NAME, of the name of zero.
NAME_AT, NAME_SIZE, FIRST_AT, FIRST_SIZE = range(13, 17)
TABLE_WIDTH = 17


class BuiltColumns(NamedTuple):
    """The nodes and their pools."""

    table: Any
    slots: Any
    valid: Any
    text: Any


@part
def has_room(columns, node):
    table = columns.table
    if table[node, COUNT] < table[node, ROOM]:
        return True
    table[-1, 0] = node
    table[-1, 1] = 0
    return False


@part
def put(columns, node, value):
    """Append a whole number."""
    table, slots, valid = columns.table, columns.slots, columns.valid
    if not has_room(columns, node):
        return False
    at = table[node, BASE] + table[node, COUNT]
    slots[at] = value
    valid[at] = 1
    table[node, COUNT] += 1
    return True


@part
def put_real(columns, node, value):
    """Append a floating point number."""
    return put(columns, node, bits_of(value))


@part
def put_wide(columns, node, high, low):
    """Append a decimal: 128 bits, the low half first as Arrow stores it."""
    table, slots, valid = columns.table, columns.slots, columns.valid
    if not has_room(columns, node):
        return False
    at = table[node, BASE] + 2 * table[node, COUNT]
    slots[at] = np.int64(low)
    slots[at + 1] = np.int64(high)
    valid[at] = 1
    table[node, COUNT] += 1
    return True


@part
def has_text_room(columns, node, size):
    table = columns.table
    if size <= table[node, TEXT_ROOM] - table[node, TEXT_USED]:
        return True
    table[-1, 0] = node
    table[-1, 1] = size
    return False


@part
def put_text(columns, node, buf, at, size):
    """Append bytes of `buf`; the caller has checked that they lie inside it."""
    table, text = columns.table, columns.text
    if not has_room(columns, node) or not has_text_room(columns, node, size):
        return False
    copy_bytes(text, table[node, TEXT_BASE] + table[node, TEXT_USED], buf, at, size)
    return end_text(columns, node, size)


@part
def end_text(columns, node, size):
    """Append an entry whose bytes have just been written after TEXT_USED. The caller has checked the room."""
    table = columns.table
    table[node, TEXT_USED] += size
    at = table[node, BASE] + table[node, COUNT]
    columns.slots[at] = table[node, TEXT_USED]
    columns.valid[at] = 1
    table[node, COUNT] += 1
    return True


@part
def put_list(columns, node):
    """Append a list or a map. Its elements are those that its child got since the previous entry."""
    return put(columns, node, columns.table[node + 1, COUNT])


@part
def put_null(columns, node):
    """Append a null; a struct's parts get one each, too."""
    table, slots, valid = columns.table, columns.slots, columns.valid
    i = node
    while i < table[node, STOP]:
        if not has_room(columns, i):
            return False
        kind = table[i, KIND]
        at = table[i, BASE] + table[i, WIDTH] * table[i, COUNT]
        value = np.int64(0)
        if kind in (STRING, BINARY):
            value = table[i, TEXT_USED]
        elif kind in (LIST, MAP):
            value = table[i + 1, COUNT]
        slots[at] = value
        if table[i, WIDTH] == 2:
            slots[at + 1] = 0
        valid[at] = 0
        table[i, COUNT] += 1
        i = table[i, STOP] if kind in (LIST, MAP) else i + 1
    return True


@part
def put_missing(columns, node):
    """Append the value of an absent part."""
    table, text = columns.table, columns.text
    how = table[node, MISSING]
    if how == EMPTY_LIST:
        return put_list(columns, node)
    if how == FIRST_NAME:
        return put_text(columns, node, text, table[node, FIRST_AT], table[node, FIRST_SIZE])
    if how == ZERO:
        kind = table[node, KIND]
        if kind in (STRING, BINARY):
            return put_text(columns, node, text, 0, 0)
        if kind == DECIMAL:
            return put_wide(columns, node, np.uint64(0), np.uint64(0))
        return put(columns, node, np.int64(0))  # the same bits as 0.0
    return put_null(columns, node)


@part
def close_struct(columns, node):
    """Fill in the absent children of a struct's newest entry."""
    table = columns.table
    child = node + 1
    while child < table[node, STOP]:
        if table[child, COUNT] < table[node, COUNT] and not put_missing(columns, child):
            return False
        child = table[child, STOP]
    return True


@part
def truncate(columns, node, entries):
    """Keep only the first `entries` of a node and what belongs to them in the nodes below it."""
    table, slots = columns.table, columns.slots
    for i in range(node, table[node, STOP]):
        keep = entries
        if i > node:
            above = table[i, PARENT]
            keep = table[above, COUNT]
            if table[above, KIND] != STRUCT:
                keep = slots[table[above, BASE] + keep - 1] if keep > 0 else np.int64(0)
        if table[i, COUNT] > keep:
            table[i, COUNT] = keep
        kind = table[i, KIND]
        if kind in (STRING, BINARY):
            kept = table[i, COUNT]
            table[i, TEXT_USED] = slots[table[i, BASE] + kept - 1] if kept > 0 else np.int64(0)
