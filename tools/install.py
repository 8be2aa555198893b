"""Installs what a lock file names into `.venv`, and then Penstock itself, and shows the progress.

Rule: pip decides, and this program only watches it. Pip's exit code is ours, and when it fails, all it
printed from its first warning on is shown. This runs under the Python that `.venv` was made from, before
anything is installed: only the standard library and the bar of `penstock.cli`, which needs nothing else, are
available.

Why not show pip's output: it prints hundreds of lines, and falls silent just when it takes longest, while it
unpacks Spark. So the bar counts two steps per package: when pip has begun to collect it, and when its
metadata is in `.venv`.

Example: `python3 tools/install.py .venv/bin/python requirements-dev.lock`
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
from penstock.cli.shared.progress_bar import COMPLETE, ProgressBar  # noqa: E402  (found only after the line above)

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==", re.MULTILINE)
_COLLECTING = re.compile(r"^\s*Collecting (\S+?)==")
_BUILDING = re.compile(r"^\s*Building wheels? for (?:collected packages: )?(.+?)(?: \(.*| *:.*)?$")
_LOOKED_EVERY_S = 0.5
#: Where the cause of a failure may begin: without a network it is a warning, of a compiler it is `error:`.
_TROUBLE = re.compile(r"WARNING|ERROR|error:")
#: How many of pip's last lines are shown if it failed without such a line.
_LAST_WORDS = 40


def main(python: str, lock: str) -> int:
    """Install the lock's packages, then Penstock from this folder, and return the exit code."""
    packages = {_normalise(name) for name in _PINNED.findall(Path(lock).read_text())}
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-color"]
    with ProgressBar(f"Installing {len(packages)} packages") as bar:
        code = _run([*pip, "--require-hashes", "-r", lock], bar, packages, _find_packages(python))
    if code == 0:
        with ProgressBar("Installing Penstock itself") as bar:
            code = _run([*pip, "--no-deps", "-e", str(ROOT)], bar, set(), None)
    return code


def _run(command: list[str], bar: ProgressBar, packages: set[str], place: Path | None) -> int:
    steps = _Steps(bar, packages, place)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=environment,
    ) as pip:
        assert pip.stdout is not None
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(steps, ended), daemon=True)
        watching.start()
        said = []
        try:
            for line in pip.stdout:
                said.append(line.rstrip())
                steps.hear(line)
        finally:
            ended.set()
            watching.join()
    if pip.returncode == 0:
        bar(1, 1, COMPLETE)
        return 0
    bar.end()
    print("\n".join(["pip failed. It said:", *_choose_shown(said)]), file=sys.stderr, flush=True)
    return pip.returncode


def _choose_shown(said: list[str]) -> list[str]:
    """Return the lines that explain a failure: all from the first sign of trouble on, else the last ones."""
    lines = [line for line in said if not line.startswith("[notice]")]  # about a newer pip
    first = next((number for number, line in enumerate(lines) if _TROUBLE.search(line)), -_LAST_WORDS)
    return lines[first:]


class _Steps:
    """The progress of pip, from what it has printed and what is in `.venv`."""

    def __init__(self, bar: ProgressBar, packages: set[str], place: Path | None) -> None:
        self._bar, self._packages, self._place = bar, packages, place
        self._collected: set[str] = set()
        self._item = "asking for packages"
        self._lock = threading.Lock()
        self.look()

    def hear(self, line: str) -> None:
        collecting, building = _COLLECTING.match(line), _BUILDING.match(line)
        if collecting:
            self._collected.add(_normalise(collecting[1]))
            self._item = f"fetching {collecting[1]}"
        elif building:
            self._item = f"building {building[1]}"
        elif line.startswith("Installing collected packages"):
            self._item = "unpacking"
        self.look()

    def look(self) -> None:
        with self._lock:
            installed = self._list_installed()
            done = len(self._packages & (self._collected | installed)) + len(self._packages & installed)
            self._bar(done, 2 * len(self._packages) or None, self._item)

    def _list_installed(self) -> set[str]:
        if self._place is None:
            return set()
        return {_normalise(each.name.partition("-")[0]) for each in self._place.glob("*.dist-info")}


def _watch(steps: _Steps, ended: threading.Event) -> None:
    while not ended.wait(_LOOKED_EVERY_S):
        steps.look()


def _find_packages(python: str) -> Path:
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
