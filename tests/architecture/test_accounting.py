"""The plugin that accounts for every test, tried on small suites in a pytest of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_suite(
    folder: Path, source: str, *arguments: str, ci: bool = True
) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(textwrap.dedent(source))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.support.accounting",
            "--rootdir",
            str(folder),
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": "true" if ci else ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


PASSES = "def test_passes(): pass\n"
SKIPS = "import pytest\n@pytest.mark.parametrize('n', [])\ndef test_over_nothing(n): pass\n" + PASSES


def test_a_run_says_how_many_tests_were_planned_executed_and_skipped(tmp_path: Path) -> None:
    outcome = run_suite(tmp_path, PASSES)
    assert "planned 1, executed 1, skipped 0 (deselected 0)" in outcome.stdout
    assert outcome.returncode == 0


def test_a_skipped_test_fails_in_ci(tmp_path: Path) -> None:
    outcome = run_suite(tmp_path, SKIPS)
    assert "was skipped" in outcome.stdout
    assert outcome.returncode == 1


def test_a_skipped_test_is_only_counted_at_home(tmp_path: Path) -> None:
    outcome = run_suite(tmp_path, SKIPS, ci=False)
    assert "planned 2, executed 1, skipped 1" in outcome.stdout
    assert outcome.returncode == 0


def test_a_test_that_was_planned_and_did_not_run_is_missed(tmp_path: Path) -> None:
    source = "def test_a(): assert False\ndef test_b(): pass\n"
    outcome = run_suite(tmp_path, source, "-x", "-p", "no:randomly")
    assert "ACCOUNT: 1 planned tests did not run" in outcome.stdout
    assert outcome.returncode == 1


def test_fewer_planned_tests_than_the_floor_fail_the_run(tmp_path: Path) -> None:
    floor = tmp_path / "floor.txt"
    floor.write_text("2 tests")
    outcome = run_suite(tmp_path, PASSES, f"--planned-floor={floor}", ci=False)
    assert "1 tests planned, the committed floor is 2" in outcome.stdout
    assert outcome.returncode == 1


def test_a_run_writes_how_long_each_test_and_fixture_took(tmp_path: Path) -> None:
    source = """
        import time, pytest

        def wait(seconds):
            until = time.monotonic() + seconds
            while time.monotonic() < until: pass

        @pytest.fixture(scope="module")
        def slow(): wait(0.2)

        def test_a(slow): wait(0.1)
        def test_b(slow): pass
        """
    times = tmp_path / "made" / "times.json"
    outcome = run_suite(tmp_path, source, f"--durations-to={times}", "-p", "no:randomly")
    assert outcome.returncode == 0, outcome.stdout
    found = json.loads(times.read_text())
    assert sorted(found["tests"]) == ["test_suite.py::test_a", "test_suite.py::test_b"]
    assert found["tests"]["test_suite.py::test_a"] >= 0.3 > 0.1 > found["tests"]["test_suite.py::test_b"]
    [(_, where, seconds)] = [each for each in found["fixtures"] if each[0] == "slow"]
    assert (where, seconds >= 0.2) == ("test_suite.py", True)


@pytest.mark.parametrize("detached", [False, True], ids=["child", "daemon"])
def test_a_process_left_behind_fails_the_run(tmp_path: Path, detached: bool) -> None:
    source = f"""
        import subprocess, sys

        def test_leaves_one():
            wait = [sys.executable, "-c", "import time; time.sleep(40)"]
            if {detached}:
                start = f"import subprocess; subprocess.Popen({{wait!r}}, start_new_session=True)"
                subprocess.run([sys.executable, "-c", start], check=True)
            else:
                global keep
                keep = subprocess.Popen(wait)
        """
    outcome = run_suite(tmp_path, source, "--leftover-deadline-s=0.2", ci=False)
    left = re.search(r"process (\d+) is still running: .*time.sleep", outcome.stdout)
    assert left, outcome.stdout
    os.kill(int(left[1]), signal.SIGKILL)
    assert outcome.returncode == 1
