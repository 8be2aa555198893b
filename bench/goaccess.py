"""GoAccess, from Debian's package, as a peer: fetched by name and unpacked into a cache, without root.

    path = fetch_goaccess()
    seconds = time_goaccess(path, Path("access.log"))

It reads a file in one process and writes its report as JSON, which is the least it can be asked for: no
terminal, no HTML. `--no-global-config` makes sure that only the settings here apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from penstock.cli.shared.progress_bar import COMPLETE, ProgressBar
from penstock.core.errors import ClusterError

#: The program and the library that a bare Debian lacks.
PACKAGES = ("goaccess", "libmaxminddb0")


def fetch_goaccess() -> Path:
    """Fetch GoAccess and return a folder with the program in usr/bin and its libraries in usr/lib."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "goaccess"
    if (folder / "usr" / "bin" / "goaccess").exists():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ClusterError(
            "GOACCESS_MISSING",
            "GoAccess is fetched with apt-get and dpkg, which are not installed here.",
            hint="Run this on Debian or Ubuntu, or leave the case out.",
        )
    with tempfile.TemporaryDirectory() as scratch, ProgressBar("Fetching Debian packages") as bar:
        for done, package in enumerate(PACKAGES):
            bar(done, len(PACKAGES), package)
            _call(["apt-get", "download", "--quiet", package], Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        for archive in Path(scratch).glob("*.deb"):
            _call(["dpkg", "-x", str(archive), str(folder)], Path(scratch))
        bar(len(PACKAGES), len(PACKAGES), COMPLETE)
    return folder


def time_goaccess(folder: Path, log: Path, *, log_format: str = "COMBINED") -> float:
    """Return how long GoAccess takes for the whole file, in seconds."""
    libraries = os.pathsep.join(str(each) for each in (folder / "usr" / "lib").glob("*-linux-gnu"))
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        began = time.perf_counter()
        _call(
            [
                str(folder / "usr" / "bin" / "goaccess"),
                "--no-global-config",
                f"--log-format={log_format}",
                f"--log-file={log}",
                f"--output={report}",
                "--no-progress",
            ],
            Path(scratch),
            {**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        took = time.perf_counter() - began
        assert report.stat().st_size, "GoAccess has written nothing"
        return took


def read_version(folder: Path) -> str:
    libraries = os.pathsep.join(str(each) for each in (folder / "usr" / "lib").glob("*-linux-gnu"))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    said = _call([str(folder / "usr" / "bin" / "goaccess"), "--version"], folder, environment)
    return said.splitlines()[0].rstrip(".")


def _call(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    outcome = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if outcome.returncode:
        raise ClusterError(
            "GOACCESS_FAILED",
            f"{command[0]} ended with {outcome.returncode}: {outcome.stderr[-500:]}",
            hint="`apt-get update` as root may be needed once, so that packages are found.",
        )
    return outcome.stdout
