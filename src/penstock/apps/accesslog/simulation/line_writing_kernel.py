"""The kernel that writes log lines: columns of numbers in, lines and keys as bytes out.

Rule: the caller measures the lines, and the room for each one is checked here before it is written, so that
no byte lands behind the buffer. Addresses and numbers are written from their values; texts are copied from
one pool. A line costs about 0.3 us.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.kernels.compilation import copy_bytes, inlined, kernel, part

TIME_BYTES = 26  # 01/Feb/2026:10:00:00 +0000
#: The most that a line has besides its three texts: address, time, status, size, latency, quotes, newline.
FRAME_BYTES = 160
KEY_BYTES = 40
#: What is between the fields, and the digits of IPv6; arguments of the kernel.
FIXED = np.frombuffer(b' - - [] "" "" "', np.uint8).copy()
HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()

# What is wrong with a line: nothing, its end is missing, it is not a line of the format at all.
WHOLE, CUT_OFF, FOREIGN = 0, 1, 2


@inlined
def _put_number(out, at, value):
    """Write a whole number, 0 or greater, in decimal digits; the caller has left room for twenty."""
    size = 1
    rest = value // 10
    while rest > 0:
        rest //= 10
        size += 1
    for i in range(size):
        out[at + size - 1 - i] = np.uint8(0x30 + value % 10)
        value //= 10
    return at + size


@part
def put_address(out, at, high, low, is_v6, digits):
    """Write an address as servers do; IPv6 in eight groups (none of ours is zero)."""
    if not is_v6:
        for shift in (24, 16, 8, 0):
            at = _put_number(out, at, np.int64((low >> np.uint64(shift)) & np.uint64(255)))
            if shift:
                out[at] = 0x2E
                at += 1
        return at
    for group in range(8):
        half = high if group < 4 else low
        value = (half >> np.uint64(48 - 16 * (group % 4))) & np.uint64(0xFFFF)
        begun = False
        for nibble in range(4):
            digit = (value >> np.uint64(12 - 4 * nibble)) & np.uint64(15)
            if digit or begun or nibble == 3:
                out[at] = digits[np.int64(digit)]
                at += 1
                begun = True
        if group < 7:
            out[at] = 0x3A
            at += 1
    return at


@inlined
def _put_text(out, at, pool, starts, number):
    begin, end = starts[number], starts[number + 1]
    copy_bytes(out, at, pool, begin, end - begin)
    return at + end - begin


class LineColumns(NamedTuple):
    """What to write, a row for each line; clients and texts by their numbers."""

    clients: Any
    seconds: Any
    requests: Any
    statuses: Any
    sizes: Any
    latencies: Any
    referrers: Any
    agents: Any
    faults: Any
    fault_texts: Any


class Addresses(NamedTuple):
    """The addresses of the clients."""

    highs: Any
    lows: Any
    are_v6: Any


@kernel
def write_lines(
    lines, addresses, times, pool, starts, fixed, digits, with_latency, with_newline,
    out, out_starts, keys, key_starts,
):  # fmt: skip
    """Write all lines and their clients; return False if there is no room for one."""
    clients, seconds, requests, statuses, sizes, latencies, referrers, agents, faults, fault_texts = lines
    highs, lows, are_v6 = addresses
    at = np.int64(0)
    key_at = np.int64(0)
    out_starts[0] = 0
    key_starts[0] = 0
    texts = len(starts) - 1
    for row in range(len(clients)):
        client, request, referrer, agent = clients[row], requests[row], referrers[row], agents[row]
        when, foreign = seconds[row], fault_texts[row]
        if client < 0 or client >= len(lows) or when < 0 or (when + 1) * TIME_BYTES > len(times):
            return False
        if min(request, referrer, agent, foreign) < 0 or max(request, referrer, agent, foreign) >= texts:
            return False
        room = FRAME_BYTES + starts[request + 1] - starts[request] + starts[referrer + 1] - starts[referrer]
        room += starts[agent + 1] - starts[agent] + starts[foreign + 1] - starts[foreign]
        if at + room > len(out) or key_at + KEY_BYTES > len(keys):
            return False
        begin = at
        key_at = put_address(keys, key_at, highs[client], lows[client], are_v6[client], digits)
        key_starts[row + 1] = key_at
        if faults[row] == FOREIGN:
            at = _put_text(out, at, pool, starts, foreign)
        else:
            size = key_at - key_starts[row]
            copy_bytes(out, at, keys, key_starts[row], size)
            at += size
            copy_bytes(out, at, fixed, 0, 6)  # ` - - [`
            at += 6
            copy_bytes(out, at, times, when * TIME_BYTES, TIME_BYTES)
            at += TIME_BYTES
            copy_bytes(out, at, fixed, 6, 3)  # `] "`
            at = _put_text(out, at + 3, pool, starts, request)
            copy_bytes(out, at, fixed, 9, 2)  # `" `, and then the status and a blank
            at = _put_number(out, at + 2, np.int64(statuses[row]))
            out[at] = 0x20
            at += 1
            if sizes[row] > 0:
                at = _put_number(out, at, np.int64(sizes[row]))
            else:
                out[at] = 0x2D
                at += 1
            copy_bytes(out, at, fixed, 10, 2)  # ` "`
            at = _put_text(out, at + 2, pool, starts, referrer)
            copy_bytes(out, at, fixed, 12, 3)  # `" "`
            at = _put_text(out, at + 3, pool, starts, agent)
            out[at] = 0x22
            at += 1
            if with_latency:
                out[at] = 0x20
                at = _put_number(out, at + 1, np.int64(latencies[row]))
            if faults[row] == CUT_OFF:
                at = begin + (at - begin) * 2 // 5
        if with_newline:
            out[at] = 0x0A
            at += 1
        out_starts[row + 1] = at
    return True
