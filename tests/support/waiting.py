"""Waits for what other processes and threads do."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path


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


def stop_process(pid: int) -> None:
    """Stop a process and wait until all its threads stand: they stop one by one, and one may still answer."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _all_threads_stand(pid), f"all threads of the process {pid} stand")


def _all_threads_stand(pid: int) -> bool:
    try:
        states = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended between the listing and the look
        return False
    return {each.rpartition(")")[2].split()[0] for each in states} == {"T"}


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
