"""Debian packages that tests need, fetched by name and unpacked into the cache, without root.

Rule: an unpacked folder is complete or absent, like everything that is fetched. A computer whose package
lists are empty, as in a fresh image, gets separate lists; the system's own are left alone.

    folder = fetch_package("pgbouncer")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from penstock.cluster.downloads.jars import cache_folder, hold_cache

FETCH_TIMEOUT_S = 600.0


def fetch_package(name: str) -> Path:
    """Return the folder with the package and the libraries it names; fetch it first if it is missing."""
    target = cache_folder() / "programs" / f"debian-{name}"
    if target.exists():
        return target
    with hold_cache(target.parent) as parent:
        if target.exists():  # another process unpacked it while we waited
            return target
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=parent) as scratch:
            place = Path(scratch)
            _download(name, place)
            unpacked = place / "unpacked"
            for archive in sorted(place.glob("*.deb")):
                _call(["dpkg", "-x", str(archive), str(unpacked)], place)
            unpacked.rename(target)
    return target


def find_libraries(folder: Path) -> str:
    """Return the folders of its libraries, in the form of an environment variable."""
    below = [each for top in ("lib", "usr/lib") for each in (folder / top).glob("*-linux-gnu")]
    return os.pathsep.join(str(each) for each in below)


def _download(name: str, place: Path) -> None:
    try:
        _call(["apt-get", "--quiet", "download", name, *_list_libraries(name, [], place)], place)
    except subprocess.CalledProcessError:
        own = _make_lists(place)
        _call(["apt-get", *own, "--quiet", "download", name, *_list_libraries(name, own, place)], place)


def _make_lists(place: Path) -> list[str]:
    """Fetch package lists into our own folder; return the options that name it."""
    for each in ("lists/partial", "cache/archives/partial"):
        (place / each).mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={place / 'lists'}", "-o", f"Dir::Cache={place / 'cache'}"]
    _call(["apt-get", *own, "--quiet", "update"], place)
    return own


def _list_libraries(name: str, options: list[str], place: Path) -> list[str]:
    """Return the libraries that the package depends on, except the C library, which every system has."""
    told = _call(["apt-cache", *options, "depends", "--important", name], place)
    words = [line.split() for line in told.splitlines()]
    named = [line[1] for line in words if len(line) == 2 and line[0] == "Depends:"]
    return [each for each in named if each.startswith("lib") and each != "libc6"]


def _call(command: list[str], place: Path) -> str:
    assert shutil.which(command[0]), f"{command[0]} is not here: this test needs Debian or Ubuntu"
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        error = subprocess.CalledProcessError(done.returncode, command)
        error.add_note(done.stderr[-1000:])
        raise error
    return done.stdout
