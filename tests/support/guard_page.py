"""Memory that ends at a protected page: reading one byte too far ends the process, not just the test."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0


def guarded_array(items: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array like `numpy.empty`, in separate memory that ends at a protected page."""
    return GuardedMemory(max(1, items * np.dtype(kind).itemsize)).array(items, kind)


class GuardedMemory:
    """Room for up to `capacity` bytes, whose last byte is directly before a protected page."""

    def __init__(self, capacity: int) -> None:
        page = mmap.PAGESIZE
        self._size = -(-capacity // page) * page
        # Arrays made from it keep the map alive; it is unmapped with the last of them.
        self._map = mmap.mmap(-1, self._size + page)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if _LIBC.mprotect(ctypes.c_void_p(self._address + self._size), page, _PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")

    def place(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Return a copy of `data` that ends at the protected page; the next call overwrites it."""
        if len(data) > self._size:
            raise ValueError(f"{len(data)} bytes do not fit {self._size}")
        whole = np.frombuffer(self._map, np.uint8, self._size)
        target = whole[self._size - len(data) :]
        target[:] = np.frombuffer(data, np.uint8)
        return target

    def array(self, items: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array that ends at the protected page."""
        size = items * np.dtype(kind).itemsize
        return np.frombuffer(self._map, np.uint8, size, self._size - size).view(kind)

    def touch_protected_page(self) -> int:
        """Read the first protected byte, which ends the process and so shows that the guard works."""
        return ctypes.c_uint8.from_address(self._address + self._size).value
