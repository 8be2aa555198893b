"""Reads JSON access-log lines for the kernel: one object each, of which the known keys are kept.

Rules: the line must be one whole object, nested at most `MAX_DEPTH` deep. Strings may hold any byte and any
escape, since nginx writes `\\x22` into them by default, and attackers send bytes that are not UTF-8. A value
that does not fit its key is left out. A text stays as it was written, with its escapes. An empty text counts
as missing, which is what nginx means by it, unless it is the request itself. In a list, the first text
counts; a list of forwarding headers counts as a whole.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.parsing.line_scanning import find_byte_or_backslash, is_digit, read_time
from penstock.apps.accesslog.parsing.line_slots import (
    BAD_TIME,
    COUNT_OF_SPANS,
    GOOD,
    LATENCY,
    NO_TEXT,
    NOT_JSON,
    REQUEST,
    SIZE,
    STATUS,
    TARGET,
    TIME,
    XFF,
)
from penstock.kernels.compilation import inlined, part
from penstock.kernels.number_and_time_parsing import NO_NUMBER, make_real, read_number
from penstock.kernels.text_scanning import skip_blanks

MAX_DEPTH = 64
# Columns of the table of keys; an entry without a name is empty.
PARENT, NAME_AT, NAME_SIZE, NODE, KIND, SLOT, SCALE, RANK = range(8)
KEY_WIDTH = 8
#: Kinds of values.
NOTHING, AS_TEXT, AS_TIME, AS_STATUS, AS_SIZE, AS_LATENCY = range(6)
#: The outermost object, and an object without known keys.
ROOT, NO_NODE = 0, -1
#: A scale: guess it from the look of the value.
GUESS = 0
HASH_START, HASH_FACTOR = 2166136261, 16777619
LONGEST_KEY = 64

_UNRANKED = 99
_IN_KEY, _IN_VALUE, _BEHIND = 0, 1, 2
_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000
#: Longer times than this are not credible: 2^53 microseconds, 285 years.
_MOST_MICROS = 9007199254740992.0


@inlined
def plain_byte(c):
    """Return a byte of a key as it is compared, or 0 if it does not count."""
    if 0x41 <= c <= 0x5A:
        return np.uint32(c | 0x20)
    return np.uint32(0) if c == 0x5F or c == 0x2D or c == 0x40 else np.uint32(c)


@part
def find_key(buf, at, end, parent, keys, key_text):
    """Return the entry of a key of this object; -1 if it is not known."""
    if end - at > LONGEST_KEY:
        return np.int64(-1)
    value = np.uint32(HASH_START + parent)
    for i in range(at, end):
        c = plain_byte(buf[i])
        if c != 0:
            value = np.uint32((value ^ c) * np.uint32(HASH_FACTOR))
    place = np.int64(value ^ (value >> np.uint32(15))) & (len(keys) - 1)
    while keys[place, NAME_SIZE] != 0:
        if keys[place, PARENT] == parent and is_named(buf, at, end, keys, key_text, place):
            return place
        place = (place + 1) & (len(keys) - 1)
    return np.int64(-1)


@inlined
def is_named(buf, at, end, keys, key_text, place):
    name, left = keys[place, NAME_AT], keys[place, NAME_SIZE]
    for i in range(at, end):
        c = plain_byte(buf[i])
        if c != 0:
            if left == 0 or key_text[name] != c:
                return False
            name += 1
            left -= 1
    return left == 0


@inlined
def close_text(buf, at, end):
    """Return where the closing quote is, from behind the opening one; -1 if there is none."""
    while at < end:
        at = find_byte_or_backslash(buf, at, end, 0x22)
        if at < end and buf[at] == 0x22:
            return at
        at += 2
    return np.int64(-1)


@inlined
def skip_word(buf, at, end):
    """Return the position behind a number, `true`, `false` or `null`; -1 if none of them is there."""
    c = buf[at]
    if c == 0x2D or is_digit(c):
        kind, stop, _, _, _, _ = read_number(buf, at, end)
        return np.int64(-1) if kind == NO_NUMBER else stop
    if end - at >= 4 and c == 0x74 and buf[at + 1] == 0x72 and buf[at + 2] == 0x75 and buf[at + 3] == 0x65:
        return at + 4
    if end - at >= 4 and c == 0x6E and buf[at + 1] == 0x75 and buf[at + 2] == 0x6C and buf[at + 3] == 0x6C:
        return at + 4
    if end - at >= 5 and c == 0x66 and buf[at + 1] == 0x61 and buf[at + 2] == 0x6C and buf[at + 3] == 0x73:
        return at + 5 if buf[at + 4] == 0x65 else np.int64(-1)
    return np.int64(-1)


@part
def read_document(buf, at, end, keys, key_text, spans, numbers, ranks, stack):
    """Fill spans and numbers from one object; return GOOD or the reason why the line is bad."""
    for i in range(len(ranks)):
        ranks[i] = _UNRANKED
    if at >= end or buf[at] != 0x7B:
        return NOT_JSON
    depth = np.int64(0)
    node = np.int64(ROOT)
    entry = np.int64(-1)
    key_at = at
    listing = np.int64(-1)
    step = _IN_VALUE
    while True:
        at = skip_blanks(buf, at, end)
        if at >= end:
            return NOT_JSON
        c = buf[at]
        if step == _IN_KEY:
            if c != 0x22:
                return NOT_JSON
            key_at = at + 1
            close = close_text(buf, key_at, end)
            if close < 0:
                return NOT_JSON
            node = stack[depth - 1] >> 1
            entry = find_key(buf, key_at, close, node, keys, key_text) if node >= 0 else np.int64(-1)
            at = skip_blanks(buf, close + 1, end)
            if at >= end or buf[at] != 0x3A:
                return NOT_JSON
            at += 1
            step = _IN_VALUE
        elif step == _IN_VALUE:
            step = _BEHIND
            if c == 0x7B or c == 0x5B:
                if depth >= MAX_DEPTH:
                    return NOT_JSON
                inner = np.int64(ROOT)
                if c == 0x5B:
                    inner = entry  # what its elements are
                elif depth > 0:
                    inner = (
                        keys[entry, NODE] if entry >= 0 and stack[depth - 1] & 1 == 0 else np.int64(NO_NODE)
                    )
                stack[depth] = inner * 2 + (1 if c == 0x5B else 0)
                depth += 1
                at = skip_blanks(buf, at + 1, end)
                if at >= end:
                    return NOT_JSON
                if buf[at] != c + 2:  # the closing bracket is two behind the opening one
                    step = _IN_KEY if c == 0x7B else _IN_VALUE
                continue
            begin = at
            stop = np.int64(-1)
            if c == 0x22:
                begin = at + 1
                stop = close_text(buf, begin, end)
                at = stop + 1
            else:
                stop = skip_word(buf, at, end)
                at = stop
            if stop < 0:
                return NOT_JSON
            if entry >= 0:
                if listing == depth:
                    spans[XFF, 1] = stop - spans[XFF, 0]
                elif c == 0x22 or c == 0x2D or is_digit(c):
                    kept = keep_value(buf, begin, stop, key_at, keys, entry, spans, numbers, ranks)
                    of_list = stack[depth - 1] & 1 != 0 and keys[entry, SLOT] == XFF
                    if kept and of_list and keys[entry, KIND] == AS_TEXT:
                        listing = depth
                elif keys[entry, KIND] == AS_TEXT:
                    keep_nothing(spans, keys[entry, SLOT])
        else:
            inside_list = stack[depth - 1] & 1 != 0
            if c == 0x2C:
                at += 1
                entry = stack[depth - 1] >> 1 if inside_list else np.int64(-1)
                step = _IN_VALUE if inside_list else _IN_KEY
                continue
            if c != (0x5D if inside_list else 0x7D):
                return NOT_JSON
            if listing == depth:
                listing = np.int64(-1)
            at += 1
            depth -= 1
            if depth == 0:
                if skip_blanks(buf, at, end) != end:
                    return NOT_JSON
                return GOOD if ranks[COUNT_OF_SPANS + TIME] != _UNRANKED else BAD_TIME


@inlined
def keep_nothing(spans, slot):
    """Mark the field as present, without a text."""
    spans[slot, 1] = max(spans[slot, 1], NO_TEXT)


@part
def keep_value(buf, at, end, key_at, keys, entry, spans, numbers, ranks):
    """Keep the value in `[at, end)` if it fits its key and beats the one there; return whether it did."""
    kind, slot, rank = keys[entry, KIND], keys[entry, SLOT], keys[entry, RANK]
    if kind == NOTHING:
        return False
    if kind == AS_TEXT:
        if rank >= ranks[slot] or (end == at and slot != REQUEST and slot != TARGET):
            keep_nothing(spans, slot)
            return False
        spans[slot, 0], spans[slot, 1] = at, end - at
        ranks[slot] = rank
        return True
    place = COUNT_OF_SPANS + slot
    if rank >= ranks[place]:
        return False
    fits = False
    value = np.int64(0)
    if kind == AS_TIME:
        if end - at >= 2 and buf[at] == 0x5B and buf[end - 1] == 0x5D:
            at += 1
            end -= 1
        fits, value, stop = read_time(buf, at, end)
        fits = fits and stop == end
        slot = TIME
    elif kind == AS_STATUS:
        fits = end - at == 3 and is_digit(buf[at]) and is_digit(buf[at + 1]) and is_digit(buf[at + 2])
        if fits:
            value = (
                np.int64(buf[at]) * 100 + np.int64(buf[at + 1]) * 10 + np.int64(buf[at + 2])
            ) - 0x30 * 111
        slot = STATUS
    else:
        fits, value = read_amount(buf, at, end, key_at, keys[entry, SCALE], kind == AS_LATENCY)
        slot = LATENCY if kind == AS_LATENCY else SIZE
    if fits:
        numbers[slot] = value
        ranks[place] = rank
    return fits


@inlined
def unit_at(buf, at, end):
    """Return the nanoseconds of `s`, `ms`, `us`, `µs` or `ns`, to the end; 0 for anything else."""
    if end - at < 1 or end - at > 3 or buf[end - 1] != 0x73:
        return np.int64(0)
    if end - at == 1:
        return np.int64(_NS_PER_S)
    c = buf[at]
    if end - at == 3:
        return np.int64(1_000) if c == 0xC2 and buf[at + 1] == 0xB5 else np.int64(0)
    if c == 0x6D:
        return np.int64(_NS_PER_MS)
    return np.int64(1_000) if c == 0x75 else np.int64(c == 0x6E)


@inlined
def read_amount(buf, at, end, key_at, scale, is_latency):
    """Read a number of 0 or greater, maybe with a unit of time, to the end; return (fits, value).

    The value is rounded, because 65.014 ms as a binary fraction are a little less than 65014 microseconds.
    """
    if end <= at or buf[at] == 0x2D:
        return False, np.int64(0)
    kind, stop, digits, power, _, exact = read_number(buf, at, end)
    if kind == NO_NUMBER or not exact or power < -22 or power > 22:
        return False, np.int64(0)
    value = make_real(digits, power, False)
    if is_latency:
        if scale == GUESS:
            if 0x41 <= buf[key_at] <= 0x5A:
                scale = np.int64(1)
            else:
                scale = np.int64(_NS_PER_MS) if power == 0 else np.int64(_NS_PER_S)
        unit = unit_at(buf, stop, end)
        if unit > 0:
            scale = unit
            stop = end
        value = value * np.float64(scale) / 1000.0
    return stop == end and value < _MOST_MICROS, np.int64(np.rint(min(value, _MOST_MICROS)))
