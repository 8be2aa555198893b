"""Files that are whole after a power cut: either the old one or the new one, never half of one.

Rule: the new file is written beside the old one, flushed to the disk and renamed. The folder is flushed too,
because otherwise the rename itself could be lost. A file of lines grows by whole lines.

    replace_durably(Path("offsets/visits.json"), "...", beside=Path("offsets/visits.new"))
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, text: str, *, beside: Path, mode: int = 0o666) -> None:
    """Write the text to `beside` and rename that to `path`; `mode` is for a new file, before the umask."""
    write_to_disk(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), text.encode())
    beside.replace(path)
    flush_to_disk(path.parent)


def append_line(path: Path, line: str) -> None:
    """Append the line to the file and flush it; create the file if it is missing. First drop a partial line
    that a crash has left at its end, because the new line would become part of it."""
    with path.open("ab+") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    flush_to_disk(path.parent)


def write_to_disk(file: Path | int, content: bytes) -> None:
    """Write a whole file, given by its path or open descriptor, and flush it."""
    with open(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def flush_to_disk(path: Path) -> None:
    """Flush a file that is already written, or a folder (the names in it)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
