"""Kernel parts that look up who may not be blocked: allowed ranges, and clients in their time of grace.

Rule: a client that is a network is spared if any of its addresses is. A blocklist entry for the network would
block that address together with the rest.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.parsing.client_addresses import end_of_client
from penstock.kernels.compilation import inlined, part


@inlined
def is_before(high, low, other_high, other_low):
    return high < other_high or (high == other_high and low < other_low)


@part
def choose_action(limits, high, low, time):
    """Return what is done with a client that a rule wants to block: BLOCK, ALLOWED or GRACE."""
    last_high, last_low = end_of_client(high, low)
    # Search for the number of ranges that begin at or before the end of the client.
    first, last = 0, limits.allow_first_high.size
    while first < last:
        middle = (first + last) // 2
        if is_before(last_high, last_low, limits.allow_first_high[middle], limits.allow_first_low[middle]):
            last = middle
        else:
            first = middle + 1
    if first > 0 and not is_before(
        limits.allow_last_high[first - 1], limits.allow_last_low[first - 1], high, low
    ):
        return np.int64(s.ALLOWED)
    for n in range(limits.grace_times.shape[0]):
        if limits.grace_times[n, 0] <= time < limits.grace_times[n, 1] and order_covers(limits, n, high, low):
            return np.int64(s.GRACE)
    return np.int64(s.BLOCK)


@part
def order_covers(limits, n, high, low):
    """Return whether order `n` covers any address of a client."""
    bounds = limits.grace_bounds[n]
    last_high, last_low = end_of_client(high, low)
    return not is_before(last_high, last_low, bounds[0], bounds[1]) and not is_before(
        bounds[2], bounds[3], high, low
    )
