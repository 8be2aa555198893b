"""Ends a server: sends ever stronger signals and waits until its process has ended and its lock is free.

Rule: a process that is known only by its id gets a signal only while the server's lock is held, which shows
that the process is ours. A server counts as gone only when its lock is free, too, because processes that it
has started also hold the lock. Every wait has a deadline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from penstock.cluster.processes.owned_process import is_locked
from penstock.core.errors import ClusterError

_POLL_S = 0.05
_KILL_PATIENCE_S = 30.0


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the condition holds; return False if that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end_server(
    name: str, process: subprocess.Popen[bytes] | int, lock: Path, *steps: tuple[signal.Signals, float]
) -> None:
    """Send each signal, wait its number of seconds, and send SIGKILL last; raise if the server survives."""
    known = None if isinstance(process, int) else process
    pid = process if isinstance(process, int) else process.pid

    def is_gone() -> bool:
        return (known is None or known.poll() is not None) and not is_locked(lock)

    for number, patience_s in (*steps, (signal.SIGKILL, _KILL_PATIENCE_S)):
        if known is not None:
            known.send_signal(number)  # does nothing once the process has ended
        elif is_locked(lock):
            os.kill(pid, number)
        if wait_until(is_gone, patience_s):
            return
    hint = "Its disk may hang; look at the process."
    if name.startswith("Broker"):
        raise ClusterError("BROKER_DID_NOT_STOP", f"{name} (process {pid}) survives SIGKILL.", hint=hint)
    raise ClusterError("DATABASE_DID_NOT_STOP", f"{name} (process {pid}) survives SIGKILL.", hint=hint)
