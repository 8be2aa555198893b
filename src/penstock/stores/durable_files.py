"""Files that are whole after a power cut: the old one or the new one, never half of it.

Rule: the new file is written beside the old one, flushed to the disk and renamed, and the folder is flushed,
too: without that the rename itself may be lost.

    replace_durably(Path("offsets/visits.json"), "...", beside=Path("offsets/visits.new"))
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, text: str, *, beside: Path, mode: int = 0o666) -> None:
    """Write the text to `beside` and rename that to `path`; `mode` is for a new file, before the umask."""
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Flush a file that was written before, or a folder: the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
