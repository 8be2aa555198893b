"""Writes what a campaign proved to docs/proof/, with what is needed to repeat it.

record("stream-kills", "kills at every step of a stream", repeat="python -m ...", facts={"seed": 7})
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from penstock.cluster.kafka.kafka_distribution import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
LIBRARIES = ("pyspark", "kafka-python", "pyarrow", "numba", "numpy", "confluent-kafka")


def record(name: str, campaign: str, *, repeat: str, facts: dict[str, object], write: bool) -> None:
    """Print one report and, with `write`, store it as docs/proof/NAME.json."""
    report = {
        "campaign": campaign,
        "commit": _ask_git("rev-parse", "HEAD"),
        "uncommitted_changes_in_sources": bool(_ask_git("status", "--porcelain", "--", "src")),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "repeat": repeat,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "versions": {each: version(each) for each in LIBRARIES},
        **facts,
    }
    text = json.dumps(report, indent=1) + "\n"
    sys.stdout.write(text)
    if write:
        (ROOT / "docs" / "proof" / f"{name}.json").write_text(text)


def _ask_git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
