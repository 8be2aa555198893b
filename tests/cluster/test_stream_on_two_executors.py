"""A stream on a real Spark cluster: a master, two workers, each batch spread over both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.cluster.processes.python_launcher import make_launcher
from tests.support.topic_filling import produce

DRIVER = """
import json, sys
from pyspark.sql import SparkSession

master, bootstrap, topic = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
# Without a number of cores to wait for, Spark would wait for none.
builder = builder.config("spark.cores.max", "2")
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
builder = builder.config("spark.locality.wait", "0").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
rows = reader.option("maxOffsetsPerTrigger", "500").option("maxRecordsPerPartition", "100").load()

def note_place(batches):
    # The same task that read the rows; an executor and its workers run in a folder of their own.
    import os
    import pyarrow as pa
    place = os.getcwd()
    for batch in batches:
        yield pa.record_batch({
            "place": pa.array([place] * batch.num_rows),
            "partition": batch["partition"], "offset": batch["offset"], "value": batch["value"],
        })

found = []

def keep(frame, batch):
    found.extend([batch, r.place, r.partition, r.offset, r.value.decode()] for r in frame.collect())

noted = rows.mapInArrow(note_place, "place string, partition int, offset bigint, value binary")
query = noted.writeStream.foreachBatch(keep).option("checkpointLocation", "checkpoint")
query = query.trigger(availableNow=True).start()
query.awaitTermination()
print("FOUND", json.dumps(found))
spark.stop()
"""


def test_two_executors_read_every_batch_of_a_stream(
    spark_standalone: Any, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """F32, F46: more tasks than cores, spread over executors; every row once."""
    name = topic(4)
    for partition in range(4):
        produce(kafka.bootstrap, name, [f"{partition}-{i}" for i in range(250)], partition=partition)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, spark_standalone.master_url, kafka.bootstrap, name],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": make_launcher(), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.split("FOUND", 1)[1])
    assert sorted(row[2:] for row in found) == sorted(
        [partition, i, f"{partition}-{i}"] for partition in range(4) for i in range(250)
    )
    for batch in (0, 1):
        places = [row[1] for row in found if row[0] == batch]
        assert len(places) == 500
        assert len(set(places)) == 2, set(places)
