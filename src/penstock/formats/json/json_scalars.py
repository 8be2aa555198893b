"""Decodes scalars of JSON documents (values that are neither objects nor arrays) for a column of any type.

Rule: a value is read to its end or refused with a fault: SYNTAX or BAD_TEXT if it is not JSON, a fault of one
field if it is JSON of another type. The result is the position after the value, a negated fault, or -100 if
there is no room. `NaN` and the infinities are read as Python and Java write them, although JSON has none.
"""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM110  (numba has no generators)

from __future__ import annotations

import numpy as np

from penstock.formats.columns import column_builder as s
from penstock.kernels import number_and_time_parsing as n
from penstock.kernels.compilation import inlined, part
from penstock.kernels.text_scanning import NO_TEXT, close_string, decode_base64, unescape

# Faults of a row. Those from WRONG_TYPE onwards are faults of one field.
NOT_AN_OBJECT, CUT_OFF, SYNTAX, BAD_TEXT, TOO_DEEP, TRAILING, NO_FRAME = range(1, 8)
WRONG_TYPE, OUT_OF_RANGE, HALF_PAIR = range(8, 11)

# The entries of `state`: how many numbers are left to Arrow, how many of them come from earlier rows, the
# row's fault, and its node.
LATE, LATE_BEFORE, FAULT, NODE = range(4)
STATE_WIDTH = 4
#: The columns of `late`, one row per number: node, entry, position, size.
LATE_WIDTH = 4
#: In the first column of the table's last row: `late` was full.
LATE_FULL = -1

_SMALLEST = np.array([0, -(1 << 7), -(1 << 15), -(1 << 31), -(1 << 63)], np.int64)


@inlined
def is_word(buf, at, end, word):
    if end - at < len(word):
        return False
    for i in range(len(word)):
        if buf[at + i] != word[i]:
            return False
    return True


_NULL = (0x6E, 0x75, 0x6C, 0x6C)
_TRUE = (0x74, 0x72, 0x75, 0x65)
_FALSE = (0x66, 0x61, 0x6C, 0x73, 0x65)


@inlined
def decode_scalar(buf, at, end, columns, node, late, state, scratch):
    """Append a value that is neither object nor array; return the position after it or a negated fault."""
    table = columns.table
    c = buf[at]
    if c == 0x22:
        close, escapes = close_string(buf, at + 1, end)
        if close < 0:
            return np.int64(-BAD_TEXT)
        if node < 0:
            if escapes and unescape(scratch, 0, scratch.size, buf, at + 1, close) == NO_TEXT:
                return np.int64(-BAD_TEXT)
            return close + 1
        if table[node, s.KIND] == s.STRING and not escapes:
            return close + 1 if s.put_text(columns, node, buf, at + 1, close - at - 1) else np.int64(-100)
        return decode_string(buf, at + 1, close, escapes, columns, node, scratch)
    if c == 0x2D or 0x30 <= c <= 0x39:
        kind, stop, digits, power, negative, exact = n.read_number(buf, at, end)
        if kind == n.NO_NUMBER:
            return decode_special(buf, at, end, columns, node)
        if node < 0:
            return stop
        wanted = table[node, s.KIND]
        if s.TINYINT <= wanted <= s.BIGINT and kind == n.WHOLE:
            limit = np.uint64(-(_SMALLEST[wanted] + 1)) + np.uint64(1 if negative else 0)
            if not exact or digits > limit:
                return np.int64(-OUT_OF_RANGE)
            value = -np.int64(digits) if negative else np.int64(digits)
            return stop if s.put(columns, node, value) else np.int64(-100)
        if wanted == s.DOUBLE or wanted == s.FLOAT:
            if n.easy_real(digits, power, exact):
                # A whole number has no negative zero. A double may be equally near to two floats.
                value = n.make_real(digits, power, negative and (kind != n.WHOLE or digits > np.uint64(0)))
                if wanted == s.DOUBLE or n.rounds_as_float(value):
                    return stop if s.put_real(columns, node, value) else np.int64(-100)
            return stop if leave_to_arrow(columns, node, at, stop - at, late, state) else np.int64(-100)
        return decode_other_number(buf, at, stop, kind, digits, negative, exact, columns, node)
    if c == 0x6E and is_word(buf, at, end, _NULL):
        return at + 4 if node < 0 or s.put_null(columns, node) else np.int64(-100)
    size = np.int64(0)
    if c == 0x74 and is_word(buf, at, end, _TRUE):
        size = np.int64(4)
    elif c == 0x66 and is_word(buf, at, end, _FALSE):
        size = np.int64(5)
    else:
        return decode_special(buf, at, end, columns, node)
    if node < 0:
        return at + size
    if table[node, s.KIND] == s.BOOLEAN:
        return at + size if s.put(columns, node, np.int64(size == 4)) else np.int64(-100)
    if table[node, s.KIND] == s.STRING:
        return at + size if s.put_text(columns, node, buf, at, size) else np.int64(-100)
    return np.int64(-WRONG_TYPE)


@part
def leave_to_arrow(columns, node, at, size, late, state):
    """Append a number whose value is filled in later; return False if there is no room."""
    table = columns.table
    if state[LATE] >= len(late):
        table[-1, 0] = LATE_FULL
        return False
    entry = table[node, s.COUNT]
    if not s.put_real(columns, node, 0.0):
        return False
    row = late[state[LATE]]
    row[0], row[1], row[2], row[3] = node, entry, at, size
    state[LATE] += 1
    return True


@part
def decode_other_number(buf, at, stop, kind, digits, negative, exact, columns, node):
    """Append a number to a decimal, text or timestamp column; return the next position or a negated fault."""
    table = columns.table
    wanted = table[node, s.KIND]
    if wanted == s.STRING:
        return stop if s.put_text(columns, node, buf, at, stop - at) else np.int64(-100)
    if wanted == s.DECIMAL:
        fits, high, low = n.read_decimal(buf, at, stop, table[node, s.PRECISION], table[node, s.SCALE])
        if not fits:
            return np.int64(-OUT_OF_RANGE)
        return stop if s.put_wide(columns, node, high, low) else np.int64(-100)
    if wanted == s.TIMESTAMP and kind == n.WHOLE:  # seconds, as Spark reads them
        if not exact or digits > np.uint64(9_223_372_036_854):
            return np.int64(-OUT_OF_RANGE)
        micros = np.int64(digits) * 1_000_000
        return stop if s.put(columns, node, -micros if negative else micros) else np.int64(-100)
    return np.int64(-WRONG_TYPE)


@part
def decode_string(buf, at, close, escapes, columns, node, scratch):
    """Append the string `[at, close)` to any column; return the position after its quote or a fault."""
    table, text = columns.table, columns.text
    kind = table[node, s.KIND]
    size = close - at
    if kind == s.STRING:
        if not s.has_room(columns, node) or not s.has_text_room(columns, node, size):
            return np.int64(-100)
        begin = table[node, s.TEXT_BASE] + table[node, s.TEXT_USED]
        size = unescape(text, begin, size, buf, at, close)
        if size < 0:
            return np.int64(-BAD_TEXT if size == NO_TEXT else -HALF_PAIR)
        s.end_text(columns, node, size)
        return close + 1
    source, begin, end = buf, at, close
    if escapes:
        size = unescape(scratch, 1, scratch.size - 1, buf, at, close)
        if size < 0:
            return np.int64(-BAD_TEXT if size == NO_TEXT else -HALF_PAIR)
        source, begin, end = scratch, np.int64(1), size + 1
    done = False
    if kind == s.BINARY:
        if not s.has_room(columns, node) or not s.has_text_room(columns, node, size):
            return np.int64(-100)
        place = table[node, s.TEXT_BASE] + table[node, s.TEXT_USED]
        size = decode_base64(text, place, size, source, begin, end)
        if size < 0:
            return np.int64(-WRONG_TYPE)
        done = s.end_text(columns, node, size)
    elif kind == s.DATE:
        fits, days = n.read_day(source, begin, end)
        if not fits:
            return np.int64(-WRONG_TYPE)
        done = s.put(columns, node, days)
    elif kind == s.TIMESTAMP or kind == s.TIMESTAMP_NTZ:
        fits, micros = n.read_timestamp(source, begin, end, kind == s.TIMESTAMP)
        if not fits:
            return np.int64(-WRONG_TYPE)
        done = s.put(columns, node, micros)
    elif kind == s.DECIMAL:
        end = n.spell_decimal(scratch, source, begin, end)
        number, stop, _, _, _, _ = n.read_number(scratch, 0, end)
        if number == n.NO_NUMBER or stop != end:
            return np.int64(-WRONG_TYPE)
        fits, high, low = n.read_decimal(scratch, 0, end, table[node, s.PRECISION], table[node, s.SCALE])
        if not fits:
            return np.int64(-OUT_OF_RANGE)
        done = s.put_wide(columns, node, high, low)
    elif kind == s.DOUBLE or kind == s.FLOAT:
        value, stop = special_real(source, begin, end)
        if stop != end or value == 0.0:
            return np.int64(-WRONG_TYPE)
        done = s.put_real(columns, node, value)
    else:
        return np.int64(-WRONG_TYPE)
    return close + 1 if done else np.int64(-100)


@part
def decode_special(buf, at, end, columns, node):
    """Append an unquoted `NaN` or infinity, as Python writes it; return the next position or a fault."""
    value, stop = special_real(buf, at, end)
    if value == 0.0:
        return np.int64(-SYNTAX)
    if node < 0:
        return stop
    kind = columns.table[node, s.KIND]
    if kind == s.DOUBLE or kind == s.FLOAT:
        return stop if s.put_real(columns, node, value) else np.int64(-100)
    if kind == s.STRING:
        return stop if s.put_text(columns, node, buf, at, stop - at) else np.int64(-100)
    return np.int64(-WRONG_TYPE)


_NAN = (0x4E, 0x61, 0x4E)
_INF = (0x49, 0x4E, 0x46)
_INFINITY = (0x49, 0x6E, 0x66, 0x69, 0x6E, 0x69, 0x74, 0x79)


@part
def special_real(buf, at, end):
    """Read `NaN`, `+INF`, `-INF`, or `Infinity` with or without a sign. Return the value and the position
    after it, or 0.0 and any position if there is none of these."""
    if is_word(buf, at, end, _NAN):
        return np.nan, at + 3
    sign = 0.0
    if at < end and (buf[at] == 0x2B or buf[at] == 0x2D):
        sign = -1.0 if buf[at] == 0x2D else 1.0
        at += 1
    if is_word(buf, at, end, _INFINITY):
        return -np.inf if sign < 0.0 else np.inf, at + 8
    if sign != 0.0 and is_word(buf, at, end, _INF):
        return sign * np.inf, at + 3
    return 0.0, at
