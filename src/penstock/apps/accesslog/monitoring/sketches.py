"""Small summaries of many values: how many different clients, and percentiles of the latency.

Rules: a summary is a function of the set of values, not of their order or of how they were split, so parts
from any number of machines merge to the same bytes. Clients are counted exactly up to 4,096, then within
0.6 % (standard error; 2 % is 3.5 of them). `find_quantiles` is within 0.8 % of a value that occurred.

Why not keep the values: a minute of a flood has a hundred thousand clients, and each minute of each server
stays open for five. Why not the usual correction tables for middle sizes: the estimator here needs none.

>>> round(estimate_distinct(make_registers(np.array([3 << 60, 5 << 60, 3 << 60], np.uint64))))
2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import (
    BUCKET_BITS,
    BUCKETS,
    SKETCH_BITS,
    fill_registers,
)

Hashes: TypeAlias = NDArray[np.uint64]
Registers: TypeAlias = NDArray[np.uint8]

#: Up to this many different hashes are kept as they are (32 KiB, as much as the registers take).
EXACT_LIMIT = 4_096
REGISTERS = 1 << SKETCH_BITS
_LONGEST_RUN = 64 - SKETCH_BITS


def make_registers(hashes: Hashes) -> Registers:
    """Return a sketch of hashes that are too many to be kept."""
    registers = np.zeros(REGISTERS, np.uint8)
    fill_registers(np.ascontiguousarray(hashes, np.uint64), registers)
    return registers


def merge_registers(sketches: Iterable[Registers]) -> Registers:
    """Return the sketch of everything that went into any of these."""
    merged = np.zeros(REGISTERS, np.uint8)
    for each in sketches:
        np.maximum(merged, each, out=merged)
    return merged


def estimate_distinct(registers: Registers) -> float:
    """Return an estimate of how many different hashes went into a sketch.

    The estimator of Otmar Ertl (2017): the sum over the registers, corrected at both ends by the chance that
    a register is still empty, or full.
    """
    counts = np.bincount(registers, minlength=_LONGEST_RUN + 2)[: _LONGEST_RUN + 2].astype(float)
    if counts[0] == REGISTERS:
        return 0.0
    total = REGISTERS * _tau(1.0 - counts[_LONGEST_RUN + 1] / REGISTERS)
    for run in range(_LONGEST_RUN, 0, -1):
        total = 0.5 * (total + counts[run])
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    if total == 0:  # every register is full: there are no more hashes
        return 2.0**64
    return float(REGISTERS * REGISTERS / (2.0 * math.log(2.0)) / total)


def _sigma(share: float) -> float:
    if share == 1.0:
        return math.inf
    total, weight, last = share, 1.0, -1.0
    while total != last:
        share *= share
        last, total = total, total + share * weight
        weight *= 2.0
    return total


def _tau(share: float) -> float:
    if share in (0.0, 1.0):
        return 0.0
    total, weight, last = 1.0 - share, 1.0, -1.0
    while total != last:
        share = math.sqrt(share)
        weight *= 0.5
        last, total = total, total - (1.0 - share) ** 2 * weight
    return total / 3.0


# --- latencies ---------------------------------------------------------------------------------------------


def bucket_values() -> NDArray[np.float64]:
    """Return the middle of each bucket, in microseconds."""
    numbers = np.arange(BUCKETS)
    exponents = np.maximum((numbers >> BUCKET_BITS) - 1, 0)
    lowest = (numbers - (exponents << BUCKET_BITS)) << exponents
    return np.asarray(lowest + (np.left_shift(1, exponents) - 1) / 2.0, np.float64)


_VALUES = bucket_values()


def find_quantiles(buckets: NDArray[Any], hits: NDArray[Any], shares: Sequence[float]) -> list[int]:
    """Return for each share the latency, in microseconds, that this share of the values does not exceed."""
    order = np.argsort(buckets, kind="stable")
    below = np.cumsum(hits[order])
    # Rounding must not raise a rank: the share 0.95 of 20 values is at rank 19, not at 20.
    ranks = [max(1, math.ceil(share * int(below[-1]) - 1e-9)) for share in shares]
    at = np.searchsorted(below, ranks)
    return [round(float(_VALUES[bucket])) for bucket in buckets[order][at]]
