"""The steps that the decoding kernel is made of, each one pass over a region of the buffer, in place.

Rule: a step gets `at` and `end`, looks at no byte outside of them and writes no further than it has read. It
returns the new end and what it has met: traits that a rule may ask for, and signs that later steps handle.
A step skips a region without its sign, so an ordinary target costs one pass.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.detection.rule_set import TRAITS
from penstock.kernels.compilation import inlined, part
from penstock.kernels.text_scanning import put_character

BAD_ESCAPE = 1 << TRAITS.index("bad_escape")
COMMENT = 1 << TRAITS.index("comment")
CONTROL = 1 << TRAITS.index("control")
DOUBLE = 1 << TRAITS.index("double")
ENTITY = 1 << TRAITS.index("entity")
NUL = 1 << TRAITS.index("nul")
OVERLONG = 1 << TRAITS.index("overlong")
UNICODE_ESCAPE = 1 << TRAITS.index("unicode_escape")

# What may begin with a byte. These bits are above those of the traits, in the same number.
PERCENT_SIGN, PLUS_SIGN, AMPERSAND_SIGN, STAR_SIGN, BACKSLASH_SIGN, BLANK_SIGN, HIGH_SIGN, QUOTE_SIGN = (
    1 << (16 + i) for i in range(8)
)
SIGNS = np.zeros(256, np.int32)
for _signs, _mark in (
    (b"%", PERCENT_SIGN),
    (b"+", PLUS_SIGN),
    (b"&", AMPERSAND_SIGN),
    (b"*", STAR_SIGN),
    (b"\\", BACKSLASH_SIGN | QUOTE_SIGN),
    (b" \t\n\v\f\r", BLANK_SIGN),
    (b"'\"^$", QUOTE_SIGN),
    (bytes(range(0x80, 0x100)), HIGH_SIGN),
):
    for _sign in _signs:
        SIGNS[_sign] |= _mark
for _sign in (*range(1, 9), *range(0x0E, 0x20), 0x7F):
    SIGNS[_sign] |= CONTROL
HEX = np.full(256, -1, np.int64)
for _digit, _sign in enumerate(b"0123456789abcdef"):
    HEX[_sign] = _digit
for _digit, _sign in enumerate(b"ABCDEF"):
    HEX[_sign] = 10 + _digit
LOWER = np.arange(256, dtype=np.uint8)
LOWER[0x41:0x5B] += 0x20

#: Entities by name: up to eight letters as a number, and the character.
_NAMED_SIGNS = """amp & apos ' ast * bsol \\ colon : comma , commat @ dollar $ equals = excl ! grave ` gt >
    lbrace { lbrack [ lcub { lpar ( lsqb [ lt < num # percnt % period . plus + quest ? quot " rbrace }
    rbrack ] rcub } rpar ) rsqb ] semi ; sol /"""
ENTITIES = {"nbsp": " ", "newline": "\n", "tab": "\t"}
ENTITIES |= dict(zip(_NAMED_SIGNS.split()[::2], _NAMED_SIGNS.split()[1::2], strict=True))
_NAMES = np.array([int.from_bytes(name.encode(), "little") for name in ENTITIES], np.uint64)
_NAMED = np.array([ord(character) for character in ENTITIES.values()], np.int64)
_LONGEST_NAME = 8


@inlined
def read_hex(buf, at, end, digits):
    """Return this many hexadecimal digits as a number; -1 if they are missing."""
    if end - at < digits:
        return np.int64(-1)
    value = np.int64(0)
    for i in range(digits):
        digit = HEX[buf[at + i]]
        if digit < 0:
            return np.int64(-1)
        value = value * 16 + digit
    return value


@part
def put(out, to, code):
    """Write a character in lower case, a full-width one as ASCII; return (the end, what it is)."""
    if 0xFF01 <= code <= 0xFF5E:
        code -= 0xFEE0
    elif code == 0xA0:
        code = np.int64(0x20)
    if code == 0:
        return to, np.int64(NUL)
    if code < 0x80:
        out[to] = LOWER[code]
        return to + 1, np.int64(SIGNS[code])
    return put_character(out, to, code), np.int64(HIGH_SIGN)


@part
def fold_unicode(out, at, end):
    """Write overlong characters, full-width letters and wide blanks as ASCII."""
    to, i = at, at
    seen = np.int64(0)
    while i < end:
        c = np.int64(out[i])
        i += 1
        if c < 0x80:
            out[to] = c
            to += 1
            continue
        more = 1 if 0xC0 <= c <= 0xDF else (2 if c <= 0xEF else (3 if c <= 0xF7 else 0))
        if c < 0xC0:
            more = 0
        code = np.int64(-1)
        if more > 0 and end - i >= more:
            code = c & (0x7F >> (more + 1))
            for k in range(more):
                follower = np.int64(out[i + k])
                if follower & 0xC0 != 0x80:
                    code = np.int64(-1)
                    break
                code = code << 6 | (follower & 0x3F)
        if code < 0:
            if c == 0xA0:  # Latin-1; some databases read it as a blank
                c = np.int64(0x20)
                seen |= BLANK_SIGN
            out[to] = c
            to += 1
            continue
        if code < 0x80:
            seen |= OVERLONG
        if code < 0x80 or code == 0xA0 or 0xFF01 <= code <= 0xFF5E:
            to, met = put(out, to, code)
            seen |= met
        else:
            out[to] = c
            for k in range(more):
                out[to + 1 + k] = out[i + k]
            to += more + 1
        i += more
    return to, seen


@part
def undo_entities(out, at, end):
    to, i = at, at
    seen = np.int64(0)
    while i < end:
        c = np.int64(out[i])
        i += 1
        if c == 0x26 and i < end:
            code, after = read_entity(out, i, end)
            if code >= 0:
                to, met = put(out, to, code)
                seen |= met | ENTITY
                i = after
                continue
        out[to] = c
        to += 1
    return to, seen


@part
def read_entity(out, at, end):
    """Read what is behind `&`; return (the character or -1, the position behind it). Numbers need no `;`."""
    code = np.int64(0)
    if out[at] == 0x23:
        i = at + 1
        digits = 0
        hexadecimal = i < end and out[i] == 0x78
        if hexadecimal:
            i += 1
        while i < end and digits < 8:
            digit = HEX[out[i]]
            if digit < 0 or (digit > 9 and not hexadecimal):
                break
            code = code * (16 if hexadecimal else 10) + digit
            digits += 1
            i += 1
        if digits == 0 or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return np.int64(-1), at
        if i < end and out[i] == 0x3B:
            i += 1
        return code, i
    name = np.uint64(0)
    letters = 0
    i = at
    while i < end and letters < _LONGEST_NAME and 0x61 <= out[i] <= 0x7A:
        name |= np.uint64(out[i]) << np.uint64(8 * letters)
        letters += 1
        i += 1
    if letters == 0 or i >= end or out[i] != 0x3B:
        return np.int64(-1), at
    for k in range(_NAMES.size):
        if _NAMES[k] == name:
            return _NAMED[k], i + 1
    return np.int64(-1), at


@part
def undo_script_escapes(out, at, end):
    r"""Undo `\x41`, `\u0041`, `\u{41}` and `\101`."""
    to, i = at, at
    seen = np.int64(0)
    while i < end:
        c = np.int64(out[i])
        i += 1
        if c == 0x5C and i < end:
            e = np.int64(out[i])
            code = np.int64(-1)
            after = i
            if e == 0x78:
                code = read_hex(out, i + 1, end, 2)
                after = i + 3
            elif e == 0x75 and end - i >= 2 and out[i + 1] == 0x7B:
                code, after = read_braced(out, i + 2, end)
            elif e == 0x75:
                code = read_hex(out, i + 1, end, 4)
                after = i + 5
            elif 0x30 <= e <= 0x33 and end - i >= 3:
                second, third = np.int64(out[i + 1]) - 0x30, np.int64(out[i + 2]) - 0x30
                if 0 <= second <= 7 and 0 <= third <= 7:
                    code = (e - 0x30) * 64 + second * 8 + third
                    after = i + 3
            if code >= 0 and not (0xD800 <= code <= 0xDFFF):
                to, met = put(out, to, code)
                seen |= met
                if e == 0x75:
                    seen |= UNICODE_ESCAPE
                i = after
                continue
        out[to] = c
        to += 1
    return to, seen


@part
def read_braced(out, at, end):
    """Read `41}`; return (the character or -1, the position behind the brace)."""
    code = np.int64(0)
    i = at
    while i < end and i - at < 6 and HEX[out[i]] >= 0:
        code = code * 16 + HEX[out[i]]
        i += 1
    if i == at or i >= end or out[i] != 0x7D or code > 0x10FFFF:
        return np.int64(-1), at
    return code, i + 1


@part
def drop_comments(out, at, end):
    """Replace comments by a blank; what MySQL runs inside of them stays."""
    to, i = at, at
    seen = np.int64(0)
    kept_open = False
    closed_at = at  # the next `*/` is not before here; `end` when there is none
    while i < end:
        c = out[i]
        if c == 0x2F and end - i >= 2 and out[i + 1] == 0x2A:
            if end - i >= 3 and out[i + 2] == 0x21:
                kept_open = True
                i += 3
                while i < end and 0x30 <= out[i] <= 0x39:
                    i += 1
                out[to] = 0x20
                to += 1
                seen |= COMMENT | BLANK_SIGN
                continue
            closed_at = max(closed_at, i + 2)
            while closed_at < end and not (
                out[closed_at] == 0x2A and end - closed_at >= 2 and out[closed_at + 1] == 0x2F
            ):
                closed_at += 1
            if closed_at < end:
                i = closed_at + 2
                out[to] = 0x20
                to += 1
                seen |= COMMENT | BLANK_SIGN
                continue
        elif kept_open and c == 0x2A and end - i >= 2 and out[i + 1] == 0x2F:
            kept_open = False
            out[to] = 0x20
            to += 1
            i += 2
            continue
        out[to] = c
        to += 1
        i += 1
    return to, seen


@part
def fold_blanks(out, at, end):
    """Make a run of blanks one blank, or a line break if it holds one."""
    to, i = at, at
    while i < end:
        c = out[i]
        if SIGNS[c] & BLANK_SIGN == 0:
            out[to] = c
            to += 1
            i += 1
            continue
        blank = 0x20
        while i < end and SIGNS[out[i]] & BLANK_SIGN != 0:
            if out[i] == 0x0A or out[i] == 0x0D:
                blank = 0x0A
            i += 1
        out[to] = blank
        to += 1
    return to


@part
def squeeze_path(out, at, end):
    r"""Make `\` a `/`, and `//` and `/./` one `/`; `://` stays."""
    to, i = at, at
    while i < end:
        c = out[i]
        if c == 0x5C:
            c = np.uint8(0x2F)
        if c == 0x2F and to > at and out[to - 1] == 0x2F and not (to - 1 > at and out[to - 2] == 0x3A):
            i += 1
            continue
        if c == 0x2F and to - at >= 2 and out[to - 1] == 0x2E and out[to - 2] == 0x2F:
            to -= 1
            i += 1
            continue
        out[to] = c
        to += 1
        i += 1
    return to


@part
def write_bare(out, at, end, to):
    """Write the text again behind itself without what shells ignore; adjacent blanks become one."""
    first = to
    i = at
    while i < end:
        c = out[i]
        i += 1
        if c == 0x27 or c == 0x22 or c == 0x5C or c == 0x5E:
            continue
        if c == 0x24 and i < end:
            e = out[i]
            if e == 0x40 or e == 0x2A or 0x30 <= e <= 0x39:
                i += 1
                continue
            braced = e == 0x7B
            name = i + 1 if braced else i
            if end - name >= 3 and out[name] == 0x69 and out[name + 1] == 0x66 and out[name + 2] == 0x73:
                after = name + 3
                if not braced or (after < end and out[after] == 0x7D):
                    c = np.uint8(0x20)
                    i = after + 1 if braced else after
        if SIGNS[c] & BLANK_SIGN != 0 and to > first and SIGNS[out[to - 1]] & BLANK_SIGN != 0:
            continue
        out[to] = c
        to += 1
    return to
