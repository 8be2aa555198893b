"""Compiles kernels: without the GIL, cached on disk where possible, and never failing for lack of a cache.

Rules: a machine without a writable cache place runs uncached instead of refusing to start. numba's
`cache=True` raises when the decorator runs, so the fallback is here and not at every kernel. A cached kernel
is used only with the sources it was made from (see `source_stamp`): numba checks only the file that holds the
kernel, but most of what is compiled into it is in others.

Kernels create no arrays, so they are compiled without numba's runtime: counting references to their arguments
took five sixths of the time of the JSON kernel.

Copies between buffers go through LLVM's memcpy: numba's slice assignment costs about 25 ns a record before
the first byte moves, memcpy about 4 ns. memcpy checks nothing, so with numba's bounds checks on
(`NUMBA_BOUNDSCHECK=1`, a test run) the copy is an ordinary checked loop instead.

>>> one_more = kernel(lambda number: number + 1)
>>> one_more(41)
42
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from penstock.kernels.source_stamp import stamp_sources

# Kernels are plain loops over arrays; type hints would be "Any" thirty times and still be untrue.
Kernel = Any
_INNER = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: Callable[..., Any]) -> Kernel:
    """Return the function compiled lazily, without the GIL, and cached on disk if there is a place for it."""
    compiled: Kernel
    try:
        compiled = numba.njit(cache=True, nogil=True, _nrt=False)(function)
        # The stamp replaces numba's own version, which numba reads first: unpickling an index of other
        # sources would fail if it names a class that is gone.
        stamp = stamp_sources(function.__module__)
        compiled._cache._cache_file._version = f"{numba.__version__}|{stamp}"
        compiled._cache._cache_file._source_stamp = stamp
    except (RuntimeError, AttributeError, OSError):  # nowhere to write, another numba, unreadable sources
        compiled = numba.njit(nogil=True, _nrt=False)(function)
    return compiled


def inlined(function: Callable[..., Any]) -> Kernel:
    """Return the function as a piece of a kernel, inlined by LLVM into each caller."""
    return numba.njit(nogil=True, forceinline=True, **_INNER)(function)


def part(function: Callable[..., Any]) -> Kernel:
    """Return the function as a piece of a kernel that is called, not inlined: for rare or large pieces."""
    return numba.njit(nogil=True, **_INNER)(function)


@intrinsic
def _memcpy(context, target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        target_type, _, source_type, _, _ = signature.args
        into = context.make_array(target_type)(context, builder, arguments[0]).data
        out_of = context.make_array(source_type)(context, builder, arguments[2]).data
        target_address = builder.gep(into, [arguments[1]])
        cgutils.raw_memcpy(builder, target_address, builder.gep(out_of, [arguments[3]]), arguments[4], 1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _load(context, source, at):  # type: ignore[no-untyped-def]
    signature = types.uint64(source, types.int64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = builder.gep(data, [arguments[1]])
        as_word = builder.bitcast(word, context.get_value_type(types.uint64).as_pointer())
        return builder.load(as_word, align=1)

    return signature, generate


@intrinsic
def bits_of(context, value):  # type: ignore[no-untyped-def]
    """Return the 64 bits of a floating point number as a whole number."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic
def single_of(context, bits):  # type: ignore[no-untyped-def]
    """Return the floating point number with these 32 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


if numba.config.BOUNDSCHECK:

    @inlined
    def copy_bytes(target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
        for i in range(size):
            target[target_at + i] = source[source_at + i]

    @inlined
    def load_word(source, at):  # type: ignore[no-untyped-def]
        word = np.uint64(0)
        for i in range(8):
            word |= np.uint64(source[at + i]) << np.uint64(8 * i)
        return word

else:

    @inlined
    def copy_bytes(target, target_at, source, source_at, size):  # type: ignore[no-untyped-def]
        _memcpy(target, target_at, source, source_at, size)

    @inlined
    def load_word(source, at):  # type: ignore[no-untyped-def]
        """Return eight bytes as a little-endian number; the caller has checked that they are there."""
        return _load(source, at)
