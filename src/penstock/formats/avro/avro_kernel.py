"""The Avro kernel: runs a small program over every value and puts the results into columns.

A program (made by `avro_program`) is a table of operations: read this, skip that, loop, choose a branch.
Rules: every length is compared with the remaining bytes before it is used. A number has at most ten bytes. A
row may have at most as many array and map elements as it has bytes, plus 1024, so that elements that take no
bytes cannot go on endlessly. A value with bytes left over is a bad row. A negative node means: check the
value and leave it out.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.formats.columns import column_builder as s
from penstock.kernels import number_and_time_parsing as n
from penstock.kernels.compilation import kernel, load_word, part
from penstock.kernels.text_scanning import is_utf8

# Operations; the columns of a program are (operation, node, a, b).
END, NULL, BOOLEAN, LONG, FLOAT, DOUBLE, BYTES, FIXED, ENUM, DECIMAL, STRUCT = range(11)
LOOP, NEXT, JUMP, UNION, PUT_LONG, PUT_TEXT, PUT_WIDE, PUT_LIST, BAD = range(11, 20)
PROGRAM_WIDTH = 4

# What LONG does with its number, in column `b`.
AS_IS, AS_REAL, THOUSANDFOLD = 0, 1, 2

# Faults of a row.
CUT_OFF, BAD_NUMBER, BAD_LENGTH, BAD_TEXT, BAD_BRANCH, BAD_SYMBOL, OUT_OF_RANGE = range(1, 8)
TOO_MANY, TRAILING, NO_FRAME, NO_SCHEMA, NO_MATCH = range(8, 13)

SPARE_ELEMENTS = 1024


@part
def read_long(buf, at, end):
    """Read a zigzag number of at most 64 bits. Return its value and the next position, which is negative if
    the number is malformed."""
    raw, at, is_cut = n.read_varint(buf, at, end)
    if is_cut:
        return np.int64(0), np.int64(-BAD_NUMBER)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at


@kernel
def decode_rows(buf, ends, present, entries, skip, row, columns, programs, frames, state, faults, nodes):
    """Append the rows from `row` onwards and return the first row not done. If there is one, a node was full.

    `entries[row]` is where the row's program begins, or a negated fault. The first `skip` bytes of a value
    are its frame.
    """
    while row < len(present):
        if present[row] == 0:
            s.put_null(columns, 0)
            row += 1
            continue
        code = -entries[row]
        state[0] = 0
        if entries[row] >= 0:
            at, end = ends[row] + skip, ends[row + 1]
            code = decode_row(buf, at, end, entries[row], columns, programs, frames, state)
        if code != s.GOOD:
            s.truncate(columns, 0, row)
            if code == s.FULL:
                return row
            s.put_null(columns, 0)
            faults[row] = code
            nodes[row] = state[0]
        row += 1
    return row


@part
def decode_row(buf, at, end, pc, columns, programs, frames, state):
    """Run the program from `pc` onwards, and return GOOD, FULL or the fault."""
    program, targets, constants = programs
    depth = 0
    budget = end - at + SPARE_ELEMENTS
    while True:
        operation, node, a, b = program[pc, 0], program[pc, 1], program[pc, 2], program[pc, 3]
        pc += 1
        state[0] = max(node, np.int64(0))
        done = True
        if operation == LONG:
            value, at = read_long(buf, at, end)
            if at < 0:
                return -at
            if a and (value < -0x80000000 or value > 0x7FFFFFFF):
                return OUT_OF_RANGE
            if node >= 0:
                if b == AS_REAL:
                    done = s.put_real(columns, node, np.float64(value))
                else:
                    if b == THOUSANDFOLD:
                        if value > 9_223_372_036_854_775 or value < -9_223_372_036_854_775:
                            return OUT_OF_RANGE
                        value *= 1000
                    done = s.put(columns, node, value)
        elif operation == BYTES:
            size, at = read_long(buf, at, end)
            if at < 0:
                return -at
            if size < 0 or size > end - at:
                return BAD_LENGTH
            if a and not is_utf8(buf, at, at + size):
                return BAD_TEXT
            if node >= 0:
                done = s.put_text(columns, node, buf, at, size)
            at += size
        elif operation == DOUBLE:
            if end - at < 8:
                return CUT_OFF
            if node >= 0:
                done = s.put(columns, node, np.int64(load_word(buf, at)))
            at += 8
        elif operation == FLOAT:
            if end - at < 4:
                return CUT_OFF
            if node >= 0:
                done = s.put_real(columns, node, n.float_at(buf, at))
            at += 4
        elif operation == BOOLEAN:
            if at >= end:
                return CUT_OFF
            if buf[at] > 1:
                return BAD_NUMBER
            if node >= 0:
                done = s.put(columns, node, np.int64(buf[at]))
            at += 1
        elif operation == NULL:
            done = node < 0 or s.put_null(columns, node)
        elif operation == STRUCT:
            done = s.put(columns, node, np.int64(0))
        elif operation == UNION:
            value, at = read_long(buf, at, end)
            if at < 0:
                return -at
            if value < 0 or value >= b:
                return BAD_BRANCH
            pc = targets[a + value]
        elif operation == JUMP:
            pc = a
        elif operation == LOOP:
            frames[depth] = 0
            depth += 1
        elif operation == NEXT:
            if frames[depth - 1] == 0:
                size, at = read_long(buf, at, end)
                if at < 0:
                    return -at
                if size < 0:  # the block's size in bytes follows, which is not needed
                    _, at = read_long(buf, at, end)
                    if at < 0:
                        return -at
                    size = -size
                if size < 0 or size > budget:
                    return TOO_MANY
                budget -= size
                frames[depth - 1] = size
                if size == 0:
                    depth -= 1
                    pc = a
                    if node >= 0 and not s.put_list(columns, node):
                        return s.FULL
                    continue
            frames[depth - 1] -= 1
            if b:  # a map: its key comes first
                size, at = read_long(buf, at, end)
                if at < 0:
                    return -at
                if size < 0 or size > end - at:
                    return BAD_LENGTH
                if not is_utf8(buf, at, at + size):
                    return BAD_TEXT
                if node >= 0:
                    done = s.put_text(columns, node + 1, buf, at, size)
                at += size
        elif operation == END:
            return s.GOOD if at == end else TRAILING
        elif operation == FIXED:
            if a > end - at:
                return CUT_OFF
            if node >= 0:
                done = s.put_text(columns, node, buf, at, a)
            at += a
        elif operation == ENUM:
            value, at = read_long(buf, at, end)
            if at < 0:
                return -at
            if value < 0 or value >= b:
                return BAD_SYMBOL
            if node >= 0:
                where = targets[a + 2 * value]
                if where < 0:
                    return BAD_SYMBOL
                done = s.put_text(columns, node, constants, where, targets[a + 2 * value + 1])
        elif operation == DECIMAL:
            size = a
            if a < 0:
                size, at = read_long(buf, at, end)
                if at < 0:
                    return -at
            if size < 0 or size > end - at:
                return BAD_LENGTH
            fits, high, low = n.wide_at(buf, at, size, columns.table[node, s.PRECISION])
            if not fits:
                return OUT_OF_RANGE
            done = s.put_wide(columns, node, high, low)
            at += size
        elif operation == PUT_LONG:
            done = s.put(columns, node, a)
        elif operation == PUT_TEXT:
            done = s.put_text(columns, node, constants, a, b)
        elif operation == PUT_WIDE:
            done = s.put_wide(columns, node, np.uint64(a), np.uint64(b))
        elif operation == PUT_LIST:
            done = s.put_list(columns, node)
        else:
            return NO_MATCH
        if not done:
            return s.FULL
