"""The demonstration that `make run` starts: it counts, compares, ends itself and leaves nothing running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cluster.processes.python_launcher import make_launcher


@pytest.mark.kafka
@pytest.mark.spark
def test_the_demonstration_counts_every_line_with_both_connectors_and_ends(tmp_path: Path) -> None:
    """A4: one command starts a broker, writes, reads with Spark and stops; a lost line is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "demo", "--records", "20000", "--runs", "1"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": make_launcher()},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Wrote 20,000 lines to topic access-log", done.stdout)
    assert re.search(r"penstock +20,000 rows +[\d,]+ rows/s", done.stdout)
    assert re.search(r"Spark's own connector +20,000 rows +[\d,]+ rows/s", done.stdout)
    address = re.search(r"Kafka is ready at 127\.0\.0\.1:(\d+)", done.stdout)
    assert address
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert f":{int(address[1]):04X} " not in "".join(
        line for line in listening.splitlines(keepends=True) if " 0A " in line
    )
