"""What `make setup` says when something it needs is missing: one sentence, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "prerequisites.py"


def check_with_java(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT],
        env={"JAVA_HOME": str(home), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )


def install_java(home: Path, version_line: str) -> Path:
    """Install a `java` that only reports its version, on the stream where the real one prints it."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize("line", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16'])
def test_a_java_that_is_new_enough_passes_without_a_word(tmp_path: Path, line: str) -> None:
    outcome = check_with_java(install_java(tmp_path, line))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("line", "found"), [('java version "1.8.0_402"', "8"), ('openjdk version "11.0.2" 2019-01-15', "11")]
)
def test_a_java_that_is_too_old_is_named_in_one_sentence(tmp_path: Path, line: str, found: str) -> None:
    outcome = check_with_java(install_java(tmp_path, line))
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(f"Penstock needs Java 17 or newer and found {found}:")
    assert len(outcome.stderr.splitlines()) == 1


def test_a_missing_java_is_said_in_one_sentence(tmp_path: Path) -> None:
    outcome = check_with_java(tmp_path)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("Penstock needs Java 17 or newer and found none:")
    assert len(outcome.stderr.splitlines()) == 1
