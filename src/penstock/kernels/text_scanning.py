"""Scans bytes of text for the kernels: UTF-8, JSON strings and their escapes, base64.

Rule: each function gets `end`, reads no byte at or after it, and returns a negative position for invalid
text. Strings are scanned eight bytes at a time while they hold nothing special.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.kernels.compilation import inlined, load_word, part

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_BLANKS = np.uint64(0x2020202020202020)

#: What `unescape` returns instead of a size, for an escape that JSON does not have and for half a surrogate
#: pair.
NO_TEXT, NO_CHARACTER = -1, -2


@inlined
def same_bytes(buf, at, other, other_at, size):
    """Return whether two texts of one size are the same; the caller has checked that both are there."""
    while size >= 8:
        if load_word(buf, at) != load_word(other, other_at):
            return False
        at += 8
        other_at += 8
        size -= 8
    for i in range(size):  # noqa: SIM110  (numba has no generators)
        if buf[at + i] != other[other_at + i]:
            return False
    return True


@part
def utf8_step(buf, at, end):
    """Return the position after one character that is not ASCII, or -1 if it is not UTF-8."""
    lead = np.int64(buf[at])
    if lead < 0xC2 or lead > 0xF4:
        return np.int64(-1)
    more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
    if more >= end - at:
        return np.int64(-1)
    second = np.int64(buf[at + 1])
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0  # shorter forms exist
    elif lead == 0xED:
        high = 0x9F  # halves of surrogate pairs
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F  # beyond Unicode
    if second < low or second > high:
        return np.int64(-1)
    for i in range(2, more + 1):
        if np.int64(buf[at + i]) & 0xC0 != 0x80:
            return np.int64(-1)
    return at + more + 1


@part
def is_utf8(buf, at, end):
    """Return whether all bytes from `at` to `end` are UTF-8."""
    while at < end:
        while end - at >= 8 and load_word(buf, at) & _TOPS == 0:
            at += 8
        while at < end and buf[at] < 0x80:
            at += 1
        if at < end:
            at = utf8_step(buf, at, end)
            if at < 0:
                return False
    return True


@part
def skip_blanks(buf, at, end):
    while at < end:
        c = buf[at]
        if c != 0x20 and c != 0x0A and c != 0x0D and c != 0x09:
            break
        at += 1
    return at


@part
def close_string(buf, at, end):
    """Return the end of a string, from after its quote: (closing quote or -1, whether there are escapes)."""
    escapes = False
    while True:
        while end - at >= 8:
            word = load_word(buf, at)
            quotes = word ^ _QUOTES
            slashes = word ^ _SLASHES
            special = (
                ((quotes - _ONES) & ~quotes)
                | ((slashes - _ONES) & ~slashes)
                | ((word - _BLANKS) & ~word)
                | word
            )
            if special & _TOPS != 0:
                break
            at += 8
        while at < end:
            c = buf[at]
            if c == 0x22 or c == 0x5C or c < 0x20 or c >= 0x80:
                break
            at += 1
        if at >= end:
            return np.int64(-1), escapes
        c = buf[at]
        if c == 0x22:
            return at, escapes
        if c == 0x5C:
            escapes = True
            at += 2  # the escape is checked when it is unescaped
        elif c < 0x20:
            return np.int64(-1), escapes
        else:
            at = utf8_step(buf, at, end)
            if at < 0:
                return np.int64(-1), escapes


@part
def hex4(buf, at, end):
    """Return four hexadecimal digits as a number, or -1 if they are not there."""
    if end - at < 4:
        return np.int64(-1)
    value = np.int64(0)
    for i in range(4):
        c = np.int64(buf[at + i])
        if 0x30 <= c <= 0x39:
            digit = c - 0x30
        elif 0x41 <= c <= 0x46:
            digit = c - 0x37
        elif 0x61 <= c <= 0x66:
            digit = c - 0x57
        else:
            return np.int64(-1)
        value = value * 16 + digit
    return value


@part
def unescape(target, to, room, buf, at, end):
    """Write the string's characters from `to` on; return how many bytes, or NO_TEXT or NO_CHARACTER.

    It never writes more bytes than it reads, so a `room` of that size is enough; it is checked anyway.
    """
    begin = to
    limit = to + room
    whole = True
    while at < end:
        c = np.int64(buf[at])
        if limit - to < 4 and limit - to < end - at:
            return np.int64(NO_TEXT)
        if c != 0x5C:
            target[to] = c
            to += 1
            at += 1
            continue
        if end - at < 2:
            return np.int64(NO_TEXT)
        e = np.int64(buf[at + 1])
        at += 2
        if e == 0x75:  # u
            code = hex4(buf, at, end)
            if code < 0:
                return np.int64(NO_TEXT)
            at += 4
            if 0xD800 <= code < 0xDC00:
                low = np.int64(-1)
                if end - at >= 6 and buf[at] == 0x5C and buf[at + 1] == 0x75:
                    low = hex4(buf, at + 2, end)
                if 0xDC00 <= low <= 0xDFFF:
                    at += 6
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                else:
                    whole = False
            elif 0xDC00 <= code <= 0xDFFF:
                whole = False
            to = put_character(target, to, code)
            continue
        if e == 0x22 or e == 0x5C or e == 0x2F:
            target[to] = e
        elif e == 0x6E:
            target[to] = 0x0A
        elif e == 0x74:
            target[to] = 0x09
        elif e == 0x72:
            target[to] = 0x0D
        elif e == 0x62:
            target[to] = 0x08
        elif e == 0x66:
            target[to] = 0x0C
        else:
            return np.int64(NO_TEXT)
        to += 1
    return to - begin if whole else np.int64(NO_CHARACTER)


@part
def put_character(target, to, code):
    """Write one character as UTF-8 and return the position after it; there must be room for four bytes."""
    if code < 0x80:
        target[to] = code
        return to + 1
    if code < 0x800:
        target[to] = 0xC0 | (code >> 6)
        target[to + 1] = 0x80 | (code & 63)
        return to + 2
    if code < 0x10000:
        target[to] = 0xE0 | (code >> 12)
        target[to + 1] = 0x80 | ((code >> 6) & 63)
        target[to + 2] = 0x80 | (code & 63)
        return to + 3
    target[to] = 0xF0 | (code >> 18)
    target[to + 1] = 0x80 | ((code >> 12) & 63)
    target[to + 2] = 0x80 | ((code >> 6) & 63)
    target[to + 3] = 0x80 | (code & 63)
    return to + 4


@part
def base64_digit(c):
    if 0x41 <= c <= 0x5A:
        return c - 0x41
    if 0x61 <= c <= 0x7A:
        return c - 0x47
    if 0x30 <= c <= 0x39:
        return c + 4
    if c == 0x2B:
        return np.int64(62)
    return np.int64(63) if c == 0x2F else np.int64(-1)


@part
def decode_base64(target, to, room, buf, at, end):
    """Write the decoded bytes from `to` on; return how many, or -1 if it is not base64 with its padding.

    Blanks and line ends may separate groups of four, as in Spark.
    """
    if (end - at) // 4 * 3 > room:
        return np.int64(-1)
    begin = to
    while end > at and buf[end - 1] <= 0x20:
        end -= 1
    while at < end:
        if buf[at] <= 0x20:
            at += 1
            continue
        if end - at < 4:
            return np.int64(-1)
        padding = 0
        if end - at == 4 and buf[end - 1] == 0x3D:
            padding = 2 if buf[end - 2] == 0x3D else 1
        word = np.int64(0)
        for i in range(4 - padding):
            digit = base64_digit(np.int64(buf[at + i]))
            if digit < 0:
                return np.int64(-1)
            word |= digit << (18 - 6 * i)
        for i in range(3 - padding):
            target[to] = (word >> (16 - 8 * i)) & 255
            to += 1
        at += 4
    return to - begin
