"""Waits for what other processes and threads do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def wait_until(
    holds: Callable[[], object], what: str, timeout_s: float = 120.0, *, every_s: float = 0.02
) -> None:
    """Poll a condition until it holds; fail with `what` at the deadline.

    The deadline is far off, because on a busy machine a rebalance or a broker's start takes a minute. A test
    that gets what it waits for ends at once.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)


def is_silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    """Return whether nothing comes from the other side for a while."""
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)
    return False
