"""Keeps permanently loaded objects, above all kernels, out of a worker's garbage collections.

Rule: this is done once in a worker's life for each stage that loads something, at the end of its first task.
PySpark collects after every task, before the worker takes the next one. With numba loaded, that walks 140,000
objects that are never freed: 60 ms a task, or nothing if they are frozen. Why not ask the collector whether
it was done before: it counts frozen objects by walking all of them, which takes 10 ms.

    spare_the_collector("reading")
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_the_collector(stage: str, *, collects: bool = False) -> None:  # noqa: ARG001  (the cache asks it)
    """Freeze all loaded objects. With `collects`, collect first, for a stage whose tables leave garbage."""
    if collects:
        gc.collect()
    gc.freeze()
