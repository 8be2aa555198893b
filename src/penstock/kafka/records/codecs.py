"""The four compressions of a Kafka record batch, in both directions.

Rule: the room for the output is known before a byte is written, and it never exceeds `limit`. Each
format gives an upper bound without being decompressed (snappy its length, gzip its trailer, lz4 and
zstd the number of their blocks), so nothing is decompressed twice and a bomb of a few bytes cannot
exhaust the machine's memory. A frame's claims only reserve room; the actual output counts.

Why not `cramjam.lz4.decompress(data)`: it grows its output without a limit, and a fresh buffer for each
batch costs more in page faults than the decompression itself. A `Decompressor` keeps one. Both directions
release the interpreter lock, so other threads of the process can run.

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
import zstandard

from penstock.core.errors import CorruptBatchError
from penstock.kafka.records.compressed_frame_kernel import bound_lz4, bound_zstd

Octets: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: One batch never decompresses to more than this.
DEFAULT_LIMIT_BYTES = 1 << 30
#: Output beyond this must also be at most `MAX_RATIO` times its input: a 128 MiB batch of zeros may be
#: an odd message; a gigabyte from a few kilobytes is an attack.
RATIO_FREE_BYTES = 128 << 20
MAX_RATIO = 1_000
#: A bigger output buffer is freed after use, so that one giant batch does not stay in memory.
KEPT_BYTES = 64 << 20
#: Small batches are decompressed side by side into this much memory: about what stays in the cache.
GROUP_BYTES = 2 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_FIRST_BLOCK = len(_XERIAL_HEADER) + 4
_XERIAL_BLOCK_BYTES = 32 << 10
_LZ4_MAGIC = 0x184D2204
# Version 1, independent blocks, no checksums; blocks of 64 KiB; the header's check byte.
_LZ4_HEADER = struct.pack("<I", _LZ4_MAGIC) + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_END = b"\0\0\0\0"
# Deflate cannot expand by more than 258 bytes for two bits.
_GZIP_MAX_RATIO = 1_032
_NO_ROOM = "failed to write whole buffer"


class Decompressor:
    """Decompresses batches one after the other into its own memory, until `held` is used."""

    def __init__(self, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._scratch = np.empty(0, np.uint8)
        self._zstd = zstandard.ZstdDecompressor()

    def decompress(self, codec: int, data: Octets) -> npt.NDArray[np.uint8]:
        """Return the plain bytes of `data`, valid until the next call; codec 0 gives a view of `data`."""
        if codec == NONE:
            return np.frombuffer(data, np.uint8)
        return self.held(self.append(codec, np.frombuffer(data, np.uint8), 0))

    def append(self, codec: int, source: npt.NDArray[np.uint8], at: int) -> int:
        """Decompress after the first `at` bytes and return the new end, or -1 when there is no room left.

        Many small batches are decompressed into one piece of memory, so that one kernel call decodes
        them all. On -1, use what is held, then append this batch at 0, where there is always room.
        """
        if not NONE < codec <= ZSTD:
            raise CorruptBatchError(
                "UNKNOWN_CODEC",
                f"The batch says compression codec {codec}; Kafka knows 0 to 4.",
                hint="The batch is damaged or written by a newer client; skip it or upgrade Penstock.",
                facts={"codec": codec},
            )
        try:
            if codec == SNAPPY:
                return self._append_snappy(source, at)
            if codec == GZIP:
                return self._append_gzip(source, at)
            if codec == LZ4:
                return self._append_lz4(source, at)
            return self._append_zstd(source, at)
        except cramjam.DecompressionError as error:
            raise _damaged(codec, source.data, str(error)) from error

    def held(self, size: int) -> npt.NDArray[np.uint8]:
        """Return the first `size` decompressed bytes; the next `append` at 0 overwrites them."""
        held = self._scratch[:size]
        if self._scratch.size > KEPT_BYTES:  # the view keeps it for exactly as long as it is needed
            self._scratch = np.empty(0, np.uint8)
        return held

    def _append_gzip(self, source: npt.NDArray[np.uint8], at: int) -> int:
        if source.size < 18:
            raise _damaged(GZIP, source.data, "shorter than a gzip header and trailer")
        # The trailer holds the size of the last member. Kafka's clients write one member; if others write
        # more, the trailer's size is too small, and the general bound is tried.
        claimed = int.from_bytes(source[-4:].tobytes(), "little")
        general = source.size * _GZIP_MAX_RATIO
        try:
            return self._append_framed(cramjam.gzip, GZIP, source, min(claimed, general), at)
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
        return self._append_framed(cramjam.gzip, GZIP, source, general, at)

    def _append_lz4(self, source: npt.NDArray[np.uint8], at: int) -> int:
        # A batch of ordinary size is one block in a frame without options. Decompressing that block alone
        # takes half the time: the library makes a context for every frame. A limit below the size of a block
        # is left to the general path, which can tell "too large" from "damaged".
        view = source.data
        head = bytes(view[: len(_LZ4_HEADER) + 4])
        if (
            head.startswith(_LZ4_HEADER)
            and len(head) == len(_LZ4_HEADER) + 4
            and self._limit_bytes >= _LZ4_BLOCK_BYTES
        ):
            end = len(head) + int.from_bytes(head[-4:], "little")
            if len(head) < end == source.size - 4 and bytes(view[end:]) == _LZ4_END:
                out = self._room(_LZ4_BLOCK_BYTES, at)
                if out is None:
                    return -1
                return at + int(cramjam.lz4.decompress_block_into(view[len(head) : end], out.data))
        return self._append_framed(cramjam.lz4, LZ4, source, bound_lz4(source, 0, source.size), at)

    def _append_snappy(self, source: npt.NDArray[np.uint8], at: int) -> int:
        # A batch of ordinary size is one block in Java's framing; the block is found without building a list.
        view = source.data
        head = bytes(view[:_XERIAL_FIRST_BLOCK])
        if head.startswith(_XERIAL_MAGIC) and 0 < source.size - _XERIAL_FIRST_BLOCK == int.from_bytes(
            head[-4:], "big"
        ):
            block = view[_XERIAL_FIRST_BLOCK:]
            size = cramjam.snappy.decompress_raw_len(block)
            if size and size <= self._limit_bytes and size <= RATIO_FREE_BYTES:
                out = self._room(size, at)
                if out is None:
                    return -1
                return at + int(cramjam.snappy.decompress_raw_into(block, out.data))
        blocks = _split_snappy(view)
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        allowed = self._allow(source.size)
        if total > allowed:
            raise _too_large(SNAPPY, source.data, allowed)
        out = self._room(total, at)
        if out is None:
            return -1
        done = 0
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                done += cramjam.snappy.decompress_raw_into(block, out[done : done + size].data)
        return at + done

    def _append_zstd(self, source: npt.NDArray[np.uint8], at: int) -> int:
        # cramjam makes a new context for every call, which costs as much as decompressing 16 KiB; a kept
        # context does not. But it believes a frame that claims to be empty, makes room for whatever a frame
        # claims, and takes no second frame, so anything unusual is left to cramjam.
        bound = bound_zstd(source, 0, source.size)
        allowed = self._allow(source.size)
        try:
            claimed = zstandard.frame_content_size(source.data)  # -1 when the frame does not say
            if bound > allowed or bound == 0 or claimed == 0 or claimed > bound:
                return self._append_framed(cramjam.zstd, ZSTD, source, bound, at)
            out = self._room(bound, at)
            if out is None:
                return -1
            plain = self._zstd.decompress(source.data, max_output_size=bound, allow_extra_data=False)
        except zstandard.ZstdError:
            return self._append_framed(cramjam.zstd, ZSTD, source, bound, at)
        out[: len(plain)] = np.frombuffer(plain, np.uint8)
        return at + len(plain)

    def _append_framed(
        self, library: Any, codec: int, source: npt.NDArray[np.uint8], bound: int, at: int
    ) -> int:
        """Decompress into `bound` bytes or as many as allowed; raise if the limit leaves too little room."""
        allowed = self._allow(source.size)
        out = self._room(min(bound, allowed), at)
        if out is None:
            return -1
        try:
            return at + int(library.decompress_into(source.data, out.data))
        except cramjam.DecompressionError as error:
            if bound > allowed and _NO_ROOM in str(error):
                raise _too_large(codec, source.data, allowed) from error
            raise

    def _allow(self, input_bytes: int) -> int:
        return min(self._limit_bytes, max(RATIO_FREE_BYTES, input_bytes * MAX_RATIO))

    def _room(self, size: int, at: int) -> npt.NDArray[np.uint8] | None:
        """Return memory for `size` bytes after the first `at`, or None if held bytes would have to move."""
        if self._scratch.size - at < size:
            if at:
                return None
            self._scratch = np.empty(max(size, GROUP_BYTES), np.uint8)
        return self._scratch[at : at + size]


def compress(codec: int, data: Octets, level: int | None = None) -> bytes:
    """Compress as Java's clients do. `level` is for gzip and zstd; None means their default."""
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
            else:  # the high bit means: stored uncompressed
                parts += (struct.pack("<I", len(plain) | 0x8000_0000), bytes(plain))
        parts.append(_LZ4_END)
        return b"".join(parts)
    raise ValueError(f"there is no compression codec {codec}; 0 to 4 exist")


def _view(data: Octets) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def _split_snappy(source: memoryview) -> list[memoryview]:
    """Return the raw snappy blocks of either framing."""
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
        hint="This looks like a decompression bomb; start after it with `startingOffsets`.",
        facts={"codec": CODEC_NAMES[codec], "bytes": len(source), "allowed": allowed},
    )
