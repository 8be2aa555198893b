"""What `make setup` shows while pip works: packages done out of all, and pip's own words if it fails."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install.py"
LOCK = """# Pinned.
one==1.0 \\
    --hash=sha256:00
two_parts==2.0 ; python_version >= "3" \\
    --hash=sha256:11
"""
WORKS = """
echo "Collecting one==1.0 (from -r lock (line 2))"
echo "Collecting two_parts==2.0 (from -r lock (line 4))"
echo "Building wheels for collected packages: two_parts"
echo "Installing collected packages: one, two_parts"
mkdir -p "{place}/one-1.0.dist-info" "{place}/two_parts-2.0.dist-info"
echo "Successfully installed one-1.0 two-parts-2.0"
"""
FAILS = """
echo "Collecting one==1.0 (from -r lock (line 2))"
echo "ERROR: Could not find a version that satisfies the requirement one==1.0"
echo "ERROR: No matching distribution found for one==1.0" >&2
echo "[notice] a new release of pip is there"
exit 3
"""
NO_NETWORK = """Collecting one==1.0 (from -r lock (line 2))
WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...)': /simple/one/
ERROR: Could not find a version that satisfies the requirement one==1.0 (from versions: none)
ERROR: No matching distribution found for one==1.0"""
OTHER_HASH = """Collecting one==1.0 (from -r lock (line 2))
  Using cached one-1.0-py3-none-any.whl (5 kB)
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.
    one==1.0 (from -r lock (line 2)):
        Expected sha256 00
             Got        11"""
COMPILER = "\n".join(f"      one.c:{line}: warning: unused" for line in range(1, 100))
NO_WHEEL = f"""Building wheels for collected packages: one
  error: subprocess-exited-with-error
  Building wheel for one (pyproject.toml) did not run successfully.
      one.c:1:10: fatal error: Python.h: No such file or directory
{COMPILER}
  note: This error originates from a subprocess, and is likely not a problem with pip.
  ERROR: Failed building wheel for one
Failed to build one
ERROR: Failed to build installable wheels for some pyproject.toml based projects (one)"""


def make_python(folder: Path, pip: str) -> list[str]:
    """Return the command, with an interpreter that knows where packages are and a fake pip.

    With `-I -S` it cannot see installed packages, just as there are none before there is a `.venv`.
    """
    place = folder / "packages"
    place.mkdir()
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo "{place}"; exit; fi\n' + pip.format(place=place)
    )
    python.chmod(0o755)
    (folder / "lock").write_text(LOCK)
    return [sys.executable, "-I", "-S", str(SCRIPT), str(python), str(folder / "lock")]


def test_without_a_terminal_plain_lines_tell_how_many_packages_there_are(tmp_path: Path) -> None:
    outcome = subprocess.run(make_python(tmp_path, WORKS), capture_output=True, text=True, timeout=60)
    assert (outcome.returncode, outcome.stdout) == (0, "")
    lines = [line.partition(" in ")[0] for line in outcome.stderr.splitlines()]
    assert [line for line in lines if not line.endswith("left") and "/" not in line] == [
        "Installing 2 packages ...",
        "Installing 2 packages: done",
        "Installing Penstock itself ...",
        "Installing Penstock itself: done",
    ]
    assert outcome.stderr.replace("\n", "").isprintable()


def test_a_failure_of_pip_is_told_with_its_cause_and_its_exit_code(tmp_path: Path) -> None:
    outcome = subprocess.run(make_python(tmp_path, FAILS), capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 3
    assert outcome.stderr.splitlines() == [
        "Installing 2 packages ...",
        "pip failed. It said:",
        "ERROR: Could not find a version that satisfies the requirement one==1.0",
        "ERROR: No matching distribution found for one==1.0",
    ]


@pytest.mark.parametrize("said", [NO_NETWORK, OTHER_HASH, NO_WHEEL], ids=["network", "hash", "wheel"])
def test_everything_pip_says_from_the_first_warning_on_is_shown(tmp_path: Path, said: str) -> None:
    """A warning may be the cause, and the package and the compiler's output come after the error line."""
    (tmp_path / "said").write_text(f"{said}\n\n[notice] A new release of pip is available\n")
    pip = f"cat '{tmp_path / 'said'}'\nexit 1\n"
    outcome = subprocess.run(make_python(tmp_path, pip), capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 1
    told = outcome.stderr.partition("pip failed. It said:\n")[2].rstrip().splitlines()
    lines = said.splitlines()
    assert told == lines[-len(told) :]
    assert told[0].lstrip().startswith(("WARNING: Retrying", "ERROR: THESE", "error: subprocess"))


def test_a_failure_without_a_warning_shows_the_last_words_of_pip(tmp_path: Path) -> None:
    pip = "for n in $(seq 100); do echo \"Collecting p$n==1\"; done; echo 'Segmentation fault'; exit 139\n"
    outcome = subprocess.run(make_python(tmp_path, pip), capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 139
    told = outcome.stderr.partition("pip failed. It said:\n")[2].splitlines()
    assert (len(told), told[0], told[-1]) == (40, "Collecting p62==1", "Segmentation fault")


@pytest.mark.parametrize("pip", [WORKS, FAILS], ids=["works", "fails"])
def test_on_a_terminal_a_bar_appears_and_the_line_is_left_clean(tmp_path: Path, pip: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    written: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65_536):
                written.append(piece)
        except OSError:  # Linux reports this when the other side is closed
            return

    reading = threading.Thread(target=read)
    with subprocess.Popen(
        make_python(tmp_path, pip), stderr=theirs, stdout=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        reading.start()
        code = process.wait(60)
    reading.join(60)
    os.close(ours)
    text = b"".join(written).decode()
    assert "Installing 2 packages [" in text
    assert "fetching one" in text
    left = [line.rpartition("\x1b[K")[2] for line in text.replace("\r\n", "\n").split("\n")]
    assert not [line for line in left if "[" in line and "]" in line], left
    if pip == FAILS:
        assert code == 3
        assert left[0] == "pip failed. It said:"
    else:
        assert code == 0
        assert "2/4" in text or "4/4" in text
        assert left[0].startswith("Installing 2 packages: done in ")
    assert left[-1] == ""
