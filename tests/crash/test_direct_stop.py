"""A direct stream on Spark that is asked to stop in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.filling import produce, wait_until

PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.direct import DirectStream, FileOffsetStore, Subscribe

bootstrap, topic, folder = sys.argv[1:]
folder = Path(folder)
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
stream = DirectStream(
    spark, Subscribe(topic), {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"},
    interval="20ms", name="s", offsets=FileOffsetStore(folder / "offsets"),
    options={"maxOffsetsPerTrigger": 20})

is_last = (folder / "stop-not").exists()

def work(batch):
    rows = batch.frame.selectExpr("offset", "cast(value as string) value").collect()
    if not is_last:
        (folder / "held").touch()
        while not (folder / "go-on").exists():
            time.sleep(0.02)
    with (folder / "rows.txt").open("a") as file:
        file.writelines(f"{row.offset} {row.value}\\n" for row in rows)

print("OUTCOME", stream.for_each_batch(work).run(until_idle=is_last))
"""


def test_the_running_batch_is_finished_and_a_restart_repeats_nothing(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """D30, I3, T32, H7: output there, offsets stored, exit code 0; stop and restart repeats no row."""
    name = topic(1)
    produce(kafka.bootstrap, name, [f"v{number}" for number in range(100)])
    command = [sys.executable, "-c", PROGRAM, kafka.bootstrap, name, str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    held, go_on = tmp_path / "held", tmp_path / "go-on"
    # PySpark has a handler of its own for SIGINT, which ends all jobs.
    for run, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            wait_until(lambda: held.exists() or program.poll() is not None, "a batch runs", 120)  # noqa: B023
            program.send_signal(number)
            go_on.touch()
            output, errors = program.communicate(timeout=60)
        finally:
            program.kill()
            program.wait()
        assert program.returncode == 0, errors
        assert f"OUTCOME RunOutcome(reason='{number.name}', batches=1)" in output
        rows = (tmp_path / "rows.txt").read_text().splitlines()
        assert len(rows) == 20 * (run + 1), "the batch that ran was finished, and no other begun"
        held.unlink()
        go_on.unlink()
    (tmp_path / "stop-not").touch()
    last = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert last.returncode == 0, last.stderr
    found = Counter((tmp_path / "rows.txt").read_text().splitlines())
    assert found == Counter(f"{number} v{number}" for number in range(100))
