"""How kernels are compiled: nogil, cached on disk where possible, and never a reason to fail.

Rule: a machine without a writable cache place runs uncached instead of refusing to start. numba's
`cache=True` raises when the decorator runs, so the fall-back is here and not at every kernel.

Copies between buffers go through LLVM's memcpy: numba's slice assignment costs about 25 ns a record
before the first byte moves, memcpy about 4 ns. memcpy checks nothing, so with numba's bounds checks on
(`NUMBA_BOUNDSCHECK=1`, a test run) the copy is an ordinary checked loop instead.

>>> import numpy as np
>>> target = np.zeros(4, np.uint8)
>>> copy_bytes(target, 1, np.frombuffer(b"abc", np.uint8), 0, 3)
>>> bytes(target)
b'\\x00abc'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

# Kernels are plain loops over arrays; their hints would say "Any" thirty times and still be untrue.
Kernel = Any


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile lazily, without the interpreter's lock, cached on disk if there is a place for it."""
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "no locator available": nowhere to write the cache
        compiled = numba.njit(nogil=True)(function)
    return compiled


def inlined(function: Callable[..., Any]) -> Kernel:
    """A piece of a kernel, inlined by LLVM into each of its callers."""
    return numba.njit(nogil=True, inline="never", forceinline=True)(function)


@intrinsic
def _memcpy(context, target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        target_type, _, source_type, _, _ = signature.args
        into = context.make_array(target_type)(context, builder, arguments[0]).data
        out_of = context.make_array(source_type)(context, builder, arguments[2]).data
        cgutils.raw_memcpy(
            builder,
            builder.gep(into, [arguments[1]]),
            builder.gep(out_of, [arguments[3]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    return signature, generate


if numba.config.BOUNDSCHECK:

    @inlined
    def copy_bytes(target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
        for i in range(size):
            target[target_at + i] = source[source_at + i]

else:

    @inlined
    def copy_bytes(target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
        _memcpy(target, target_at, source, source_at, size)
