"""Opens a TCP connection to a host, within a deadline.

Rule: even the name look-up ends by the deadline. Why not `socket.create_connection`: it resolves
names without any time limit (a dead name server holds it for tens of seconds) and then gives every
address the full timeout in turn.

    raw = connect_tcp(settings, "broker.example", 9092, Deadline.after_ms(10_000))
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.kafka.transport.deadlines import Deadline

_Address = tuple[socket.AddressFamily, Any]


def connect_tcp(settings: ClientSettings, host: str, port: int, deadline: Deadline) -> socket.socket:
    """Return a socket to the first address of `host` that answers; each gets its share of the time left."""
    addresses = _resolve(host, port, deadline)
    what = f"a TCP connection to {host}:{port}"
    last_error: OSError | None = None
    for tried, (family, address) in enumerate(addresses):
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # 0 means "leave it to the system".
            if settings.receive_buffer_bytes > 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
            if settings.send_buffer_bytes > 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
            raw.settimeout(deadline.wait_s(what) / (len(addresses) - tried))
            raw.connect(address)
        except OSError as error:
            raw.close()
            last_error = error
        except BaseException:
            raw.close()
            raise
        else:
            return raw
    if isinstance(last_error, TimeoutError) and last_error.errno != errno.ETIMEDOUT:  # ours, not the system's
        raise deadline.timeout_error(what) from last_error
    raise _unreachable(host, port, last_error) from last_error


def _resolve(host: str, port: int, deadline: Deadline) -> list[_Address]:
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    if literal is None:  # not above, or an error of the look-up would be chained to the ValueError
        return _look_up(host, port, deadline)
    if literal.version == 4:
        return [(socket.AF_INET, (host, port))]
    return [(socket.AF_INET6, (host, port))]


def _look_up(host: str, port: int, deadline: Deadline) -> list[_Address]:
    # getaddrinfo takes no time limit, so it runs on a thread that may be abandoned: a daemon, which the
    # resolver's own limit ends.
    found: list[_Address] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.append((family, address))
        except (OSError, UnicodeError) as error:
            failed.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=ask, name=f"penstock-resolve-{host}", daemon=True)
    thread.start()
    thread.join(deadline.wait_s(f"the address of {host}"))
    if thread.is_alive():
        raise deadline.timeout_error(f"the address of {host}")
    if failed or not found:
        raise _unreachable(host, port, failed[0] if failed else None)
    return found


def _unreachable(host: str, port: int, error: OSError | None) -> BrokerError:
    reason = (error.strerror or str(error)) if error is not None else "the name has no address"
    return BrokerError(
        "BROKER_UNREACHABLE",
        f"No connection to {host}:{port} ({reason}).",
        hint="Check the address (`kafka.bootstrap.servers`, in a terminal --bootstrap-server), the broker's "
        "advertised.listeners, and that it is running.",
        facts={"host": host, "port": port},
        retriable=True,
    )
