"""Inputs for the decoder's fuzz run: small logs with every feature, and twelve ways to damage them.

Damage is made where it matters: most inputs get their checksums mended afterwards, because a decoder that
only ever sees wrong checksums is not really tested.
"""

from __future__ import annotations

import random
import struct

from tests.reference.record_decoder import Cursor
from tests.reference.record_encoder import (
    HEADER,
    Record,
    build_marker,
    build_record,
    compress,
    reseal,
    varint,
)

RESEAL_SHARE = 0.85
_CODECS = (0, 0, 0, 1, 2, 3, 4)
_EVIL_INTS = (-(2**31), -2, -1, 0, 1, 2, 48, 49, 50, 2**31 - 1)
_EVIL_VARINTS = (
    *(varint(n) for n in (-2, -1, 0, 1, 63, 64, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))),
    b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\xff" * 4 + b"\x0f", b"\xff" * 4 + b"\x10", b"\xff" * 5,
    b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10,
)  # fmt: skip


def make_record(rng: random.Random) -> Record:
    def some_bytes(most: int) -> bytes | None:
        shape = rng.randrange(6)
        return None if shape == 0 else b"" if shape == 1 else rng.randbytes(rng.randrange(1, most))

    headers = tuple(
        (rng.choice((b"", b"a", b"a", "ü".encode(), b"\xff")), some_bytes(9))
        for _ in range(rng.choice((0, 0, 1, 2, 3)))
    )
    # The last choice is larger than the run's whole output buffer.
    value = some_bytes(rng.choice((5, 40, 400)))
    return Record(some_bytes(12), value, headers, rng.choice((0, 1, 7, -5, 100_000)))


class Draft:
    """One batch before it is sealed: header fields, plain records, and where each record begins."""

    def __init__(self, rng: random.Random, base: int) -> None:
        records = [make_record(rng) for _ in range(rng.choice((0, 1, 2, 3, 3, 9)))]
        deltas, delta = [], -1
        for _ in records:
            delta += rng.choice((1, 1, 1, 2, 5))  # gaps, as compaction leaves them
            deltas.append(delta)
        self.pieces = [
            build_record(Record(r.key, r.value, r.headers, r.time_delta, d), d)
            for r, d in zip(records, deltas, strict=True)
        ]
        self.codec = rng.choice(_CODECS)
        self.base, self.last_delta = base, max(delta, 0) + rng.choice((0, 0, 3))
        self.producer = rng.choice((-1, 7, 8))
        self.attributes = self.codec | rng.choice((0, 8)) | (16 if self.producer > 0 else 0)

    def seal(self, plain: bytes | None = None) -> bytearray:
        plain = b"".join(self.pieces) if plain is None else plain
        payload = compress(self.codec, plain)
        data = bytearray(
            HEADER.pack(
                self.base, HEADER.size - 12 + len(payload), 3, 2, 0, self.attributes, self.last_delta,
                1_700_000_000_000, 1_700_000_100_000, self.producer, 0, 0, len(self.pieces),
            ) + payload
        )  # fmt: skip
        return reseal(data)


def make_input(rng: random.Random, kind: str) -> tuple[bytes, bool]:
    """Return a log damaged in one way, and whether its checksums were mended afterwards."""
    base, batches = rng.randrange(20), list[bytearray]()
    target = rng.randrange(3)
    for place in range(3):
        if place != target and rng.random() < 0.25:
            batches.append(
                bytearray(build_marker(base, producer_id=rng.choice((7, 8)), commit=rng.random() < 0.5))
            )
            base += 1
            continue
        draft = Draft(rng, base)
        sealed = damage_plain(rng, kind, draft) if place == target else draft.seal()
        batches.append(sealed)
        base += draft.last_delta + 1
    batches[target] = damage_sealed(rng, kind, batches[target])
    mend = kind == "none" or kind.startswith(("record", "varint")) or rng.random() < RESEAL_SHARE
    if mend and len(batches[target]) >= HEADER.size:
        reseal(batches[target])
    log = b"".join(batches)
    return log[: rng.randrange(len(log) + 1)] if kind == "truncate" else log, mend


def damage_plain(rng: random.Random, kind: str, draft: Draft) -> bytearray:
    """Damage the records' own bytes, below the compression."""
    pieces = draft.pieces
    if kind == "record bits" and pieces:
        plain = bytearray(b"".join(pieces))
        for _ in range(rng.randrange(1, 5)):
            plain[rng.randrange(len(plain))] ^= 1 << rng.randrange(8)
        return draft.seal(bytes(plain))
    if kind == "record length" and pieces:
        n = rng.randrange(len(pieces))
        body = _strip_varint(pieces[n])
        wrong = rng.choice((varint(len(body) + rng.choice((-2, -1, 1, 2, 100))), rng.choice(_EVIL_VARINTS)))
        pieces[n] = wrong + body
    elif kind == "varint" and pieces:
        # A record of the right length with one foreign varint in it, so that the lengths around it stay
        # right.
        n = rng.randrange(len(pieces))
        body = bytearray(_strip_varint(pieces[n]))
        start = rng.randrange(len(body))
        end = start + rng.randrange(3)
        if rng.random() < 0.7:  # exactly in the place of a number: a time, an offset, a length or a count
            start, end = rng.choice(_find_varints(bytes(body)))
        body[start:end] = rng.choice(_EVIL_VARINTS)
        pieces[n] = varint(len(body)) + bytes(body)
    elif kind == "record header" and pieces:
        name, value = rng.choice(_EVIL_VARINTS), rng.choice(_EVIL_VARINTS)
        body = b"\x00\x00" + varint(0) + varint(-1) + varint(-1)
        body += rng.choice((varint(1), rng.choice(_EVIL_VARINTS))) + name + b"ab" + value + rng.randbytes(3)
        pieces[0] = varint(len(body)) + body
    elif kind == "record cut" and pieces:
        plain = b"".join(pieces)
        return draft.seal(plain[: rng.randrange(len(plain))])
    elif kind == "record splice" and pieces:
        other = rng.choice(pieces)
        n = rng.randrange(len(pieces))
        pieces[n] = pieces[n][: rng.randrange(len(pieces[n]))] + other[rng.randrange(len(other)) :]
    return draft.seal()


def damage_sealed(rng: random.Random, kind: str, data: bytearray) -> bytearray:
    """Damage the finished batch: its header, its length, or its compressed bytes."""
    if kind == "bits":
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "batch length":
        right = len(data) - 12
        struct.pack_into(
            ">i", data, 8, rng.choice((*_EVIL_INTS, right - 1, right + 1, right + 61, right - 7))
        )
    elif kind == "count":
        (right,) = struct.unpack_from(">i", data, 57)
        struct.pack_into(">i", data, 57, rng.choice((*_EVIL_INTS, right - 1, right + 1)))
    elif kind == "batch header":
        at, size = rng.choice(((0, 8), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8)))
        data[at : at + size] = rng.choice(
            (rng.randbytes(size), b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), bytes(size - 1) + b"\x02")
        )
    elif kind == "payload bits" and len(data) > HEADER.size:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(HEADER.size, len(data))] ^= 1 << rng.randrange(8)
    return data


def _strip_varint(data: bytes) -> bytes:
    at = 0
    while data[at] & 0x80:
        at += 1
    return data[at + 1 :]


def _find_varints(body: bytes) -> list[tuple[int, int]]:
    """Return where the numbers of a whole record are: time, offset, and every length and count."""
    cursor, spans = Cursor(body, 1), []

    def number() -> int:
        start = cursor.at
        value = cursor.number(64)
        spans.append((start, cursor.at))
        return value

    number(), number()
    for _ in range(2):
        cursor.take(max(number(), 0))
    for _ in range(2 * number()):
        cursor.take(max(number(), 0))
    return spans


MUTATIONS = (
    "bits", "batch length", "truncate", "count", "batch header", "payload bits",
    "record bits", "record length", "varint", "record header", "record cut", "record splice",
)  # fmt: skip
