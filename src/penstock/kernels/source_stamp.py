"""Stamps that show whether compiled code was made from the present sources.

Rule: a kernel can contain parts of its module and of all that it imports, directly or not, so a change in any
of them changes the stamp. Why not file times: inside a zip there are none, and all versions of the package
would share one stamp. Why not all files of a folder: a change in one would recompile all kernels.
Reading the modules takes a millisecond, once in a process.

>>> len(stamp_sources("penstock.kernels.text_scanning"))
64
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable

_IMPORTS = re.compile(r"from (penstock[\w.]*) import (\([^)]*\)|.*)")


@functools.cache
def stamp_sources(module: str) -> str:
    """Return a digest of a Penstock module and of all that it imports, directly or not, at once or later.

    Raise `FileNotFoundError` for a module without source or outside Penstock: nothing vouches for it.
    """
    found: dict[str, bytes] = {}
    _follow(module, found)
    if not found:
        raise FileNotFoundError(f"no source of {module}")
    return hashlib.sha256(b"".join(found[name] for name in sorted(found))).hexdigest()


def _follow(module: str, found: dict[str, bytes]) -> None:
    source = _read(module)
    if source is None or module in found:
        return
    found[module], imports = source
    for origin, names in imports:
        # Names imported from a module are in it; names imported from a package may be modules.
        for each in [origin] if _read(origin) else [f"{origin}.{name}" for name in names]:
            _follow(each, found)


@functools.cache
def _find_package(name: str) -> Traversable:
    # Cached, because if the package is in a zip, each call opens and lists the archive.
    return resources.files(name)


@functools.cache
def _read(module: str) -> tuple[bytes, list[tuple[str, list[str]]]] | None:
    """Return a module's digest and its imports, or None for a package or a module outside Penstock."""
    ours, *path = module.split(".")
    if ours != "penstock" or not path:
        return None
    try:
        source = _find_package(ours).joinpath(*path[:-1], f"{path[-1]}.py").read_bytes()
    except (OSError, KeyError):
        return None
    imports = [(origin, re.findall(r"\w+", names)) for origin, names in _IMPORTS.findall(source.decode())]
    return hashlib.sha256(source).digest(), imports
