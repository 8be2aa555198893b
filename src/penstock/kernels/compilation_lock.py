"""Compiles kernels once per machine, not in all workers at the same time.

Rules: the first process compiles under a lock while the others wait and then load what it wrote. If a marker
file says that these sources are compiled for this processor, no process takes the lock. Where nothing can be
written, each process compiles its own kernels, and nothing fails. A process waits at most `LOCK_PATIENCE_S`
for a lock that is not released (its holder may be stopped).

Why not rely on numba's cache alone: a fresh container starts all its workers together, and each would compile
the same kernels for several seconds, on processors the others need.

    compile_in_turn("records", __name__, decode_nothing, told="the decoding kernels")
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import llvmlite.binding
import numba
from numba.core import event

from penstock.core.loggers import get_logger
from penstock.kernels.compilation import kernel
from penstock.kernels.source_stamp import stamp_sources

log = get_logger(__name__)

#: How long to wait for a process that compiles; on a busy machine it takes half of this.
LOCK_PATIENCE_S = 60.0
#: The kind of numba event while a process waits; a program that shows compilations listens to it too.
WAITING = "penstock:waiting"
_LOCK_PAUSE_S = 0.05


def compile_in_turn(name: str, module: str, compile_it: Callable[[], None], *, told: str) -> None:
    """Call `compile_it`, which compiles kernels, in one process of this machine at a time.

    `name` is a short name for files, `module` is the module that leads to all these kernels by its imports,
    and `told` is their description for people. No process waits once they are compiled, or where nothing can
    be cached.
    """
    try:
        place = _cache_place()
        if place is not None:
            stamp = _shorten(f"{numba.__version__}|{stamp_sources(module)}")
            mark = (
                place / f"penstock-{name}-{stamp}-{_shorten(llvmlite.binding.get_host_cpu_name())}.compiled"
            )
            if not mark.exists():
                with open(place / f"penstock-{name}.lock", "a") as lock:
                    _wait_for(lock)
                    # From here on the lock may be missing: numba replaces its files whole, so two processes
                    # lose only time.
                    if not mark.exists():
                        _remove_old_marks(place, name, stamp)
                        with _telling(told):
                            compile_it()
                        mark.touch()
                        return
    except OSError:
        log.debug("Compiled kernels cannot be cached.", exc_info=True)
    compile_it()


def _remove_old_marks(place: Path, name: str, stamp: str) -> None:
    """Remove the marks of other sources, whose results are replaced, but keep other processors' marks."""
    for mark in place.glob(f"penstock-{name}-*.compiled"):
        if not mark.name.startswith(f"penstock-{name}-{stamp}-"):
            mark.unlink(missing_ok=True)  # a process without the lock may be faster


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Log why the first query on a computer takes so long; only commands show a bar."""
    log.info("Compiling %s, once on this computer; `penstock warmup` does it beforehand.", what)
    began_s = time.monotonic()
    yield
    log.info("Compiled %s in %.1f s.", what, time.monotonic() - began_s)


def _wait_for(lock: IO[str]) -> None:
    """Wait until the lock is taken or `LOCK_PATIENCE_S` is over."""
    if _take(lock):
        return
    log.info("Another process is compiling these kernels. Waiting for it, at most %g s.", LOCK_PATIENCE_S)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with event.trigger_event(WAITING):
        while not _take(lock):
            if time.monotonic() >= deadline:
                log.warning(
                    "No other process finished compiling within %g s; compiling here.", LOCK_PATIENCE_S
                )
                return
            time.sleep(_LOCK_PAUSE_S)


def _take(lock: IO[str]) -> bool:
    """Take the lock, and return whether it was free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@kernel
def _cached() -> None:
    """Show where numba keeps the compiled code of this package; never called."""


def _cache_place() -> Path | None:
    """Return where numba keeps compiled kernels, or None if it cannot keep them anywhere."""
    path = _cached.stats.cache_path
    if path is None:
        return None
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path) if os.access(path, os.W_OK) else None


def _shorten(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
