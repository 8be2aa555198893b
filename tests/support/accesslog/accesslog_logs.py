"""Log files, what rotation does to them, and followers that a test need not close."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.accesslog.shipping.log_follower import LogFollower


class Clock:
    """A clock whose time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


_begun: list[LogFollower] = []


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while _begun:
        _begun.pop().close()


def line_of(number: int) -> str:
    return f"10.1.2.{number % 250} - - [01/Feb/2026:10:00:00 +0000] line {number}"


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("ab") as file:
        file.write(("\n".join(lines) + end).encode() if lines else end.encode())


def lines_in(pieces: Sequence[Any]) -> list[str]:
    return [line.decode() for piece in pieces for line in piece.lines.to_pylist()]


def read_all(follower: LogFollower, most_bytes: int = 1 << 20) -> list[str]:
    found: list[str] = []
    while pieces := follower.read(most_bytes):
        found += lines_in(pieces)
    return found


def follow(folder: Path, pattern: str = "access.log", **how: Any) -> LogFollower:
    how = {"clock": Clock(), "quiet_s": 30.0, **how}
    follower = LogFollower([str(folder / pattern)], how.pop("positions", ()), **how)
    _begun.append(follower)
    return follower


def pack(path: Path) -> Path:
    """Pack a file as gzip does: the same content and time under another name, with the old file gone."""
    packed = path.with_name(path.name + ".gz")
    with gzip.open(packed, "wb") as file:
        file.write(path.read_bytes())
    found = path.stat()
    os.utime(packed, ns=(found.st_atime_ns, found.st_mtime_ns))
    path.unlink()
    return packed
