"""A share of the access-log fuzz run; the long run is `tests/proof/fuzz_accesslog.py`.

Each run is a separate process: a read beyond the buffer ends it, and the test must survive to report that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checked_kernels import check_bounds

ROOT = Path(__file__).parents[5]


def run_fuzz(inputs: int, seed: int, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.fuzz_accesslog", f"--inputs={inputs}", f"--seed={seed}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode in (0, 1), (
        f"the kernel ended the process: {done.returncode}\n{done.stderr[-3000:]}"
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_damaged_lines_in_front_of_a_protected_page_read_as_the_reference_reads_them() -> None:
    report = run_fuzz(6_000, seed=20_261_117)
    assert report["findings"] == []
    assert sum(sum(counts.values()) for counts in report["table"].values()) == 6_000
    for verdict in ("good", "bad"):  # a run that only ever reads, or only ever refuses, tests nothing
        assert sum(counts.get(verdict, 0) for counts in report["table"].values()) > 2_000


@pytest.mark.slow
def test_damaged_lines_stay_inside_every_array_with_bounds_checks_on() -> None:
    report = run_fuzz(3_000, seed=79, **check_bounds())
    assert report["findings"] == []
