"""A direct stream on Spark that is asked to stop in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.processes.python_launcher import make_launcher
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

#: How long Spark may take to start and run a first job; on a busy machine this takes minutes.
STARTED_WITHIN_S = 240

PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.direct import DirectStream, FileOffsetStore, Subscribe

bootstrap, topic, folder, *then = sys.argv[1:]
folder = Path(folder)
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())

def run(is_held):
    def work(batch):
        rows = batch.frame.selectExpr("offset", "cast(value as string) value").collect()
        if is_held:
            (folder / "held").touch()
            while not (folder / "go-on").exists():
                time.sleep(0.02)
        with (folder / "rows.txt").open("a") as file:
            file.writelines(f"{row.offset} {row.value}\\n" for row in rows)

    stream = DirectStream(
        spark, Subscribe(topic), {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"},
        interval="20ms", name="s", offsets=FileOffsetStore(folder / "offsets"),
        options={"maxOffsetsPerTrigger": 20})
    print("OUTCOME", stream.for_each_batch(work).run(until_idle=not is_held))
    print("ROWS", len((folder / "rows.txt").read_text().splitlines()))

run(is_held=True)
if then:
    run(is_held=False)
"""


@pytest.mark.timeout(600)
def test_the_running_batch_is_finished_and_a_restart_repeats_nothing(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """D30, I3, T32, H7: output there, offsets stored, exit code 0; the restart repeats no row."""
    name = topic(1)
    produce(kafka.bootstrap, name, [f"v{number}" for number in range(100)])
    command = [sys.executable, "-c", PROGRAM, kafka.bootstrap, name, str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": make_launcher()}
    held, go_on = tmp_path / "held", tmp_path / "go-on"
    # PySpark has its own handler for SIGINT, which ends all jobs. After SIGINT the program continues.
    for number, then, done in ((signal.SIGTERM, [], 20), (signal.SIGINT, ["to the end"], 40)):
        program = subprocess.Popen(
            [*command, *then], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            wait_until(
                lambda: held.exists() or program.poll() is not None,  # noqa: B023
                "a batch runs",
                STARTED_WITHIN_S,
            )
            program.send_signal(number)
            go_on.touch()
            output, errors = program.communicate(timeout=120)
        finally:
            program.kill()
            program.wait()
        assert program.returncode == 0, errors
        assert (
            f"OUTCOME RunOutcome(reason='{number.name}', batches=1, offsets=20)\nROWS {done}\n" in output
        ), "the batch that ran was finished, and no other begun"
        held.unlink()
        go_on.unlink()
    assert "OUTCOME RunOutcome(reason='nothing is left', batches=3, offsets=60)" in output
    found = Counter((tmp_path / "rows.txt").read_text().splitlines())
    assert found == Counter(f"{number} v{number}" for number in range(100))
