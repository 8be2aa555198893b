"""Free ports on the loopback address.

Rule: a port nobody named is taken from below the range the kernel gives to outgoing connections. Asking
for port 0 looks simpler, but such a port can be handed to any client between the question and the
broker's bind, and again while a stopped broker waits to be started on its old port.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from penstock.core.errors import ClusterError

LOOPBACK = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def find_free_ports(count: int, *, avoid: Sequence[int] = ()) -> list[int]:
    """So many different free ports."""
    candidates = random.sample(range(LOWEST_PORT, HIGHEST_PORT), HIGHEST_PORT - LOWEST_PORT)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    if len(found) < count:
        raise ClusterError("NO_FREE_PORT", f"No {count} free ports on {LOOPBACK}.", hint="Stop some servers.")
    return found


def demand_free(ports: Sequence[int]) -> None:
    """Fail, naming them, when ports the user asked for are taken."""
    if len(set(ports)) != len(ports) or any(not 0 < port < 65_536 for port in ports):
        raise ClusterError(
            "BAD_PORT", f"{list(ports)} are not different ports from 1 to 65535.", hint="Name others."
        )
    taken = [port for port in ports if not is_free(port)]
    if taken:
        raise ClusterError(
            "PORT_TAKEN",
            f"{LOOPBACK} port {', '.join(map(str, taken))} is taken by another program.",
            hint="Stop that program or choose another port.",
            facts={"ports": taken},
        )
