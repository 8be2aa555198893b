"""How the kernels of this application are compiled: as those of the formats, with a stamp of this folder too.

Rule: a cached kernel is used only with the sources it was made of. `format_compilation` stamps kernels with
the sources of the formats; what these kernels are made of stands here as well.

>>> one_more = kernel(lambda number: number + 1)
>>> one_more(41)
42
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from penstock.kernels import format_compilation

__all__ = ["kernel"]

#: Files whose text becomes part of a kernel; all others may change without a compilation.
_SOURCES = (
    "*kernel*.py",
    "*arrays*.py",
    "*steps*.py",
    "rule_set.py",
    "line_scanning.py",
    "line_slots.py",
    "client_addresses.py",
    "client_prefixes.py",
)


@functools.cache
def _stamp() -> tuple[str, int]:
    """Shaped like numba's own stamp; changes with the sources of kernels here and with the formats."""
    ours = format_compilation.hash_sources(resources.files("penstock.apps.accesslog"), _SOURCES)
    return hashlib.sha256(f"{format_compilation.source_stamp()[0]}|{ours}".encode()).hexdigest(), 0


def kernel(function: Callable[..., Any]) -> format_compilation.Kernel:
    """Compile lazily, without the interpreter's lock, cached on disk if there is a place for it."""
    compiled = format_compilation.kernel(function)
    cached = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cached is not None:
        cached._source_stamp = _stamp()
    return compiled
