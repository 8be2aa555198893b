"""SQL sinks on a real Spark cluster: a task that runs twice, and an executor that dies in a micro-batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.conftest import TwoWorkers
from tests.sql.databases import OwnDatabase, make_database
from tests.support.kafka.topic_filling import produce

PARTITIONS, RECORDS = 4, 250
SESSION = """
from penstock.sinks import SqlSink, Table, create_tables, for_each_batch

bootstrap, topic, database, folder = sys.argv[2:]
sink = SqlSink(database, Table("seen"), strategy="parallel")
SCHEMA = "place string, part int, pos bigint, value binary"

def note_place(batches):
    # In the task that stages; an executor and its workers run in a folder of their own.
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.record_batch({
            "place": pa.array([os.getcwd()] * batch.num_rows),
            "part": batch["partition"], "pos": batch["offset"], "value": batch["value"],
        })
"""

SPECULATION = (
    SESSION
    + """
import penstock.engines.sinks.sql_frames as writing
from penstock.direct import DirectStream, Subscribe

builder = builder.config("spark.speculation", "true").config("spark.speculation.interval", "100ms")
builder = builder.config("spark.speculation.quantile", "0.5").config("spark.speculation.multiplier", "1")
builder = builder.config("spark.speculation.efficiency.enabled", "false")
spark = builder.getOrCreate()
create_tables(sink, {"seen": SCHEMA})

class SlowTask(writing.StageTask):
    # Its rows are staged and committed when it has a report. The first try at task 0 is very slow to hand
    # that over: it stands there until Spark, which has the report of the copy by then, kills it.
    __slots__ = ()

    def __call__(self, batches):
        import os, time
        from pyspark import TaskContext
        context = TaskContext.get()
        for report in writing.StageTask.__call__(self, batches):
            number, attempt = context.partitionId(), context.attemptNumber()
            told = [number, attempt, context.taskAttemptId(), os.getcwd(), report["rows"][0].as_py()]
            (Path(folder) / f"staged-{number}-{attempt}").write_text(json.dumps(told))
            deadline = time.monotonic() + 120
            while (number, attempt) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.05)
            yield report

writing.StageTask = SlowTask
stream = DirectStream(
    spark, Subscribe(topic), {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"},
    interval=0, name="s")
stream.arrow(note_place, SCHEMA).write(sink)
stream.run(until_idle=True)
print("TOLD", json.dumps([[each.offsets, each.rows_written, each.attempts] for each in stream.reports]))
spark.stop()
"""
)

MICRO_BATCHES = (
    SESSION
    + """
spark = builder.getOrCreate()
create_tables(sink, {"seen": SCHEMA})

def die_once(batches):
    # The first task that has handed on offset 125 of partition 0 kills its executor.
    import os, signal
    for batch in note_place(batches):
        yield batch
        positions = zip(batch["part"].to_pylist(), batch["pos"].to_pylist())
        if any(part == 0 and pos >= 125 for part, pos in positions):
            try:
                (Path(folder) / "killed").touch(exist_ok=False)
            except FileExistsError:
                continue
            pid = os.getpid()
            while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(pid, signal.SIGKILL)

numbers = []

def work(frame, number):
    numbers.append(number)
    return frame.mapInArrow(die_once, SCHEMA)

reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
rows = reader.option("maxOffsetsPerTrigger", "500").option("maxRecordsPerPartition", "100").load()
checkpoint = folder + "/checkpoint"
write = for_each_batch(sink, "s", checkpoint=checkpoint, transform=work)
query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
write.close()
print("TOLD", json.dumps(numbers))
spark.stop()
"""
)


@pytest.fixture
def name(kafka: Any, topic: Any) -> str:
    """Return a topic with `RECORDS` records in each of `PARTITIONS` partitions."""
    made: str = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        values = [f"{partition}-{number}" for number in range(RECORDS)]
        produce(kafka.bootstrap, made, values, partition=partition)
    return made


def read_places(database: OwnDatabase) -> list[tuple[str, int]]:
    """Return where each row was staged, and its partition; check that every record is there once."""
    rows = database.run("SELECT place, part, pos, value FROM seen")
    found = sorted((part, pos, bytes(value).decode()) for _, part, pos, value in rows)
    assert found == [(part, pos, f"{part}-{pos}") for part in range(PARTITIONS) for pos in range(RECORDS)]
    return [(place, part) for place, part, *_ in rows]


def test_a_task_that_ran_twice_for_speed_is_published_once(
    two_workers: TwoWorkers, kafka: Any, name: str, postgres: Any
) -> None:
    """G9, G17, I10, I11: both copies have staged all rows; those of the copy that Spark reported count."""
    with make_database(postgres) as database:
        told = two_workers.run(SPECULATION, kafka.bootstrap, name, database.url, str(two_workers.folder))
        places = read_places(database)
        left = database.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'penstock_stage%'")
    assert told == [[PARTITIONS * RECORDS, PARTITIONS * RECORDS, 1]]
    staged = {
        (number, attempt): told
        for number, attempt, *told in (
            json.loads(path.read_text()) for path in two_workers.folder.glob("staged-*")
        )
    }
    assert set(staged) == {(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)}
    (first_id, first_place, first_rows), (second_id, second_place, second_rows) = staged[0, 0], staged[0, 1]
    assert first_id != second_id
    assert first_place != second_place, "the copy ran in the other executor"
    assert (first_rows, second_rows) == (RECORDS, RECORDS)
    assert {place for place, part in places if part == 0} == {second_place}
    assert left == []


def test_an_executor_that_dies_in_a_micro_batch_doubles_and_loses_nothing(
    two_workers: TwoWorkers, kafka: Any, name: str, postgres: Any
) -> None:
    """Its tasks run again elsewhere, without Spark repeating the batch."""
    with make_database(postgres) as database:
        told = two_workers.run(MICRO_BATCHES, kafka.bootstrap, name, database.url, str(two_workers.folder))
        places = read_places(database)
    assert (two_workers.folder / "killed").exists()
    assert told == [0, 1]
    assert len({place for place, _ in places}) >= 2, "two executors did the work"
