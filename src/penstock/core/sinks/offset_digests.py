"""A digest of offsets that does not depend on their order and can be added and subtracted.

Rule: every operation in it is one that SQLite, PostgreSQL, MySQL and numpy all do on 64-bit whole numbers
without overflow, so that a task computes it in columns when it writes rows, and a database computes the same
years later in one aggregate. Why not a checksum of the rows as text: databases write one number in many ways,
while a sum over rows can be split at any offset and merged with its neighbour.

It detects accidental differences from the published rows, not malicious ones.

>>> two = OffsetDigest(2, 9, 40) + OffsetDigest(1, 5, 7)
>>> two - OffsetDigest(1, 5, 7)
OffsetDigest(rows=2, total=9, mixed=40)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.model import TopicPartition

#: x = offset mod MODULUS, times FIRST; then x xor (x >> SHIFT), times SECOND; each time mod MODULUS, a prime.
#: Products stay below 2^62, and sums of four billion rows below 2^63.
MODULUS = 2**31 - 1
FIRST = 1_566_083_941
SECOND = 1_812_433_253
SHIFT = 15
_WRAP = 2**62


@dataclass(frozen=True, slots=True)
class OffsetDigest:
    """The number of rows, the sum of their offsets, and the sum of the mixed offsets."""

    rows: int = 0
    total: int = 0
    mixed: int = 0

    def __add__(self, other: OffsetDigest) -> OffsetDigest:
        total, mixed = self.total + other.total, self.mixed + other.mixed
        return OffsetDigest(self.rows + other.rows, total % _WRAP, mixed % _WRAP)

    def __sub__(self, other: OffsetDigest) -> OffsetDigest:
        total, mixed = self.total - other.total, self.mixed - other.mixed
        return OffsetDigest(self.rows - other.rows, total % _WRAP, mixed % _WRAP)


@dataclass(frozen=True, slots=True)
class HeldOffsets:
    """What a table holds of a partition or a range: a digest of its rows, and how many distinct offsets."""

    digest: OffsetDigest
    distinct: int
    first: int
    last: int


Digests: TypeAlias = Mapping[TopicPartition, OffsetDigest]


def sum_digests(some: Iterable[Digests]) -> dict[TopicPartition, OffsetDigest]:
    """Return the sum of the digests for each partition."""
    sums: dict[TopicPartition, OffsetDigest] = {}
    for digests in some:
        for each, digest in digests.items():
            sums[each] = sums.get(each, OffsetDigest()) + digest
    return sums
