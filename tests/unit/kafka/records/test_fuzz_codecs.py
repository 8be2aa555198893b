"""Random damage to compressed bytes: only typed errors, no hang, no memory beyond the limit."""

from __future__ import annotations

import random
import time

import cramjam
import pytest

from penstock.core.errors import CorruptBatchError
from penstock.kafka.records.codecs import GZIP, LZ4, SNAPPY, ZSTD, Decompressor, compress

PLAIN = random.Random(1).randbytes(700) * 300
INPUTS = 10_000


def damage(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        way = rng.randrange(4)
        if way == 0 and out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        elif way == 1 and out:
            out[rng.randrange(min(30, len(out)))] = rng.randrange(256)
        elif way == 2:
            del out[rng.randrange(len(out) + 1) :]
        else:
            at = rng.randrange(len(out) + 1)
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(out)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_damaged_compressed_bytes_are_typed_errors_or_plain_bytes(codec: int) -> None:
    """T22: each decompressor under random damage."""
    rng = random.Random(codec)
    whole = [compress(codec, PLAIN[:size]) for size in (0, 10, 3000, len(PLAIN))]
    if codec == SNAPPY:
        whole.append(bytes(cramjam.snappy.compress_raw(PLAIN)))
    limit = 1 << 20
    decompressor = Decompressor(limit_bytes=limit)
    refused = 0
    decompressor.decompress(codec, whole[1])  # compiles before the clock starts
    for _ in range(INPUTS):
        data = damage(rng, rng.choice(whole))
        began = time.process_time()
        try:
            assert decompressor.decompress(codec, data).size <= limit
        except CorruptBatchError:
            refused += 1
        assert time.process_time() - began < 1, data.hex()
    assert refused > INPUTS / 2
