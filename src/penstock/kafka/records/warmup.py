"""Compiling the kernels once per machine, not once per worker at the same time.

Rule: the first process compiles under a lock while the others wait and then load what it wrote; when a mark
says that this version is compiled for this processor, nobody takes the lock. Where nothing can be written,
everybody compiles for himself, and nothing fails.

Why not rely on numba's cache alone: a fresh container starts all its workers together, and each would
compile the same kernels for several seconds, on processors the others need.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np

from penstock.kafka.records import bounds, codecs, jit, kernels
from penstock.kafka.records.arrow_types import ARROW_TYPES
from penstock.kafka.records.decode import RecordDecoder

_done = False


def ensure_compiled() -> None:
    """Make the decoding kernels ready in this process; at once if they are."""
    global _done  # noqa: PLW0603  (once per process, whatever calls it)
    if _done:
        return
    try:
        _compile_in_turn()
    except OSError:  # no place, no lock, no room: compile for ourselves
        _decode_nothing()
    _done = True


def _compile_in_turn() -> None:
    place = _cache_place()
    if place is None or (place / _mark()).exists():
        _decode_nothing()
        return
    with open(place / "penstock-kernels.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _decode_nothing()
        (place / _mark()).touch()


def _decode_nothing() -> None:
    """Call every decoding kernel with the types a real read uses."""
    decoder = RecordDecoder("", 0, tuple(ARROW_TYPES), max_rows=8, max_bytes=8)
    empty = np.empty(0, np.uint8)
    decoder.open(empty)
    for _ in decoder.rows(0, 0):
        raise AssertionError("an empty buffer has no rows")
    decoder.compile_fill()
    for codec in (codecs.LZ4, codecs.ZSTD):
        bound = bounds.bound_lz4 if codec == codecs.LZ4 else bounds.bound_zstd
        bound(empty, 0, 0)


def _cache_place() -> Path | None:
    """Where numba keeps the compiled kernels, if it can."""
    path = kernels.fill.stats.cache_path
    if path is None:
        return None
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path) if os.access(path, os.W_OK) else None


def _mark() -> str:
    """The name of the mark: other sources, another numba or another processor make another name."""
    parts = [numba.__version__, llvmlite.binding.get_host_cpu_name()]
    for module in (kernels, bounds, jit):
        stat = os.stat(str(module.__file__))
        parts.append(f"{module.__file__}:{stat.st_mtime_ns}:{stat.st_size}")
    return f"penstock-kernels-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.compiled"
