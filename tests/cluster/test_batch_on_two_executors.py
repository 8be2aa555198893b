"""The batch read on a real Spark cluster: a master and two workers, with the read spread over both."""

from __future__ import annotations

from typing import Any

from tests.cluster.conftest import TwoWorkers
from tests.support.kafka.topic_filling import produce

DRIVER = """
bootstrap, topic = sys.argv[2:]
spark = builder.getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "minPartitions": "8"}
rows = spark.read.format("penstock").options(**options).load()

def note_place(batches):
    # The same task that read the rows; an executor and its workers run in a folder of their own.
    import os
    import pyarrow as pa
    from pyspark import TaskContext
    place, task = os.getcwd(), TaskContext.get().partitionId()
    for batch in batches:
        count = batch.num_rows
        yield pa.record_batch({
            "place": pa.array([place] * count), "task": pa.array([task] * count, pa.int32()),
            "partition": batch["partition"], "offset": batch["offset"], "value": batch["value"],
        })

schema = "place string, task int, partition int, offset bigint, value binary"
found = rows.mapInArrow(note_place, schema).collect()
print("TOLD", json.dumps([[r.place, r.task, r.partition, r.offset, r.value.decode()] for r in found]))
spark.stop()
"""


def test_two_executors_read_one_topic_and_every_row_once(
    two_workers: TwoWorkers, kafka: Any, topic: Any
) -> None:
    """F33, F38: work orders travel to executors in other processes; both of them read."""
    name = topic(4)
    for partition in range(4):
        produce(kafka.bootstrap, name, [f"{partition}-{i}" for i in range(250)], partition=partition)
    found = two_workers.run(DRIVER, kafka.bootstrap, name)
    assert sorted(row[2:] for row in found) == sorted(
        [partition, i, f"{partition}-{i}"] for partition in range(4) for i in range(250)
    )
    rows_by_place: dict[str, int] = {}
    for place, *_ in found:
        rows_by_place[place] = rows_by_place.get(place, 0) + 1
    assert len(rows_by_place) == 2, rows_by_place
    assert min(rows_by_place.values()) >= 100, rows_by_place
    assert len({row[1] for row in found}) == 8
