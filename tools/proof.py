"""Runs the long proofs and writes what was proven, as data, to docs/proof/.

Rule: a proof counts only with what is needed to repeat it, so each result has the commit, the versions, the
machine and the seed. Property tests run here with 100,000 examples each instead of the usual 100. Why a file
per commit and not one page: results of different commits must never be added up.

Example: `python tools/proof.py --seed 7` writes docs/proof/<date>-<commit>.json and ends with pytest's code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "proof"
#: Modules and their arguments: each takes `--seed`, prints one report, ends with 1 when it found something.
CAMPAIGNS = {
    "tests.proof.fuzz_records": ["--json"],
    "tests.proof.random_logs": [],
    "tests.proof.parity_campaign": ["--json"],
    "tests.proof.stream_kills": ["--write"],
    "tests.proof.stream_leaders": ["--write"],
    "tests.proof.stream_histories": ["--write"],
    "tests.proof.stream_miniature": ["--write"],
    "tests.proof.stream_comparison": ["--write"],
    "tests.proof.sql_rounds": ["--write"],
    "tests.proof.spark_sql_rounds": ["--write"],
    "tests.proof.protocol_model": ["--write"],
    "tests.proof.accesslog_rounds": ["--write"],
    "tests.proof.fuzz_accesslog": ["--write"],
}
LIBRARIES = ("pyspark", "kafka-python", "pyarrow", "numba", "numpy", "cramjam", "crc32c", "hypothesis")


def read_git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def run_proofs(seed: int, selection: str, report: Path) -> int:
    """Run all tests marked as proofs and all property tests, and return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", selection, f"--junitxml={report}", "--timeout=0"]
    command += [f"--hypothesis-seed={seed}", "-p", "no:randomly"]  # one seed decides everything
    environment = {**os.environ, "PENSTOCK_HYPOTHESIS_PROFILE": "proof"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False
    ).returncode


def run_campaign(module: str, seed: int) -> tuple[int, object]:
    """Run one campaign outside pytest; return its exit code and its report, as data or as its lines."""
    command = [sys.executable, "-m", module, f"--seed={seed}", *CAMPAIGNS[module]]
    outcome = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        return outcome.returncode, json.loads(outcome.stdout)
    except ValueError:
        return outcome.returncode, (outcome.stdout + outcome.stderr).splitlines()[-100:]


def read_outcomes(report: Path) -> dict[str, dict[str, object]]:
    """Return each test with its outcome and its seconds, from pytest's report."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname')}.{case.get('name')}"
        outcomes[name] = {"outcome": bad[0] if bad else "passed", "seconds": float(case.get("time", 0))}
    return dict(sorted(outcomes.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the long proofs and record them.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--select", default="proof or hypothesis", help="pytest's marker expression")
    arguments = parser.parse_args()
    started = datetime.now(UTC)
    commit = read_git("rev-parse", "HEAD")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = run_proofs(arguments.seed, arguments.select, report)
        outcomes = read_outcomes(report)
    campaigns = {module: run_campaign(module, arguments.seed) for module in CAMPAIGNS}
    failed = code != 0 or any(each != 0 for each, _ in campaigns.values())  # negative after a crash
    record: dict[str, object] = {
        "format": 1,
        "commit": commit,
        "uncommitted_changes": bool(read_git("status", "--porcelain", "--untracked-files=no")),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
        "selection": arguments.select,
        "seed": arguments.seed,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in LIBRARIES},
        "passed": not failed,
        "outcomes": outcomes,
        "campaigns": {module: report for module, (_, report) in campaigns.items()},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{started:%Y-%m-%d}-{commit[:10]}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path.relative_to(ROOT))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
