"""The size of a client and of its neighbourhood as prefixes, defined in one place for kernels and Python.

Rules. An IPv4 client is an address, and its neighbours are the /24. An IPv6 client is a /64: the owner of one
address can use all 2**64 of it, a new one for each request, so counting and blocking single addresses would
achieve nothing. Its neighbours are the /48, which is what a site gets.

Some networks belong to many customers, and there each address stays a client of its own: `::/64`, which holds
loopback and IPv4 addresses in IPv6's notation, and the networks that carry all of IPv4: NAT64 (64:ff9b::/32)
and Teredo (2001::/32). One /64 of those would be a crowd.

>>> is_one_client(0x20010DB8_00000000), is_one_client(0x0064FF9B_00000000), is_one_client(0)
(True, False, False)
"""

from __future__ import annotations

from typing import Any

import numpy as np

IPV6_CLIENT_PREFIX = 64  #: at most 64: the lower half of an address is never looked at
IPV4_NET_PREFIX = 24
IPV6_NET_PREFIX = 48
_SHIFT_32, _SHIFT_48 = np.uint64(32), np.uint64(48)
_NAT64, _TEREDO = np.uint64(0x0064FF9B), np.uint64(0x20010000)
#: The addresses 1::/16 belong to nobody: as numbers of clients they stand for host names.
_HOSTS = np.uint64(1)


def is_one_client(high: Any) -> bool:
    """Return whether the network around an address with this upper half is one client."""
    first = high >> _SHIFT_32
    return bool(high != 0 and high >> _SHIFT_48 != _HOSTS and first != _NAT64 and first != _TEREDO)
