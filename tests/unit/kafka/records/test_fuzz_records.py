"""A share of the decoder's fuzz run; the run of a million inputs is `tests/proof/fuzz_records.py`.

Each run is a separate process: a read beyond the buffer ends it, and the test must survive to report that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.mutations import MUTATIONS
from tests.support.checked_kernels import check_bounds

ROOT = Path(__file__).parents[4]


def run_fuzz(inputs: int, seed: int, **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.fuzz_records", "--json", f"--inputs={inputs}", f"--seed={seed}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode in (0, 1), (
        f"the decoder ended the process: {done.returncode}\n{done.stderr[-3000:]}"
    )
    report: dict[str, object] = json.loads(done.stdout)
    return report


def check(report: dict[str, object], inputs: int) -> None:
    assert report["findings"] == []
    table = report["table"]
    assert isinstance(table, dict)
    assert sum(sum(counts.values()) for counts in table.values()) == inputs
    assert isinstance(report["resealed"], int)
    assert report["resealed"] >= 0.8 * inputs
    # A run that only ever reads, or only ever refuses, tests nothing.
    for kind in MUTATIONS:
        assert table[kind].get("same rows", 0) > 0, kind
        assert kind == "truncate" or table[kind].get("CORRUPT_BATCH", 0) > 0, kind


@pytest.mark.slow
def test_damaged_batches_in_front_of_a_protected_page_read_as_the_reference_reads_them() -> None:
    """T09, T22, T24, T25: twelve kinds of damage, with checksums mended in most inputs."""
    check(run_fuzz(15_000, seed=20_240_601), 15_000)


@pytest.mark.slow  # compiles its kernels anew
def test_damaged_batches_stay_inside_every_array_with_bounds_checks_on() -> None:
    """T22: with the same kernels, compiled with numba's bounds checks."""
    report = run_fuzz(5_000, seed=77, **check_bounds())
    check(report, 5_000)


@pytest.mark.parametrize("size", [0, 1, 4096, 5000])
def test_the_protected_page_ends_a_process_that_reads_one_byte_too_far(size: int) -> None:
    code = (
        "from tests.support.guard_page import GuardedMemory\n"
        f"memory = GuardedMemory(5000); assert bytes(memory.place(b'x' * {size})) == b'x' * {size}\n"
        "print('placed', flush=True); memory.touch_protected_page(); print('survived')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "placed\n"
    assert done.returncode < 0
