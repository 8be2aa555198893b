"""Temporary folders of servers that end with their owner.

Rule: a folder belongs to a process as long as that process holds the lock inside it. A killed owner cannot
clean up, so the process that makes the next folder removes those whose owner and servers are gone. Judging by
age instead would remove the data of a server that has been running for a long time.

    folder, lock = make_owned_folder("penstock-kafka-")
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from penstock.cluster.processes.owned_process import is_locked

_OWNER_LOCK = "owner.lock"


def make_owned_folder(prefix: str) -> tuple[Path, int]:
    """Return a new folder that only this user may enter, and its lock, a descriptor to keep open.

    Call this and keep what it returns under `hold_signals`: a folder without its lock file is never swept.
    """
    sweep_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))  # mode 0700
    return folder, lock_as_owner(folder)


def lock_as_owner(folder: Path) -> int:
    # Lock the file under another name first, so that a concurrent sweep cannot see it unlocked.
    lock = os.open(folder / ".locking", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / ".locking").rename(folder / _OWNER_LOCK)
    return lock


def sweep_abandoned(prefix: str) -> None:
    """Remove the folders of killed owners: their lock is free and no server runs in them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or not (folder / _OWNER_LOCK).exists():
                continue
            servers = [*folder.glob("server.lock"), *folder.glob("*/server.lock")]
            if not any(map(is_locked, [folder / _OWNER_LOCK, *servers])):
                shutil.rmtree(folder, ignore_errors=True)
