"""The client of a request: addresses in text, the trusted proxies, and the list that they passed on.

Rules: a client is an address or a host name, never `-` and never with a byte that neither can have. A port
behind it is left out, and so is the zone of an IPv6 address (`fe80::1%eth0`), which names a network interface
of that server, not a client. `X-Forwarded-For` is trusted from right to left, and only as far as trusted
proxies wrote it: the right-most address that is not trusted is the client. What stands to the left of it was
written by that client and is ignored. If an entry on the way is not an address, the peer is the client.

Why not take the first entry, as many do: it is whatever the client sent, so an attacker could have anyone
else blocked.

`read_address` decides what an address is, for the parser, the events and the shipper. The blocklists read
theirs with the C library, and a test compares the two. A leading zero makes a number invalid: `010.0.0.1` is
10.0.0.1 to one program and 8.0.0.1 to the next, and nobody may be blocked in place of another.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.apps.accesslog.parsing import client_prefixes as prefixes
from penstock.core.errors import OptionError
from penstock.kernels.byte_columns import Array
from penstock.kernels.compilation import inlined, kernel, part

_MAPPED = np.uint64(0xFFFF00000000)
#: Bytes of addresses and host names: letters, digits, `.`, `:`, `-`, `_`, and `%` of a zone.
_IN_CLIENTS = np.zeros(256, np.uint8)
_IN_CLIENTS[[*range(0x30, 0x3A), *range(0x41, 0x5B), *range(0x61, 0x7B), *b".:-_%"]] = 1


def make_networks(proxies: Iterable[str]) -> Array:
    """Return one row per network: high and low half of its mask, high and low half of its address."""
    rows = []
    for text in proxies:
        address, slash, length = text.strip().partition("/")
        number = read_text(address)
        bits = _find_length(length, 128 if ":" in address else 32) if slash else 128
        if number is None or bits is None:
            raise OptionError(
                "OPTION_INVALID",
                f"The trusted proxy `{text[:80]}` is neither an address nor a network.",
                hint="Write it as `10.0.0.7`, `10.0.0.0/8` or `2001:db8::/32`.",
            )
        mask = ((1 << bits) - 1) << (128 - bits)
        number &= mask
        rows.append([mask >> 64, mask & (2**64 - 1), number >> 64, number & (2**64 - 1)])
    return np.array(rows, np.uint64).reshape(-1, 4)


def _find_length(text: str, bits: int) -> int | None:
    """Return the length of a prefix as one of 128 bits, or None."""
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= bits):
        return None
    return int(text) + 128 - bits


def read_text(text: str) -> int | None:
    """Return the 128 bits of an address, IPv4 as its mapped IPv6 address; None for any other text."""
    data = np.frombuffer(text.encode("utf-8", "replace") or b"-", np.uint8)
    fits, high, low = _read_whole(data)
    return int(high) << 64 | int(low) if fits else None


@inlined
def read_ipv4(buf, at, end):
    """Read four numbers with dots between, to the end; return (fits, value)."""
    value = np.uint64(0)
    if end - at < 7 or end - at > 15:
        return False, value
    for part_number in range(4):
        begin = at
        piece = np.int64(0)
        while at < end and at - begin < 3 and 0x30 <= buf[at] <= 0x39:
            piece = piece * 10 + np.int64(buf[at]) - 0x30
            at += 1
        if at == begin or piece > 255 or (at - begin > 1 and buf[begin] == 0x30):
            return False, value
        value = (value << np.uint64(8)) | np.uint64(piece)
        if part_number < 3:
            if at >= end or buf[at] != 0x2E:
                return False, value
            at += 1
    return at == end, value


@part
def read_ipv6(buf, at, end):
    """Read eight groups, or fewer and `::`, the last two maybe as IPv4; return (fits, high, low)."""
    high, low = np.uint64(0), np.uint64(0)
    tail_high, tail_low = np.uint64(0), np.uint64(0)
    groups, behind = 0, 0
    gap = False
    if end - at < 2 or end - at > 45:
        return False, high, low
    if buf[at] == 0x3A:
        if buf[at + 1] != 0x3A:
            return False, high, low
        gap = True
        at += 2
    while at < end:
        begin = at
        piece = np.uint64(0)
        while at < end and at - begin < 4:
            c = np.int64(buf[at])
            if 0x30 <= c <= 0x39:
                digit = c - 0x30
            elif 0x41 <= (c & 0xDF) <= 0x46:
                digit = (c & 0xDF) - 0x37
            else:
                break
            piece = (piece << np.uint64(4)) | np.uint64(digit)
            at += 1
        size = np.uint64(16)
        count = 1
        if at < end and buf[at] == 0x2E:
            fits, piece = read_ipv4(buf, begin, end)
            if not fits:
                return False, high, low
            size = np.uint64(32)
            count = 2
            at = end
        elif at == begin:
            return False, high, low
        if gap:
            tail_high = (tail_high << size) | (tail_low >> (np.uint64(64) - size))
            tail_low = (tail_low << size) | piece
            behind += count
        else:
            high = (high << size) | (low >> (np.uint64(64) - size))
            low = (low << size) | piece
            groups += count
        if groups + behind > 8:
            return False, high, low
        if at == end:
            break
        if buf[at] != 0x3A or at + 1 == end:
            return False, high, low
        at += 1
        if buf[at] == 0x3A:
            if gap:
                return False, high, low
            gap = True
            at += 1
    if not gap:
        return groups == 8, high, low
    if groups + behind > 7:
        return False, high, low
    for _ in range(8 - groups):
        high = (high << np.uint64(16)) | (low >> np.uint64(48))
        low <<= np.uint64(16)
    return True, high | tail_high, low | tail_low


@part
def read_address(buf, at, end):
    """Read an address to the end, IPv4 as its mapped IPv6 address; return (fits, high, low)."""
    fits, value = read_ipv4(buf, at, end)
    if fits:
        return True, np.uint64(0), value | _MAPPED
    return read_ipv6(buf, at, end)


@kernel
def _read_whole(buf):
    return read_address(buf, 0, buf.size)


#: Whether the network around an address is one client; the same function, compiled.
is_one_client = inlined(prefixes.is_one_client)
_CLIENT_MASK = np.uint64((1 << 64) - (1 << (64 - prefixes.IPV6_CLIENT_PREFIX)))
_NET_MASK = np.uint64((1 << 64) - (1 << (64 - prefixes.IPV6_NET_PREFIX)))
_NET4_MASK = np.uint64((1 << 64) - (1 << (32 - prefixes.IPV4_NET_PREFIX)))
_ALL = np.uint64((1 << 64) - 1)


@inlined
def cut_to_client(high, low):
    """Return the client that an address belongs to: itself, or the first address of its network."""
    if is_one_client(high):
        return high & _CLIENT_MASK, np.uint64(0)
    return high, low


@inlined
def end_of_client(high, low):
    """Return the last address of a client."""
    if is_one_client(high):
        return high | ~_CLIENT_MASK, _ALL
    return high, low


@inlined
def cut_to_net(high, low):
    """Return the network of a client and its neighbours; a host name, which has none, stays as it is."""
    if is_mapped(high, low):
        return high, low & _NET4_MASK
    if is_one_client(high):
        return high & _NET_MASK, np.uint64(0)
    return high, low


@inlined
def is_mapped(high, low):
    """Return whether it is an IPv4 address."""
    return high == np.uint64(0) and (low >> np.uint64(32)) == np.uint64(0xFFFF)


@inlined
def strip_port(buf, at, end):
    """Return (begin, end) of the name in `[address]:port`, `[address]` or `name:port`."""
    if end - at >= 3 and buf[at] == 0x5B:
        close = at + 1
        while close < end and buf[close] != 0x5D:
            close += 1
        if close < end:
            return at + 1, close
    colon = end - 1
    while colon > at and 0x30 <= buf[colon] <= 0x39:
        colon -= 1
    if colon <= at or colon == end - 1 or buf[colon] != 0x3A:
        return at, end
    for i in range(at, colon):
        if buf[i] == 0x3A:  # more colons: an IPv6 address
            return at, end
    return at, colon


@part
def strip_zone(buf, at, end):
    """Return where an IPv6 address ends if it has a zone behind it; for any other text, its end."""
    has_colon = False
    for i in range(at, min(at + 5, end)):
        has_colon |= buf[i] == 0x3A
    if has_colon:
        for i in range(at, end):
            if buf[i] == 0x25:
                return np.int64(i) if read_ipv6(buf, at, i)[0] else end
    return end


@inlined
def is_client(buf, at, end):
    """Return whether these bytes can be an address or a name."""
    if end - at < 1 or end - at > 255 or (end - at == 1 and buf[at] == 0x2D):
        return False
    for i in range(at, end):  # noqa: SIM110  (numba has no generators)
        if _IN_CLIENTS[buf[i]] == 0:
            return False
    return True


@part
def is_trusted(buf, at, end, networks):
    """Return (whether it is an address, whether it is one of a trusted proxy)."""
    fits, high, low = read_address(buf, at, end)
    if not fits:
        return False, False
    old = is_mapped(high, low)
    for row in range(len(networks)):
        if (
            (high & networks[row, 0]) == networks[row, 2]
            and (low & networks[row, 1]) == networks[row, 3]
            and is_mapped(networks[row, 2], networks[row, 3]) == old  # `::/0` says nothing about IPv4
        ):
            return True, True
    return True, False


@part
def find_forwarded(buf, at, end, networks):
    """Return (begin, end) of the right-most address of a list that is not trusted, or of the first.

    Return (-1, -1) if an entry on the way to it is not an address.
    """
    begin, stop = np.int64(-1), np.int64(-1)
    cut = end
    while cut >= at:
        comma = cut - 1
        while comma >= at and buf[comma] != 0x2C:
            comma -= 1
        first, last = comma + 1, cut
        # Blanks, and the quotes of a list in JSON.
        while first < last and (buf[first] == 0x20 or buf[first] == 0x22):
            first += 1
        while first < last and (buf[last - 1] == 0x20 or buf[last - 1] == 0x22):
            last -= 1
        begin, stop = strip_port(buf, first, last)
        stop = strip_zone(buf, begin, stop)
        fits, trusted = is_trusted(buf, begin, stop, networks)
        if not fits:
            return np.int64(-1), np.int64(-1)
        if not trusted:
            return begin, stop
        cut = comma
    return begin, stop
