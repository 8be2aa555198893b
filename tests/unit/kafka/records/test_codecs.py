"""Compression of record batches: every framing, every limit, and only typed errors from damaged bytes."""

from __future__ import annotations

import gzip
import random
import struct
import time
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.errors import CorruptBatchError
from penstock.kafka.records import codecs
from penstock.kafka.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, Decompressor, compress

TEXT = b"".join(b"%d little fishes swim to the dam, " % number for number in range(20_000))
SIZES = (0, 1, 100, 32_768, 65_536, 65_537, len(TEXT))
ALL = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
COMPRESSING = (GZIP, SNAPPY, LZ4, ZSTD)


def decompress(codec: int, data: codecs.Octets, **limits: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decompress one block with a new decompressor."""
    return Decompressor(**limits).decompress(codec, data)


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_compressed_comes_back(codec: int, size: int) -> None:
    assert bytes(decompress(codec, compress(codec, TEXT[:size]))) == TEXT[:size]


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("plain", [TEXT[:16_384], TEXT[:70_000], random.Random(6).randbytes(5_000)])
def test_batches_are_decompressed_one_behind_the_other_until_there_is_no_room(
    codec: int, plain: bytes
) -> None:
    decompressor = Decompressor()
    source = np.frombuffer(compress(codec, plain), np.uint8)
    ends = [decompressor.append(codec, source, 0)]
    while (end := decompressor.append(codec, source, ends[-1])) >= 0:
        ends.append(end)
    assert ends == [len(plain) * (number + 1) for number in range(len(ends))]
    assert len(ends) > 5
    assert bytes(decompressor.held(ends[-1])) == plain * len(ends)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_that_do_not_compress_come_back(codec: int) -> None:
    noise = random.Random(5).randbytes(200_000)
    assert bytes(decompress(codec, compress(codec, noise))) == noise


def xerial_stream(*blocks: bytes) -> bytes:
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        raw = bytes(cramjam.snappy.compress_raw(block))
        stream += struct.pack(">i", len(raw)) + raw
    return stream


@pytest.mark.parametrize(
    ("codec", "data", "plain"),
    [
        pytest.param(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), TEXT, id="one raw snappy block"),
        pytest.param(SNAPPY, xerial_stream(b"ab", b"", b"c"), b"abc", id="java's snappy stream"),
        pytest.param(SNAPPY, xerial_stream(b"a") + xerial_stream(b"b"), b"ab", id="two snappy streams"),
        pytest.param(GZIP, gzip.compress(TEXT) + gzip.compress(b"b"), TEXT + b"b", id="two gzip members"),
        pytest.param(LZ4, bytes(cramjam.lz4.compress(TEXT)), TEXT, id="lz4 frame of dependent blocks"),
        pytest.param(LZ4, compress(LZ4, b"a") + compress(LZ4, TEXT), b"a" + TEXT, id="two lz4 frames"),
        pytest.param(ZSTD, compress(ZSTD, b"a") + compress(ZSTD, TEXT), b"a" + TEXT, id="two zstd frames"),
        pytest.param(ZSTD, b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + compress(ZSTD, TEXT), TEXT,
                     id="a zstd frame to skip"),
    ],
)  # fmt: skip
def test_every_framing_other_clients_write_is_read(codec: int, data: bytes, plain: bytes) -> None:
    assert bytes(decompress(codec, data)) == plain


@pytest.mark.parametrize(("codec", "name"), [(LZ4, "lz4"), (ZSTD, "zstd")])
def test_a_stream_that_does_not_tell_its_size_is_read(codec: int, name: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        for start in range(0, len(TEXT), 1000):
            stream.write(TEXT[start : start + 1000])
            if start % 50_000 == 0:
                stream.flush()  # ends a block early
    assert bytes(decompress(codec, sink.getvalue().to_pybytes())) == TEXT


def test_lz4_is_written_in_independent_blocks_because_java_reads_no_others() -> None:
    frame = compress(LZ4, TEXT)
    assert frame[4] & 0x20


def test_the_result_is_valid_until_the_next_call_and_the_buffer_is_kept() -> None:
    decompressor = Decompressor()
    first = decompressor.decompress(ZSTD, compress(ZSTD, TEXT))
    second = decompressor.decompress(LZ4, compress(LZ4, TEXT[:500]))
    assert np.shares_memory(first, second)
    assert bytes(second) == TEXT[:500]


def test_a_giant_result_does_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "KEPT_BYTES", 1000)
    decompressor = Decompressor()
    giant = decompressor.decompress(GZIP, compress(GZIP, TEXT))
    small = decompressor.decompress(GZIP, compress(GZIP, b"small"))
    assert bytes(giant) == TEXT
    assert not np.shares_memory(giant, small)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("data", [b"", b"anything"])
def test_an_unknown_codec_is_a_typed_error(codec: int, data: bytes) -> None:
    """T22: an unknown codec."""
    with pytest.raises(CorruptBatchError, match=r"^\[UNKNOWN_CODEC\]"):
        decompress(codec, data)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_more_than_the_limit_is_refused_without_writing_it(codec: int) -> None:
    """T22: the size limit of decompression."""
    bomb = compress(codec, bytes(50_000_000))
    decompressor = Decompressor(limit_bytes=1_000_000)
    decompressor.decompress(codec, compress(codec, b"compiles before the clock runs"))
    began = time.process_time()
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_LIMIT\]"):
        decompressor.decompress(codec, bomb)
    assert time.process_time() - began < 1
    assert bytes(decompressor.decompress(codec, compress(codec, TEXT))) == TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_larger_kept_buffer_does_not_weaken_the_limit(codec: int) -> None:
    """T22: the room that happens to be available is not the room that is allowed."""
    decompressor = Decompressor(limit_bytes=1_000_000)
    decompressor.decompress(codec, compress(codec, bytes(1_000_000)))
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_LIMIT\]"):
        decompressor.decompress(codec, compress(codec, bytes(1_000_001)))


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [100, 16_384, 1_000_000])
def test_a_result_of_exactly_the_limit_is_allowed_and_one_byte_more_is_not(codec: int, size: int) -> None:
    """T22: this also holds for batches of one block, which take a shorter path."""
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_LIMIT\]"):
        decompress(codec, compress(codec, bytes(size + 1)), limit_bytes=size)
    plain = bytes(size)
    assert decompress(codec, compress(codec, plain), limit_bytes=len(plain)).size == len(plain)


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_an_absurd_ratio_is_refused_below_the_size_limit(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: the ratio limit of decompression."""
    monkeypatch.setattr(codecs, "RATIO_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(codecs, "MAX_RATIO", 100)
    bomb = compress(codec, bytes(20_000_000))
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_LIMIT\]"):
        decompress(codec, bomb)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_cut_off_batch_is_a_typed_error(codec: int) -> None:
    data = compress(codec, TEXT[:3000])
    empty_stream = 16 if codec == SNAPPY else 0  # a header without blocks means no bytes
    for size in set(range(1, len(data))) - {empty_stream}:
        with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_"):
            decompress(codec, data[:size])


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("claim", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80"])
def test_a_length_that_lies_is_a_typed_error(codec: int, claim: bytes) -> None:
    data = bytearray(compress(codec, TEXT[:3000]))
    at = {GZIP: len(data) - 4, SNAPPY: 16, LZ4: 7, ZSTD: 5}[codec]
    data[at : at + 4] = claim
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_"):
        decompress(codec, data)


def test_many_tiny_lz4_frames_do_not_exhaust_the_stack() -> None:
    assert decompress(LZ4, compress(LZ4, b"") * 20_000).size == 0


def test_a_zstd_frame_that_claims_terabytes_gets_no_room() -> None:
    """T22: the claim alone must not allocate memory, whatever the library would do on its own."""
    content = bytes(cramjam.zstd.compress(TEXT[:3000]))
    descriptor = 0b1110_0000  # a single segment, with its size in eight bytes
    start = 5 + (2 if content[4] >> 6 == 1 else 1) + (1 - (content[4] >> 5 & 1))
    frame = content[:4] + bytes([descriptor]) + struct.pack("<Q", 1 << 44) + content[start:]
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_"):
        decompress(ZSTD, frame)
