"""Shares a limit on a batch among partitions by how much each has waiting.

Rule: exactly Spark's arithmetic. A partition's share is `limit * (size / total)` in double precision, rounded
down, but up where it is below one: no partition that has records is passed over, so a batch may hold up to
one record per partition more than the limit. Why not exact fractions, which are easy in Python: a stream that
moves here from Spark's connector should cut its batches at the same offsets.

>>> share_by_lag(10, {"a": 100, "b": 300, "c": 1, "d": 0})
{'a': 2, 'b': 7, 'c': 1, 'd': 0}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

_Key = TypeVar("_Key")


def share_by_lag(total: int, sizes: Mapping[_Key, int]) -> dict[_Key, int]:
    """Return how much of each partition a limit of `total` records admits, never more than its size."""
    waiting = float(sum(size for size in sizes.values() if size > 0))
    return {each: _share(total, size, waiting) if size > 0 else 0 for each, size in sizes.items()}


def _share(total: int, size: int, waiting: float) -> int:
    share = float(total) * (float(size) / waiting)
    return min(size, math.ceil(share) if share < 1 else math.floor(share))
