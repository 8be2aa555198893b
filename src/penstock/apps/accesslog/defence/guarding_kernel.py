"""Kernel parts that know who may not be blocked: allowed ranges, and clients in their time of grace."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import fold_shapes as s
from penstock.formats.jit import inlined, part


@inlined
def is_before(high, low, other_high, other_low):
    return high < other_high or (high == other_high and low < other_low)


@part
def may_block(limits, high, low, time):
    """What is to be done with a client that a rule wants blocked: BLOCK, ALLOWED or GRACE."""
    first, last = 0, limits.allow_first_high.size
    while first < last:  # the number of ranges that begin at or before the client
        middle = (first + last) // 2
        if is_before(high, low, limits.allow_first_high[middle], limits.allow_first_low[middle]):
            last = middle
        else:
            first = middle + 1
    if first > 0 and not is_before(
        limits.allow_last_high[first - 1], limits.allow_last_low[first - 1], high, low
    ):
        return np.int64(s.ALLOWED)
    for n in range(limits.grace_times.shape[0]):
        if limits.grace_times[n, 0] <= time < limits.grace_times[n, 1]:
            bounds = limits.grace_bounds[n]
            if not is_before(high, low, bounds[0], bounds[1]) and not is_before(
                bounds[2], bounds[3], high, low
            ):
                return np.int64(s.GRACE)
    return np.int64(s.BLOCK)
