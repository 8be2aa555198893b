"""Addresses and networks as numbers, of which blocklists are made, so that no hostile text can be in one.

Rule: text becomes two numbers here or it is refused, and files are written from the numbers. So quotes, line
breaks, host names and `; drop` get no further, whatever the log said.

Why not `ipaddress`: it accepts `fe80::1%any text`, whose end is any text, and it is ten times slower, which
matters in a flood with a hundred thousand bans. Why not the kernel that reads clients in a log: a program
that only writes lists would have to load a compiler for it. Both accept the same addresses, and a test
compares them. Neither accepts `010.0.0.1`. An IPv4 address inside IPv6 (`::ffff:192.0.2.1`) is the same
client as the IPv4 address, and becomes that address here.

>>> str(parse_network("::ffff:192.0.2.7")), str(parse_network("2001:DB8::/48")), parse_network("a.example")
('192.0.2.7', '2001:db8::/48', None)
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.errors import OptionError

#: The longest text that can be a network: an IPv6 address with an IPv4 end, a slash and three digits.
_LONGEST_TEXT = 49
_MAPPED = 0xFFFF << 32
_FAMILIES = {4: (socket.AF_INET, 32), 6: (socket.AF_INET6, 128)}


class Network(NamedTuple):
    """A network, or one address: all addresses whose first `prefix` bits are those of `first`."""

    version: int
    first: int
    prefix: int

    @property
    def bits(self) -> int:
        return _FAMILIES[self.version][1]

    @property
    def last(self) -> int:
        return self.first | ((1 << (self.bits - self.prefix)) - 1)

    @property
    def is_address(self) -> bool:
        return self.prefix == (32 if self.version == 4 else 128)

    @property
    def size(self) -> int:
        return 1 << (self.bits - self.prefix)

    def contains(self, other: Network) -> bool:
        return (
            self.version == other.version
            and self.prefix <= other.prefix
            and self.first == other.first >> (self.bits - self.prefix) << (self.bits - self.prefix)
        )

    def overlaps(self, other: Network) -> bool:
        return self.contains(other) or other.contains(self)

    def halves(self) -> tuple[Network, Network]:
        """Return the two networks it is made of; an address has none."""
        step = 1 << (self.bits - self.prefix - 1)
        return (
            Network(self.version, self.first, self.prefix + 1),
            Network(self.version, self.first + step, self.prefix + 1),
        )

    def __str__(self) -> str:
        family, bits = _FAMILIES[self.version]
        text = socket.inet_ntop(family, self.first.to_bytes(bits // 8, "big"))
        return text if self.prefix == bits else f"{text}/{self.prefix}"


def parse_network(text: str) -> Network | None:
    """Return the address or network in `text`, with host bits cleared; None for anything else."""
    if not 2 <= len(text) <= _LONGEST_TEXT or not text.isascii():
        return None
    address, slash, length = text.partition("/")
    version = 6 if ":" in address else 4
    family, bits = _FAMILIES[version]
    try:
        number = int.from_bytes(socket.inet_pton(family, address), "big")
    except (OSError, ValueError):  # ValueError: a zero byte
        return None
    prefix = bits
    if slash:
        if not (length.isdigit() and len(length) <= 3 and int(length) <= bits):
            return None
        prefix = int(length)
    if version == 6 and prefix >= 96 and number >> 32 == 0xFFFF:
        version, bits, prefix, number = 4, 32, prefix - 96, number ^ _MAPPED
    return Network(version, number >> (bits - prefix) << (bits - prefix), prefix)


def demand_network(option: str, text: str) -> Network:
    """Return the network that an operator wrote; raise NETWORK_INVALID if it is not an address or network."""
    network = parse_network(text.strip())
    if network is None:
        raise OptionError(
            "NETWORK_INVALID",
            f"{option} is given {text.strip()[:80]!r}, which is neither an address nor a network.",
            hint="Write 192.0.2.7, 192.0.2.0/24, 2001:db8::7 or 2001:db8::/48.",
            facts={"option": option},
        )
    return network


class NetworkSet:
    """A set of networks with fast tests of whether it covers or touches another network."""

    __slots__ = ("_firsts", "_members")

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._members: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}
        firsts: dict[int, set[int]] = {4: set(), 6: set()}
        for each in networks:
            self._members[each.version].setdefault(each.prefix, set()).add(each.first)
            firsts[each.version].add(each.first)
        self._firsts = {version: sorted(some) for version, some in firsts.items()}

    def __bool__(self) -> bool:
        return any(self._firsts.values())

    def covers(self, network: Network) -> bool:
        """Return whether one network of the set contains all of this one."""
        bits = network.bits
        return any(
            network.first >> (bits - prefix) << (bits - prefix) in firsts
            for prefix, firsts in self._members[network.version].items()
            if prefix <= network.prefix
        )

    def touches(self, network: Network) -> bool:
        """Return whether any address is in both the set and this network."""
        firsts = self._firsts[network.version]
        at = bisect_left(firsts, network.first)
        return (at < len(firsts) and firsts[at] <= network.last) or self.covers(network)

    def subtract_from(self, network: Network) -> list[Network]:
        """Return what is left of a network without the set, in as few networks as possible."""
        if not self.touches(network):
            return [network]
        if self.covers(network):
            return []
        left, right = network.halves()
        return self.subtract_from(left) + self.subtract_from(right)
