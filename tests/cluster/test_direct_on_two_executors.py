"""A direct stream on a real Spark cluster, into PostgreSQL; an executor dies in the middle of a batch."""

from __future__ import annotations

from typing import Any

from tests.cluster.conftest import TwoWorkers
from tests.sql.databases import make_database
from tests.support.kafka.topic_filling import produce

PARTITIONS, RECORDS = 4, 250
DRIVER = """
from penstock.direct import DirectStream, Subscribe
from penstock.sinks import SqlSink, Table, create_tables

bootstrap, topic, database, folder = sys.argv[2:]
spark = builder.getOrCreate()

def note_place(batches):
    # In the task that fetches. The first one to read partition 0 kills its executor, after it has read.
    import os, signal
    from pathlib import Path
    import pyarrow as pa
    place = os.getcwd()
    for batch in batches:
        yield pa.record_batch({
            "place": pa.array([place] * batch.num_rows),
            "part": batch["partition"], "pos": batch["offset"], "value": batch["value"],
        })
        if 0 in batch["partition"].to_pylist() and batch["offset"][0].as_py() >= 125:
            try:
                (Path(folder) / "killed").touch(exist_ok=False)
            except FileExistsError:
                continue
            pid = os.getpid()
            while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(pid, signal.SIGKILL)

sink = SqlSink(database, Table("seen"), strategy="parallel")
create_tables(sink, {"seen": "place string, part int, pos bigint, value binary"})
stream = DirectStream(
    spark, Subscribe(topic), {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"},
    interval=0, name="s", options={"maxOffsetsPerTrigger": 500})
stream.arrow(note_place, "place string, part int, pos bigint, value binary").write(sink)
stream.run(until_idle=True)
print("TOLD", json.dumps([[each.offsets, each.rows_written, each.attempts] for each in stream.reports]))
spark.stop()
"""


def test_an_executor_that_dies_in_mid_batch_doubles_and_loses_nothing(
    two_workers: TwoWorkers, kafka: Any, topic: Any, postgres: Any
) -> None:
    """G9, G17, B237, I10, T51: its tasks run again elsewhere; what it had staged is not published."""
    name = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        values = [f"{partition}-{number}" for number in range(RECORDS)]
        produce(kafka.bootstrap, name, values, partition=partition)
    with make_database(postgres) as database:
        arguments = [kafka.bootstrap, name, database.url, str(two_workers.folder)]
        reports = two_workers.run(DRIVER, *arguments)
        rows = database.run("SELECT place, part, pos, value FROM seen")
    assert (two_workers.folder / "killed").exists()
    found = sorted((part, pos, bytes(value).decode()) for _, part, pos, value in rows)
    assert found == [(part, pos, f"{part}-{pos}") for part in range(PARTITIONS) for pos in range(RECORDS)]
    assert reports == [[500, 500, 1], [500, 500, 1]], "Spark ran the tasks again, not the stream the batch"
    assert len({place for place, *_ in rows}) >= 2, "two executors did the work"
