"""Finds free ports on the loopback address.

Rule: a port that the user did not name is chosen from below the kernel's range for outgoing connections.
Asking for port 0 looks simpler, but the kernel can give such a port to any client before the broker binds it,
and again while a stopped broker waits to be started on its old port.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from penstock.core.errors import ClusterError

LOOPBACK = "127.0.0.1"
#: The listening state in the kernel's table of sockets.
_LISTENING = "0A"
LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def find_free_ports(count: int, *, avoid: Sequence[int] = ()) -> list[int]:
    """Return this many different free ports."""
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
    """Raise an error if any of the user's ports is invalid or taken, and name those that are taken."""
    if len(set(ports)) != len(ports) or any(not 0 < port < 65_536 for port in ports):
        raise ClusterError(
            "BAD_PORT", f"{list(ports)} are not different ports from 1 to 65535.", hint="Name others."
        )
    taken = [port for port in ports if not is_free(port)]
    if taken:
        raise ClusterError(
            "PORT_TAKEN",
            f"{LOOPBACK} port {', '.join(map(str, taken))} is taken by another program"
            f"{_describe_listener(taken[0])}.",
            hint="Stop that program or choose another port.",
            facts={"ports": taken},
        )


def _describe_listener(port: int) -> str:
    """Return the process that listens there, in brackets; an empty text if that cannot be seen."""
    pid = _find_listener(port)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    kafka = next((word for word in words if word.endswith("/server.properties")), None)
    if kafka is not None:
        return f" (process {pid}, a Kafka in {Path(kafka).parent})"
    name = Path(words[0]).name  # a process may have changed its name
    return f" (process {pid}, {name})" if name else f" (process {pid})"


def _find_listener(port: int) -> int | None:
    """Return the id of the process listening on this port; None if another user's, or not on Linux."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    for pid in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    if os.readlink(f"/proc/{pid}/fd/{descriptor}") in sockets:
                        return int(pid)
    return None
