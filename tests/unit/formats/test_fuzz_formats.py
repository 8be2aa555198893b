"""A share of the format decoders' fuzz run; the long run is `tests/proof/fuzz_formats.py`.

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

ROOT = Path(__file__).parents[3]


def run_fuzz(inputs: int, seed: int, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.fuzz_formats", f"--inputs={inputs}", f"--seed={seed}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode in (0, 1), f"a decoder ended the process: {done.returncode}\n{done.stderr[-3000:]}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_damaged_values_in_front_of_a_protected_page_read_as_other_parsers_read_them() -> None:
    report = run_fuzz(3_000, seed=20_240_602)
    assert report["findings"] == []
    assert sum(sum(counts.values()) for counts in report["table"].values()) == 3_000
    for kind in ("json", "avro", "protobuf"):
        outcomes = [counts for name, counts in report["table"].items() if name.startswith(kind)]
        # A run that only ever reads, or only ever refuses, tests nothing.
        assert sum(each.get("good", 0) for each in outcomes) > 100
        assert sum(each.get("bad", 0) for each in outcomes) > 100


@pytest.mark.slow
def test_damaged_values_stay_inside_every_array_with_bounds_checks_on() -> None:
    report = run_fuzz(600, seed=78, **check_bounds())
    assert report["findings"] == []
