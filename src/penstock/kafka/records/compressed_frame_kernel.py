"""Kernels that read from its frame headers how large a compressed block can become at most.

Rule: a frame's claims reserve room and are never believed: the decompressor gets exactly that room and
fails if more comes out. Nothing is decompressed twice, and the room is known before a byte is written.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.kernels.compilation import inlined, kernel

_ZSTD_BLOCK_BYTES = 128 << 10


@inlined
def little_endian(buf, at, size):
    """Return an unsigned little-endian number; the caller has checked the bounds."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buf[at + i]) << np.int64(8 * i)
    return value


@kernel
def bound_lz4(buf, at, end):
    """Return the number of blocks times the size of the largest block."""
    bound = np.int64(0)
    while at + 7 <= end:
        flags, sizes = buf[at + 4], buf[at + 5]
        block_bytes = np.int64(1) << (8 + 2 * (np.int64(sizes) >> 4 & 7))
        at += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        checksum_bytes = 4 if flags & 0x10 else 0
        while at + 4 <= end:
            size = little_endian(buf, at, 4)
            at += 4
            if size == 0:  # the end mark; another frame may follow
                break
            bound += block_bytes
            at += (size & 0x7FFF_FFFF) + checksum_bytes
        at += 4 if flags & 0x04 else 0
    return bound


@kernel
def bound_zstd(buf, at, end):
    """Return the sum of the blocks: raw and repeated ones state their size, compressed ones count as full."""
    bound = np.int64(0)
    while at + 5 <= end:
        magic, descriptor = little_endian(buf, at, 4), np.int64(buf[at + 4])
        if magic & 0xFFFF_FFF0 == 0x184D_2A50:  # a frame to be skipped
            if at + 8 > end:
                return bound
            at += 8 + little_endian(buf, at + 4, 4)
            continue
        if magic != 0xFD2F_B528:
            return bound
        single = descriptor >> 5 & 1
        kind = descriptor >> 6
        content_bytes = single if kind == 0 else 1 << kind
        identity = descriptor & 3
        at += 5 + (1 - single) + (4 if identity == 3 else identity) + content_bytes
        last = False
        while not last and at + 3 <= end:
            header = little_endian(buf, at, 3)
            last, block, size = (header & 1) == 1, header >> 1 & 3, header >> 3
            bound += _ZSTD_BLOCK_BYTES if block == 2 else size
            at += 3 + (1 if block == 1 else size)
        at += 4 if descriptor & 4 else 0
    return bound
