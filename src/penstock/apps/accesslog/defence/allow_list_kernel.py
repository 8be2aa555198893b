"""Kernel parts that know who may not be blocked: allowed ranges, and clients in their time of grace.

Rule: a client that is a network is allowed, or let go, if any address of it is. To block the rest of it would
be to block the one address as well wherever a list knows networks only.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import fold_arrays as s
from penstock.apps.accesslog.parsing.client_addresses import end_of_client
from penstock.kernels.compilation import inlined, kernel, part

_END_OF_TIME = np.int64((1 << 63) - 1)


@inlined
def is_before(high, low, other_high, other_low):
    return high < other_high or (high == other_high and low < other_low)


@part
def may_block(limits, high, low, time):
    """What is to be done with a client that a rule wants blocked: BLOCK, ALLOWED or GRACE."""
    last_high, last_low = end_of_client(high, low)
    first, last = 0, limits.allow_first_high.size
    while first < last:  # the number of ranges that begin at or before the end of the client
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
        if limits.grace_times[n, 0] <= time < limits.grace_times[n, 1] and is_let_go(limits, n, high, low):
            return np.int64(s.GRACE)
    return np.int64(s.BLOCK)


@part
def is_let_go(limits, n, high, low):
    """Whether an order is about any address of a client."""
    bounds = limits.grace_bounds[n]
    last_high, last_low = end_of_client(high, low)
    return not is_before(last_high, last_low, bounds[0], bounds[1]) and not is_before(
        bounds[2], bounds[3], high, low
    )


@part
def lift_ban(rows, row, time, limits):
    """A ban ends where an order lets the client go, if that is by now."""
    high, low = np.uint64(rows[row, s.HIGH]), np.uint64(rows[row, s.LOW])
    for n in range(limits.grace_times.shape[0]):
        since = limits.grace_times[n, 0]
        if (
            rows[row, s.BAN_FROM] < since <= time
            and since < rows[row, s.BAN_UNTIL]
            and is_let_go(limits, n, high, low)
        ):
            rows[row, s.BAN_UNTIL] = since


@kernel
def lift_bans(table, limits):
    """The same for all bans of the batches before; those of a batch itself end as the fold comes by."""
    for row in range(table.heads[s.ROWS_USED]):
        lift_ban(table.rows, row, _END_OF_TIME, limits)
