"""Keeps what is loaded for good, kernels above all, out of a worker's garbage collections.

Rule: once in a worker's life for each stage that loads something, at the end of its first task. PySpark
collects after every task, before the worker takes the next one. With numba loaded that walks 140,000 objects
which never go away: 60 ms a task; frozen, nothing. Why not ask the collector whether it was done before: to
count what is frozen it walks all of it, 10 ms.

    spare_the_collector("reading")
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_the_collector(stage: str, *, collects: bool = False) -> None:
    """Freeze what is loaded by now; `collects` first, for a stage whose tables have left garbage."""
    if collects:
        gc.collect()
    gc.freeze()
