"""Fifty random histories on real Spark and real Kafka, half of them with loss.

python -m tests.proof.stream_histories --histories 50 --steps 30 --seed 1 --write
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.cluster import LocalKafka
from penstock.cluster.processes.python_launcher import make_launcher
from tests.conftest import IMPATIENT
from tests.crash.streams.histories import History
from tests.proof.recording import record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=50)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--minutes", type=float, default=600, help="begin no history after this")
    parser.add_argument("--write", action="store_true", help="to docs/proof/stream-histories.json")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = make_launcher(), sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    steps: Counter[str] = Counter()
    failures, rows, done, began = [], 0, 0, time.monotonic()
    with LocalKafka(broker_settings=IMPATIENT) as kafka, tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.histories):
            if time.monotonic() - began > options.minutes * 60:
                break
            lossy = seed % 2 == 0
            place = Path(folder) / f"checkpoint-{seed}"
            history = History(session, kafka.bootstrap, place, f"history{seed}", seed, lossy)
            try:
                history.run(options.steps)
                history.check()
            except Exception as error:  # noqa: BLE001 each is written down with its seed and steps
                failures.append({"seed": seed, "steps": history.steps, "error": str(error)[:4000]})
            history.delete_all()
            steps.update(history.steps)
            rows += len(history.written)
            done += 1
    session.stop()
    record(
        "stream-histories",
        "random histories of topics and of a stream that reads them, real Spark and real Kafka",
        repeat=f"python -m tests.proof.stream_histories --histories {done} "
        f"--steps {options.steps} --seed {options.seed} --write",
        facts={
            "first_seed": options.seed,
            "histories": done,
            "with_loss": "every second one: topics deleted and made anew, records deleted",
            "steps": dict(steps.most_common()),
            "rows_written": rows,
            "seconds": round(time.monotonic() - began),
            "failures": failures,
        },
        write=options.write,
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
