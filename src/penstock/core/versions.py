"""Checks the versions of required libraries, and gives a clear error for a wrong one.

Rule: a wrong version is found at the start, not as an AttributeError in the middle of a batch. Spark's Python
data source API and kafka-python's message classes change between minor versions, so both are pinned.

Why not ask pip's records alone: a platform brings libraries that pip never installed. On YARN, in Spark's own
images and where SPARK_HOME is set, PySpark is a zip on the import path, perhaps before another PySpark that
pip knows. So PySpark itself is asked. Other libraries are asked if they are loaded. Otherwise pip's records
are read, which is ten times as fast as an import. A library without a record is imported.

>>> parse_version("4.3.0.dev1")
(4, 3, 0)
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from importlib import metadata

from penstock.core.errors import VersionError

#: Distribution: (lowest version, first version that is too new or None). The same as in pyproject.toml.
SUPPORTED: dict[str, tuple[str, str | None]] = {
    "pyspark": ("4.3", "4.4"),
    "pyarrow": ("18", None),
    "kafka-python": ("3.0", "3.1"),
}
_MODULES = {"kafka-python": "kafka"}


def find_version(name: str) -> str:
    """Return the version of the library that an import finds; raise ModuleNotFoundError if there is none."""
    module = _MODULES.get(name, name)
    if module in sys.modules or name == "pyspark":
        return _ask_module(module)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _ask_module(module)


def check_versions(find: Callable[[str], str] = find_version) -> None:
    """Raise VersionError for the first library that does not fit; `find` returns the version in use."""
    for name, (lowest, too_new) in SUPPORTED.items():
        wanted = f"{name}>={lowest}" + (f",<{too_new}" if too_new else "")
        hint = f"Run: pip install '{wanted}'"
        if name == "pyspark":
            hint += ", or use a platform that brings this version of Spark."
        try:
            installed = find(name)
        except ModuleNotFoundError:
            raise VersionError(
                "LIBRARY_MISSING",
                f"{name} is not installed: it cannot be imported.",
                hint=hint,
                facts={"library": name, "wanted": wanted},
            ) from None
        version = parse_version(installed)
        if version < parse_version(lowest) or (too_new and version >= parse_version(too_new)):
            raise VersionError(
                "LIBRARY_VERSION",
                f"{name} {installed} is installed, but this version of Penstock works with {wanted}.",
                hint=hint,
                facts={"library": name, "installed": installed, "wanted": wanted},
            )


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _ask_module(module: str) -> str:
    return str(importlib.import_module(module).__version__)
