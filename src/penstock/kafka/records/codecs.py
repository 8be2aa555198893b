"""The four compressions of a Kafka record batch, in both directions.

Rule: the room for the output is known before a byte is written, and it never exceeds `limit`. Each
format tells an upper bound without being decompressed (snappy its length, gzip its trailer, lz4 and
zstd the number of their blocks), so nothing is decompressed twice and a bomb of a few bytes cannot
take the machine's memory. What a frame claims is used for room only; what comes out is what counts.

Why not `cramjam.lz4.decompress(data)`: it grows its output without a limit, and a fresh buffer for each
batch costs more in page faults than the decompression itself. A `Decompressor` keeps one. Both ways
release the interpreter lock, so a prefetch thread goes on receiving.

Java writes snappy as a stream of length-prefixed blocks with a header of its own and reads lz4 frames of
independent blocks only; `compress` writes what Java reads.

>>> bytes(Decompressor().decompress(ZSTD, compress(ZSTD, b"water" * 3)))
b'waterwaterwater'
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt

from penstock.core.errors import CorruptBatchError

Octets: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: One batch never becomes more than this.
DEFAULT_LIMIT_BYTES = 1 << 30
#: Output beyond this must also be at most `MAX_RATIO` times its input: a 128 MiB batch of zeros may be
#: an odd message, a gigabyte out of a few kilobytes is an attack.
RATIO_FREE_BYTES = 128 << 20
MAX_RATIO = 1_000
#: A bigger output buffer is given back after use, so that one giant batch does not stay in memory.
KEPT_BYTES = 64 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_LZ4_MAGIC = 0x184D2204
# Version 1, independent blocks, no checksums; blocks of 64 KiB; the header's check byte.
_LZ4_HEADER = struct.pack("<I", _LZ4_MAGIC) + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 << 10
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES = 128 << 10
# Deflate cannot expand by more than 258 bytes for two bits.
_GZIP_MAX_RATIO = 1_032
_NO_ROOM = "failed to write whole buffer"


class Decompressor:
    """Decompresses into a buffer of its own. The array returned is valid until the next call."""

    def __init__(self, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._scratch = np.empty(0, np.uint8)

    def decompress(self, codec: int, data: Octets) -> npt.NDArray[np.uint8]:
        """The plain bytes of `data`; codec 0 is a view of `data` itself."""
        if codec == NONE:
            return np.frombuffer(data, np.uint8)
        source = _view(data)
        if not NONE < codec <= ZSTD:
            raise CorruptBatchError(
                "UNKNOWN_CODEC",
                f"The batch says compression codec {codec}; Kafka knows 0 to 4.",
                hint="The batch is damaged or written by a newer client; skip it or upgrade Penstock.",
                facts={"codec": codec},
            )
        if not len(source):  # a batch that compaction emptied may keep its codec
            return np.empty(0, np.uint8)
        try:
            if codec == SNAPPY:
                return self._decompress_snappy(source)
            if codec == GZIP:
                return self._decompress_gzip(source)
            room = _bound_lz4(source) if codec == LZ4 else _bound_zstd(source)
            library = cramjam.lz4 if codec == LZ4 else cramjam.zstd
            return self._fill(library, codec, source, room)
        except (cramjam.DecompressionError, struct.error) as error:
            raise _damaged(codec, source, str(error)) from error

    def _decompress_gzip(self, source: memoryview) -> npt.NDArray[np.uint8]:
        if len(source) < 18:
            raise _damaged(GZIP, source, "shorter than a gzip header and trailer")
        # The trailer holds the size of the last member; Kafka's clients write one. Others may write
        # more: then the trailer is too small, and the general bound is tried.
        claimed = int.from_bytes(bytes(source[-4:]), "little")
        general = len(source) * _GZIP_MAX_RATIO
        try:
            return self._fill(cramjam.gzip, GZIP, source, min(claimed, general))
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
        return self._fill(cramjam.gzip, GZIP, source, general)

    def _decompress_snappy(self, source: memoryview) -> npt.NDArray[np.uint8]:
        blocks = _split_snappy(source)
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        allowed = self._allow(len(source))
        if total > allowed:
            raise _too_large(SNAPPY, source, allowed)
        out = self._room(total)
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                at += cramjam.snappy.decompress_raw_into(block, out[at : at + size].data)
        return out[:at]

    def _fill(self, library: Any, codec: int, source: memoryview, bound: int) -> npt.NDArray[np.uint8]:
        """Decompress into `bound` bytes or as many as allowed; too little room by limit is refused."""
        allowed = self._allow(len(source))
        out = self._room(min(bound, allowed))
        try:
            size = library.decompress_into(source, out.data)
        except cramjam.DecompressionError as error:
            if bound > allowed and _NO_ROOM in str(error):
                raise _too_large(codec, source, allowed) from error
            raise
        return out[:size]

    def _allow(self, input_bytes: int) -> int:
        return min(self._limit_bytes, max(RATIO_FREE_BYTES, input_bytes * MAX_RATIO))

    def _room(self, size: int) -> npt.NDArray[np.uint8]:
        if self._scratch.size >= size:
            return self._scratch[:size]
        # A little more than asked, so that slowly growing batches do not each take a new buffer.
        fresh = np.empty(max(size + size // 4, 1 << 16) if size <= KEPT_BYTES else size, np.uint8)
        if size <= KEPT_BYTES:
            self._scratch = fresh
        return fresh[:size]


def decompress(codec: int, data: Octets, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> npt.NDArray[np.uint8]:
    """The plain bytes of one compressed block in a buffer of their own."""
    return Decompressor(limit_bytes=limit_bytes).decompress(codec, data)


def compress(codec: int, data: Octets, level: int | None = None) -> bytes:
    """Compress as Java's clients do; `level` is for gzip and zstd, whose default it is otherwise."""
    view = _view(data)
    if codec == NONE:
        return bytes(view)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(view, 6 if level is None else level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(view, 3 if level is None else level))
    if codec == SNAPPY:
        parts = [_XERIAL_HEADER]
        for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
            parts += (struct.pack(">i", len(block)), block)
        return b"".join(parts)
    if codec == LZ4:
        parts = [_LZ4_HEADER]
        for at in range(0, len(view), _LZ4_BLOCK_BYTES):
            plain = view[at : at + _LZ4_BLOCK_BYTES]
            block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
            if len(block) < len(plain):
                parts += (struct.pack("<I", len(block)), block)
            else:  # the high bit says: stored as it is
                parts += (struct.pack("<I", len(plain) | 0x8000_0000), bytes(plain))
        parts.append(b"\0\0\0\0")
        return b"".join(parts)
    raise ValueError(f"there is no compression codec {codec}; 0 to 4 exist")


def _view(data: Octets) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def _split_snappy(source: memoryview) -> list[memoryview]:
    """The raw snappy blocks of either framing."""
    if bytes(source[:8]) != _XERIAL_MAGIC:
        return [source]
    blocks, at = [], 0
    while at < len(source):
        if bytes(source[at : at + 8]) == _XERIAL_MAGIC:  # streams may be concatenated
            at += len(_XERIAL_HEADER)
            if at > len(source):
                raise _damaged(SNAPPY, source, "the stream header is cut off")
            continue
        if at + 4 > len(source):
            raise _damaged(SNAPPY, source, "a block length is cut off")
        size = int.from_bytes(bytes(source[at : at + 4]), "big", signed=True)
        at += 4
        if not 0 < size <= len(source) - at:
            raise _damaged(SNAPPY, source, f"a block claims {size} bytes, {len(source) - at} are left")
        blocks.append(source[at : at + size])
        at += size
    return blocks


def _bound_lz4(source: memoryview) -> int:
    """How much the frames can become at most: the number of their blocks times the largest block."""
    at, bound = 0, 0
    while at + 7 <= len(source):
        flags, sizes = struct.unpack_from("<4xBB", source, at)
        block_bytes = 1 << (8 + 2 * (sizes >> 4 & 7))
        at += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        checksum_bytes = 4 if flags & 0x10 else 0
        while at + 4 <= len(source):
            (size,) = struct.unpack_from("<I", source, at)
            at += 4
            if size == 0:  # the end mark; another frame may follow
                break
            bound += block_bytes
            at += (size & 0x7FFF_FFFF) + checksum_bytes
        at += 4 if flags & 0x04 else 0
    return bound


def _bound_zstd(source: memoryview) -> int:
    """How much the frames can become at most, from the headers of their blocks."""
    at, bound = 0, 0
    while at + 5 <= len(source):
        magic, descriptor = struct.unpack_from("<IB", source, at)
        if magic & 0xFFFF_FFF0 == 0x184D_2A50:  # a frame to be skipped
            at += 8 + int.from_bytes(bytes(source[at + 4 : at + 8]), "little")
            continue
        if magic != _ZSTD_MAGIC:
            return bound
        single = descriptor >> 5 & 1
        content_bytes = (single, 2, 4, 8)[descriptor >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + content_bytes
        last = False
        while not last and at + 3 <= len(source):
            header = int.from_bytes(bytes(source[at : at + 3]), "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            # Raw and repeated blocks tell their size; a compressed one may become a full block.
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
            at += 3 + (1 if kind == 1 else size)
        at += 4 if descriptor & 4 else 0
    return bound


def _damaged(codec: int, source: memoryview, why: str) -> CorruptBatchError:
    return CorruptBatchError(
        "DECOMPRESSION_FAILED",
        f"{len(source)} bytes of {CODEC_NAMES[codec]} cannot be decompressed: {why}.",
        hint="The batch is damaged; read past it or restore the topic.",
        facts={"codec": CODEC_NAMES[codec], "bytes": len(source)},
    )


def _too_large(codec: int, source: memoryview, allowed: int) -> CorruptBatchError:
    return CorruptBatchError(
        "DECOMPRESSION_LIMIT",
        f"{len(source)} bytes of {CODEC_NAMES[codec]} become more than the allowed {allowed} bytes.",
        hint="This looks like a decompression bomb; read past it, or raise the limit if it is meant.",
        facts={"codec": CODEC_NAMES[codec], "bytes": len(source), "allowed": allowed},
    )
