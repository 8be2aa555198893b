"""Subjects, for which counters count: clients, their networks and fingerprints, as two numbers and as text.

A subject is 128 bits and a kind. An IPv4 address is stored as the IPv4-mapped IPv6 address, so that a client
has one name whichever way a server writes it. An IPv6 client is a /64, stored as its first address
(`penstock.apps.accesslog.parsing.client_prefixes` names the networks where each address is a client). A host
name is stored as a hash in a range that no address has, and its text is kept beside it. Rule: whatever is
compared or hashed is a number; texts are made for decisions only.

>>> name_subject(CLIENT, 0, 0xFFFF << 32 | 0xC0000207), name_subject(NET, 0, 0xFFFF << 32 | 0xC0000200)
('192.0.2.7', '192.0.2.0/24')
>>> name_client("2001:DB8:1:2::7"), name_client("::ffff:192.0.2.7"), name_client("a.example")
('2001:db8:1:2::/64', '192.0.2.7', 'a.example')
"""

from __future__ import annotations

import socket

from penstock.apps.accesslog.events.networks import Network, parse_network
from penstock.apps.accesslog.parsing.client_prefixes import (
    IPV4_NET_PREFIX,
    IPV6_CLIENT_PREFIX,
    IPV6_NET_PREFIX,
    is_one_client,
)

#: Kinds of subjects, as numbers in events and state.
CLIENT, NET, PRINT = 0, 1, 2
KINDS = ("client", "net", "print")
_MAPPED = 0xFFFF << 32
_HOST = 1 << 48


def is_host(high: int) -> bool:
    """Return whether these are the bits of a host name."""
    return high >> 48 == 1


def name_subject(kind: int, high: int, low: int, hosts: dict[tuple[int, int], str] | None = None) -> str:
    """Return the text of a subject: an address, a network, a host name, or a fingerprint."""
    if kind == PRINT:
        return f"print:{low:016x}"
    if is_host(high):
        return (hosts or {}).get((high, low), f"host:{high & (_HOST - 1):012x}{low:016x}")
    if high == 0 and low >> 32 == 0xFFFF:
        text = socket.inet_ntop(socket.AF_INET, (low & 0xFFFFFFFF).to_bytes(4, "big"))
        return f"{text}/{IPV4_NET_PREFIX}" if kind == NET else text
    text = socket.inet_ntop(socket.AF_INET6, ((high << 64) | low).to_bytes(16, "big"))
    if not is_one_client(high):
        return text
    return f"{text}/{IPV6_NET_PREFIX if kind == NET else IPV6_CLIENT_PREFIX}"


def find_client(network: Network) -> Network:
    """Return the client that an address is counted and blocked as; a wider network stays as it is."""
    if network.version == 4 or network.prefix <= IPV6_CLIENT_PREFIX or not is_one_client(network.first >> 64):
        return network
    spare = network.bits - IPV6_CLIENT_PREFIX
    return Network(6, network.first >> spare << spare, IPV6_CLIENT_PREFIX)


def name_client(text: str) -> str:
    """Return the name that decisions use for a client, however one of its addresses is written."""
    network = parse_network(text)
    return str(find_client(network)) if network else text


def bounds_of(network: Network) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the first and the last address of a network, each as its high and low 64 bits."""
    first, last = network.first, network.last
    if network.version == 4:
        return (0, _MAPPED | first), (0, _MAPPED | last)
    low = (1 << 64) - 1
    return (first >> 64, first & low), (last >> 64, last & low)
