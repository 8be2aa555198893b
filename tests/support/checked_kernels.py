"""Kernels compiled with numba's bounds checks, cached for all tests and for later runs of the same sources.

Rule: a cache belongs to exactly these sources and this numba version. numba itself looks only at the file
that a kernel is in. It ignores the files that the kernel takes pieces from, and whether bounds are checked.

    subprocess.run(command, env={**os.environ, **check_bounds()})
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

import penstock
from penstock.cluster.downloads.jars import cache_folder

KEPT_UNUSED_S = 3 * 24 * 3600


@functools.cache
def check_bounds() -> dict[str, str]:
    """Return the variables for a process whose kernels check every index."""
    sources = Path(penstock.__file__).parent
    digest = hashlib.sha256(f"{sys.version} {version('numba')} {version('llvmlite')}".encode())
    for path in sorted(sources.rglob("*.py")):
        digest.update(str(path.relative_to(sources)).encode() + path.read_bytes())
    kept = cache_folder() / "checked-kernels"
    folder = kept / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "used").touch()
    for other in kept.iterdir():
        # A folder that another run is creating right now has no mark yet, so its own time counts.
        used = other / "used" if (other / "used").exists() else other
        if time.time() - used.stat().st_mtime > KEPT_UNUSED_S:
            shutil.rmtree(other, ignore_errors=True)
    return {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder)}
