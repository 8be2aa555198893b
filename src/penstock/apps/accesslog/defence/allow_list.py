"""Addresses that are never blocked, as sorted ranges: allowed and local networks, trusted proxies, crawlers.

Rules: multicast and reserved addresses are always in the ranges. Local networks (private, loopback,
link-local) are in them unless the operator asks to block them: nobody attacks from them over the Internet,
but load balancers, health checks and colleagues have such addresses. Decisions and blocklists both take the
ranges from here. A crawler is trusted by its address, never by its name; anyone can claim to be Googlebot.
The ranges that crawlers publish are shipped as data (`crawlers.csv`): looking up names during a flood would
be a second flood.

>>> ranges = make_ranges(["192.0.2.0/25", "192.0.2.128/25"], [], crawlers=False)
>>> len(ranges[0]) - len(make_ranges([], [], crawlers=False)[0])
1
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.apps.accesslog.events.networks import Network, NetworkSet, demand_network, parse_network
from penstock.apps.accesslog.events.subjects import bounds_of

CRAWLERS = Path(__file__).parent / "crawlers.csv"


def _read(*networks: str) -> tuple[Network, ...]:
    return tuple(demand_network("never blocked", each) for each in networks)


#: Addresses that are reserved or multicast.
_RESERVED = _read("0.0.0.0/8", "224.0.0.0/3", "::/128", "ff00::/8")
#: Addresses of this computer and of its links: loopback and link-local.
_OWN = _read("127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10")
#: Networks that are routed inside an organisation only: RFC 1918, unique-local, the old site-local, and
#: 100.64.0.0/10. A provider's customers are behind the last one, but a server outside never sees it. A server
#: that does see it has pods, an overlay network or a load balancer there.
_PRIVATE = _read("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")
#: What no list may hold, whatever the settings: blocking it would cut a server off from itself.
NEVER_BLOCKED = (*_RESERVED, *_OWN)
#: What is spared unless the operator asks to block it.
LOCAL = (*_OWN, *_PRIVATE)
_LOCAL = NetworkSet(LOCAL)
_LOW = (1 << 64) - 1


@cache
def list_crawlers() -> tuple[tuple[str, Network], ...]:
    """Return pairs of a crawler and a network that its operator publishes for it."""
    with CRAWLERS.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple((row["crawler"], demand_network(CRAWLERS.name, row["network"])) for row in rows)


def is_local(text: str) -> bool:
    """Return whether this is a local address or network: private, loopback or link-local.

    >>> [is_local(each) for each in ("10.0.0.5", "fd00::/64", "::1", "192.0.2.7", "a.example")]
    [True, True, True, False, False]
    """
    network = parse_network(text)
    return network is not None and _LOCAL.covers(network)


def make_ranges(
    allow: Iterable[str], trusted_proxies: Iterable[str], *, crawlers: bool, block_private: bool = False
) -> tuple[NDArray[np.uint64], ...]:
    """Return sorted, merged ranges as columns: high and low words of the first and the last addresses."""
    networks = [*_RESERVED, *(() if block_private else LOCAL)]
    networks += [demand_network("allow", each) for each in allow]
    networks += [demand_network("trusted_proxies", each) for each in trusted_proxies]
    if crawlers:
        networks += [network for _, network in list_crawlers()]
    spans: list[list[int]] = []
    for first, last in sorted(_span(each) for each in networks):
        if spans and first <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], last)
        else:
            spans.append([first, last])
    columns = [[first >> 64, first & _LOW, last >> 64, last & _LOW] for first, last in spans]
    words = np.array(columns, np.uint64).reshape(-1, 4)
    return tuple(np.ascontiguousarray(words[:, column]) for column in range(4))


def _span(network: Network) -> tuple[int, int]:
    (first_high, first_low), (last_high, last_low) = bounds_of(network)
    return first_high << 64 | first_low, last_high << 64 | last_low
