"""The kernel that numbers equal texts.

Rules: no position is trusted: a text that is not inside its buffer counts as missing. A text is searched for
in at most `LONGEST_SEARCH` slots, then it stays alone. That bounds what maliciously chosen texts can cost, at
the price of the work that such a text would have shared.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.kernels.compilation import kernel, load_word, part
from penstock.kernels.text_scanning import same_bytes

#: How many slots are tried for a text before it stays alone.
LONGEST_SEARCH = 32

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
#: The hash of a text that is not there.
NO_TEXT = np.uint64(0x5851F42D4C957F2D)


@part
def hash_bytes(buf, at, size):
    """Return a 64-bit hash of a text inside `buf`; the same in every process and on every machine."""
    state = np.uint64(size) * _SECOND
    end = at + size
    if size < 8:
        word = np.uint64(0)
        for i in range(at, end):
            word = word << np.uint64(8) | np.uint64(buf[i])
        state = (state ^ word) * _PRIME
    else:
        while end - at >= 8:
            state = (state ^ load_word(buf, at)) * _PRIME
            state ^= state >> np.uint64(29)
            at += 8
        if at < end:
            state = (state ^ load_word(buf, end - 8)) * _PRIME
    state = (state ^ state >> np.uint64(32)) * _SECOND
    return state ^ state >> np.uint64(32)


@kernel
def group_texts(data, starts, lengths, is_json, table, numbers, firsts, hashes):
    """Number equal texts; return how many numbers there are.

    `numbers` gets the number of each row's text (-1: none); `firsts` and `hashes` get the first row and the
    hash of each number. The size of `table` is a power of two; all its slots are -1. A text that equals the
    one of the row before is not hashed: this is so for most methods and protocols.
    """
    mask = np.uint64(table.size - 1)
    count = 0
    for row in range(starts.size):
        at, size = np.int64(starts[row]), np.int64(lengths[row])
        if at < 0 or size < 0 or size > data.size - at:
            numbers[row] = -1
            continue
        before = row - 1
        if (
            row > 0
            and numbers[before] >= 0
            and lengths[before] == size
            and is_json[before] == is_json[row]
            and same_bytes(data, np.int64(starts[before]), data, at, size)
        ):
            numbers[row] = numbers[before]
            continue
        h = hash_bytes(data, at, size)
        slot = h & mask
        group = -1
        for _ in range(LONGEST_SEARCH):
            other = table[slot]
            if other < 0:
                table[slot] = count
                break
            first = firsts[other]
            if (
                hashes[other] == h
                and lengths[first] == size
                and is_json[first] == is_json[row]
                and same_bytes(data, np.int64(starts[first]), data, at, size)
            ):
                group = other
                break
            slot = (slot + np.uint64(1)) & mask
        if group < 0:
            group = count
            firsts[count] = row
            hashes[count] = h
            count += 1
        numbers[row] = group
    return count
