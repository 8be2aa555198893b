"""How the kernels of the formats are compiled: nogil, cached on disk where possible.

Rules: a machine without a writable cache place runs uncached instead of refusing to start; and a cached
kernel is used only with the sources it was made of. numba looks at the file a kernel stands in, but most of
what is compiled into it (`sink`, `scanning`, `numbers`) stands in others, so the stamp it compares is taken
from all kernel sources of this folder. Why not delete old caches as the record kernels do: a worker would
have to hold a lock for it; a stamp needs none.

Kernels get and return arrays of others and make none, so they are compiled without numba's runtime: counting
references to their arguments took five sixths of the time of the JSON kernel.

>>> one_more = kernel(lambda number: number + 1)
>>> one_more(41)
42
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

# Kernels are plain loops over arrays; their hints would say "Any" thirty times and still be untrue.
Kernel = Any
_INNER = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@functools.cache
def source_stamp() -> tuple[str, int]:
    """Changes with any source in this folder; shaped like numba's own stamp."""
    folders = (resources.files("penstock.kernels"), resources.files("penstock.formats"))
    return "|".join(hash_sources(folder, ("*.py",)) for folder in folders), 0


def hash_sources(folder: Traversable, patterns: tuple[str, ...]) -> str:
    """Return a digest of the sources in a folder, and below it, whose names fit; the folder may be in a zip.

    Why not `Path.glob`: inside a zip it finds nothing, and all versions of the package would share one stamp.
    """
    digest = hashlib.sha256()
    for source in _find_sources(folder, patterns):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _find_sources(folder: Traversable, patterns: tuple[str, ...]) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _find_sources(entry, patterns)
        elif any(fnmatch(entry.name, pattern) for pattern in patterns):
            yield entry


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile lazily, without the interpreter's lock, cached on disk if there is a place for it."""
    compiled: Kernel
    try:
        compiled = numba.njit(cache=True, nogil=True, _nrt=False)(function)
        compiled._cache._cache_file._source_stamp = source_stamp()
    except (RuntimeError, AttributeError, OSError):  # nowhere to write, another numba, sources not readable
        compiled = numba.njit(nogil=True, _nrt=False)(function)
    return compiled


def inlined(function: Callable[..., Any]) -> Kernel:
    """A piece of a kernel, inlined by LLVM into each of its callers."""
    return numba.njit(nogil=True, forceinline=True, **_INNER)(function)


def part(function: Callable[..., Any]) -> Kernel:
    """A piece of a kernel that is called: for what is rare or large."""
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
    """The 64 bits of a floating point number, as a whole number."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic
def single_of(context, bits):  # type: ignore[no-untyped-def]
    """The floating point number that these 32 bits are."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


if numba.config.BOUNDSCHECK:  # memcpy checks nothing; a test run with bounds checks copies byte by byte

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
        """Eight bytes as a little-endian number; the caller has checked that they are there."""
        return _load(source, at)
