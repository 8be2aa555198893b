"""A stream on a real Spark cluster: a master and two workers, with each batch spread over both."""

from __future__ import annotations

from typing import Any

from tests.cluster.conftest import TwoWorkers
from tests.support.kafka.topic_filling import produce

DRIVER = """
bootstrap, topic = sys.argv[2:]
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
print("TOLD", json.dumps(found))
spark.stop()
"""


def test_two_executors_read_every_batch_of_a_stream(two_workers: TwoWorkers, kafka: Any, topic: Any) -> None:
    """F32, F46: there are more tasks than cores, spread over the executors; every row is read once."""
    name = topic(4)
    for partition in range(4):
        produce(kafka.bootstrap, name, [f"{partition}-{i}" for i in range(250)], partition=partition)
    found = two_workers.run(DRIVER, kafka.bootstrap, name)
    assert sorted(row[2:] for row in found) == sorted(
        [partition, i, f"{partition}-{i}"] for partition in range(4) for i in range(250)
    )
    for batch in (0, 1):
        places = [row[1] for row in found if row[0] == batch]
        assert len(places) == 500
        assert len(set(places)) == 2, set(places)
