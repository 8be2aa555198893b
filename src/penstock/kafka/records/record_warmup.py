"""Compiling the kernels once per machine, not once per worker at the same time.

Rules: the first process compiles under a lock while the others wait and then load what it wrote; when a mark
says that these sources are compiled for this processor, nobody takes the lock. Where nothing can be written,
everybody compiles for himself, and nothing fails; a lock that does not come free (its holder may be stopped)
is waited for `LOCK_PATIENCE_S` and no longer.

Why not rely on numba's cache alone: a fresh container starts all its workers together, and each would
compile the same kernels for several seconds, on processors the others need. And numba looks only at the file
a kernel stands in: when `jit.py` changes, whose copying is compiled into the kernels of other files, it would
go on loading the old code. So sources without a mark have the old indexes removed before they are compiled.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import IO

import llvmlite.binding
import numba
import numpy as np
import pyarrow as pa
from numba.core import event

from penstock.core.log_lines import get_logger
from penstock.kafka.records import codecs, decompressed_size, record_decoding_kernel
from penstock.kafka.records.key_partitioner import group_rows, partition_of_keys
from penstock.kafka.records.record_decoder import RecordDecoder
from penstock.kafka.records.record_encoder import Encoder, record_columns
from penstock.kafka.records.record_schema import ARROW_TYPES
from penstock.kernels import compilation

log = get_logger(__name__)

#: How long to wait for a process that compiles; on a busy machine it takes half of this.
LOCK_PATIENCE_S = 60.0
#: The kind of numba's event while we wait; a program that shows compilations listens to it too.
WAITING = "penstock:waiting"
_LOCK_PAUSE_S = 0.05
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


def compile_encoding() -> None:
    """Make the kernels ready that a writer calls: for the partition of each record, and for the records."""
    columns = record_columns(pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])}), now_ms=0)
    rows, _ = group_rows(partition_of_keys(columns.keys, 2), 2)
    for _ in Encoder(max_batch_bytes=1_000).encode(columns, rows):
        pass


def _compile_in_turn() -> None:
    place = _cache_place()
    if place is None or _mark(place).exists():
        _decode_nothing()
        return
    with open(place / "penstock-kernels.lock", "a") as lock:
        _wait_for(lock)
        # From here on also without the lock: numba replaces its files whole, so two at a time lose only time.
        if _mark(place).exists():  # somebody else was faster
            _decode_nothing()
            return
        _remove_stale(place)
        with _telling("the decoding kernels"):
            _decode_nothing()
        _mark(place).touch()


def compile_in_turn(what: str, compile_it: Callable[[], None]) -> None:
    """Let one process of this machine at a time do what compiles kernels for the first time.

    `what` names the kernels and their sources. Nobody waits once it was done, or where nothing can be kept.
    """
    try:
        place = _cache_place()
        if place is not None:
            processor = _shorten(llvmlite.binding.get_host_cpu_name())
            mark = place / f"penstock-{_shorten(f'{numba.__version__}|{what}')}-{processor}.compiled"
            if not mark.exists():
                with open(place / "penstock-formats.lock", "a") as lock:
                    _wait_for(lock)
                    if not mark.exists():
                        with _telling("the kernels of a value format"):
                            compile_it()
                        mark.touch()
                        return
    except OSError:
        log.debug("Nothing can be kept of what is compiled.", exc_info=True)
    compile_it()


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Log why the first query on a computer takes so long; a bar is for commands."""
    log.info("Compiling %s, once on this computer; `penstock warmup` does it beforehand.", what)
    began_s = time.monotonic()
    yield
    log.info("Compiled %s in %.1f s.", what, time.monotonic() - began_s)


def _wait_for(lock: IO[str]) -> None:
    """Wait until we have the lock, or have waited long enough."""
    if _take(lock):
        return
    log.info("Another process is compiling these kernels. Waiting for it, at most %g s.", LOCK_PATIENCE_S)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with event.trigger_event(WAITING):
        while not _take(lock):
            if time.monotonic() >= deadline:
                log.warning("Nobody else finished compiling within %g s; compiling alone.", LOCK_PATIENCE_S)
                return
            time.sleep(_LOCK_PAUSE_S)


def _take(lock: IO[str]) -> bool:
    """Take the lock; return whether it was free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_stale(place: Path) -> None:
    """Forget what other sources were compiled to. What the same sources gave another processor stays."""
    if any(place.glob(f"penstock-kernels-{_source_key()}-*.compiled")):
        return
    # All of this folder, the writer's kernels too; it may be in a zip.
    sources = resources.files("penstock.kafka.records").iterdir()
    ours = {Path(entry.name).stem for entry in sources if entry.name.endswith(".py")}
    indexes = [path for path in place.glob("*.nbi") if path.name.partition(".")[0] in ours]
    for path in (*place.glob("penstock-kernels-*.compiled"), *indexes):
        with contextlib.suppress(FileNotFoundError):  # another process out of turn was faster
            path.unlink()


def _decode_nothing() -> None:
    """Call every decoding kernel with the types a real read uses."""
    decoder = RecordDecoder("", 0, tuple(ARROW_TYPES), max_rows=8, max_bytes=8)
    empty = np.empty(0, np.uint8)
    decoder.open(empty)
    for _ in (*decoder.rows(0, 0), *decoder.rest()):
        raise AssertionError("an empty buffer has no rows")
    decoder.compile_fill()
    for codec in (codecs.LZ4, codecs.ZSTD):
        bound = decompressed_size.bound_lz4 if codec == codecs.LZ4 else decompressed_size.bound_zstd
        bound(empty, 0, 0)


def _cache_place() -> Path | None:
    """Where numba keeps the compiled kernels, if it can."""
    path = record_decoding_kernel.fill.stats.cache_path
    if path is None:
        return None
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path) if os.access(path, os.W_OK) else None


def _mark(place: Path) -> Path:
    """The mark that these sources are compiled for this processor."""
    processor = _shorten(llvmlite.binding.get_host_cpu_name())
    return place / f"penstock-kernels-{_source_key()}-{processor}.compiled"


def _source_key() -> str:
    """Other sources or another numba make another key."""
    parts = [numba.__version__]
    for module in (record_decoding_kernel, decompressed_size, compilation):
        package, _, name = module.__name__.rpartition(".")
        source = resources.files(package).joinpath(f"{name}.py").read_bytes()
        parts.append(f"{module.__file__}:{hashlib.sha256(source).hexdigest()}")
    return _shorten("|".join(parts))


def _shorten(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
