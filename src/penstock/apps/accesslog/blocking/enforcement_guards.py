"""The guards of the enforcement API: tokens, host names, and limits on size, rate and duration of requests.

Rules: on loopback a token is optional; without one, every user of this computer may ask. On any other address
a token of at least 128 bits is required, and it is compared in constant time. A request must use a host name
that was configured, so a page in somebody's browser cannot reach the API under a name of its own. A request
must be small and must arrive before one deadline, even if its bytes come one by one. The number of requests
per second is limited.

>>> HostNames(["localhost"]).know("LOCALHOST:8477"), HostNames(["localhost"]).know("evil.example")
(True, False)
"""

from __future__ import annotations

import hashlib
import hmac
import io
import math
import re
import socket
import threading
import time
from collections.abc import Iterable
from http.client import LineTooLong

from penstock.apps.accesslog.events.networks import demand_network, parse_network
from penstock.core.client.client_settings import Secret
from penstock.core.errors import OptionError

LEAST_TOKEN_BITS = 128
_LEAST_DIFFERENT = 8
_LONGEST_TOKEN = 512
_ALPHABETS = (("[0-9]", 10), ("[0-9a-f]|[0-9A-F]", 16), ("[a-z]|[A-Z]", 26), ("[a-z0-9]|[A-Z0-9]", 36))
_TOKEN = re.compile(r"[!-~]+")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[0-9a-z._-]{1,253})(?::[0-9]{1,5})?")
_LOOPBACK = [demand_network("loopback", each) for each in ("127.0.0.0/8", "::1")]
_KNOWN_PEERS = 1024


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:8477`, `[::1]:8477` or `localhost:0`. Port 0 means any free one."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    network = parse_network(host)
    valid = colon and network is not None and network.is_address and re.fullmatch("[0-9]{1,5}", port)
    if not valid or int(port) > 65_535:
        raise OptionError(
            "LISTEN_INVALID",
            f"{text[:80]!r} is not an address to listen on.",
            hint="Write 127.0.0.1:8477, [::1]:8477 or localhost:8477.",
        )
    return str(network), int(port)


def is_loopback(host: str) -> bool:
    network = parse_network(host)
    return network is not None and any(each.contains(network) for each in _LOOPBACK)


def check_token(text: str) -> Secret:
    """Return the token, or raise TOKEN_WEAK if it could be guessed. No message ever shows it."""
    text = text.strip()
    letters = next((count for letters, count in _ALPHABETS if re.fullmatch(f"(?:{letters})+", text)), 64)
    bits = len(text) * math.log2(letters)
    if not text:
        reason = "is empty"
    elif not _TOKEN.fullmatch(text) or len(text) > _LONGEST_TOKEN:
        reason = f"has characters other than printable ASCII, or more than {_LONGEST_TOKEN} of them"
    elif bits < LEAST_TOKEN_BITS:
        reason = f"has {int(bits)} bits at best, and {LEAST_TOKEN_BITS} are needed"
    elif len(set(text)) < _LEAST_DIFFERENT:
        reason = "repeats a few characters"
    else:
        return Secret(text)
    raise OptionError(
        "TOKEN_WEAK",
        f"The token {reason}.",
        hint="Make one with `openssl rand -hex 32`, in a file that only its owner can read.",
    )


class TokenCheck:
    """Compares a request's token with the configured one, in constant time."""

    def __init__(self, token: Secret | None) -> None:
        self._digest = hashlib.sha256(token.reveal().encode()).digest() if token is not None else None

    def admits(self, authorization: str | None) -> bool:
        if self._digest is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        brought = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(brought, self._digest) and scheme.lower() == "bearer"


class HostNames:
    """The host names that a request may use, in upper or lower case and with any port."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {f"[{name}]" if ":" in name else name.lower() for name in names}

    def know(self, host: str) -> bool:
        found = _HOST.fullmatch(host.strip().lower())
        return found is not None and found[1] in self._names


class RateLimit:
    """Limits the requests per second of each address; a burst may have twice as many."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(2 * per_second, 1.0)
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def admits(self, peer: str, now_s: float | None = None) -> bool:
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            left, seen_s = self._left.pop(peer, (self._most, now_s))
            left = min(self._most, left + (now_s - seen_s) * self._per_second)
            self._left[peer] = (left - 1 if left >= 1 else left, now_s)
            if len(self._left) > _KNOWN_PEERS:
                # The first one has been silent the longest.
                del self._left[next(iter(self._left))]
            return left >= 1


class BoundedReader(io.RawIOBase):
    """Reads a request as it arrives, up to a maximum size and one deadline for all of its bytes."""

    def __init__(self, connection: socket.socket, *, most_bytes: int, deadline_s: float) -> None:
        self._connection = connection
        self._left = most_bytes
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        if self._left <= 0:
            raise LineTooLong("request")
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(remaining_s)
        view = memoryview(buffer)[: self._left]  # type: ignore[arg-type]
        count = self._connection.recv_into(view)
        self._left -= count
        return count
