"""The libraries we lean on, and a clear sentence when one of them has another version.

Rule: a wrong version is found at the door, not as an AttributeError in the middle of a batch. Spark's Python
data source API and kafka-python's message classes change between minor versions, so both are pinned.

>>> parse_version("4.3.0.dev1")
(4, 3, 0)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata

from penstock.core.errors import VersionError

#: Distribution: (lowest version, first version that is too new or None). The same as in pyproject.toml.
SUPPORTED: dict[str, tuple[str, str | None]] = {
    "pyspark": ("4.3", "4.4"),
    "pyarrow": ("18", None),
    "kafka-python": ("3.0", "3.1"),
}


def check_versions(find: Callable[[str], str] = metadata.version) -> None:
    """Raise VersionError for the first library that does not fit; `find` tells an installed version."""
    for name, (lowest, too_new) in SUPPORTED.items():
        wanted = f"{name}>={lowest}" + (f",<{too_new}" if too_new else "")
        try:
            installed = find(name)
        except metadata.PackageNotFoundError:
            raise VersionError(
                "LIBRARY_MISSING",
                f"{name} is not installed.",
                hint=f"Run: pip install '{wanted}'",
                facts={"library": name, "wanted": wanted},
            ) from None
        version = parse_version(installed)
        if version < parse_version(lowest) or (too_new and version >= parse_version(too_new)):
            raise VersionError(
                "LIBRARY_VERSION",
                f"{name} {installed} is installed, but this version of Penstock works with {wanted}.",
                hint=f"Run: pip install '{wanted}'",
                facts={"library": name, "installed": installed, "wanted": wanted},
            )


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
