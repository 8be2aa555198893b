"""Who is never blocked, as sorted ranges: what the operator allows, trusted proxies, crawlers, and ourselves.

Rules: what nobody may block (loopback, link-local, multicast, reserved) is in the ranges always, and the
blocklists take it from here: no decision says `block` of an address that no list would hold. A crawler is
believed by its address, never by its name; anyone can call himself Googlebot. The ranges that crawlers tell
of are shipped as data (`crawlers.csv`), because looking names up while a flood runs is a second flood.

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

from penstock.apps.accesslog.defence.clients import bounds_of
from penstock.apps.accesslog.defence.networks import Network, demand_network

CRAWLERS = Path(__file__).parent / "crawlers.csv"
#: What is nobody's address in the Internet, or everybody's: to block it shuts a server off from itself.
NEVER_BLOCKED = tuple(
    demand_network("never blocked", each)
    for each in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/3",
        "::/127",
        "fe80::/10",
        "ff00::/8",
    )
)
_LOW = (1 << 64) - 1


@cache
def list_crawlers() -> tuple[tuple[str, Network], ...]:
    """Search engines and the networks that they say their crawlers come from."""
    with CRAWLERS.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple((row["crawler"], demand_network(CRAWLERS.name, row["network"])) for row in rows)


def make_ranges(
    allow: Iterable[str], trusted_proxies: Iterable[str], *, crawlers: bool, local: bool = True
) -> tuple[NDArray[np.uint64], ...]:
    """First and last addresses, high and low words of each: sorted, and joined where they touch."""
    networks = [*(NEVER_BLOCKED if local else ()), *(demand_network("allow", each) for each in allow)]
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
