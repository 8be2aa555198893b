"""Structured Streaming into a database that is killed in the middle of its batches, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.cluster import LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.core.sinks.sql_commit_protocol import Commit, Step
from penstock.sinks import SqlSink, Table, create_tables, for_each_batch
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter
from tests.sql.databases import OwnDatabase
from tests.support.kafka.topic_filling import produce

pytestmark = pytest.mark.sql
PARTITIONS, RECORDS = 2, 40
#: The batch in which the database dies, and when: before a row is staged, before the publish, or at COMMIT.
KILLS = {1: "begun", 2: "staged", 3: "commit"}


def test_a_database_killed_in_mid_batch_loses_nothing_and_doubles_nothing(
    spark: SparkSession,
    kafka: Any,
    topic: Any,
    server: LocalDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that fails with the database is started again, and repeats the batch that was not committed."""
    name = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka.bootstrap, name, [str(number) for number in range(RECORDS)], partition=partition)
    sink = SqlSink(server.url, Table("seen"), strategy="parallel")
    create_tables(sink, {"seen": "part int, pos bigint"})
    begun: list[int] = []
    killed: list[str] = []
    write_staged, perform = SqlWriter.write_staged, Performer.__call__

    def pass_moment(moment: str) -> None:
        if begun and KILLS.get(begun[-1]) == moment and moment not in killed:
            killed.append(moment)
            server.kill()
            server.start()

    def write_when_staged(self: SqlWriter, *args: Any, **more: Any) -> Any:
        pass_moment("staged")
        return write_staged(self, *args, **more)

    def perform_commit(self: Performer, step: Step) -> Any:
        if isinstance(step, Commit):
            pass_moment("commit")
        return perform(self, step)

    monkeypatch.setattr(SqlWriter, "write_staged", write_when_staged)
    monkeypatch.setattr(Performer, "__call__", perform_commit)

    def work(frame: DataFrame, batch_id: int) -> DataFrame:
        begun.append(batch_id)
        pass_moment("begun")
        return frame.selectExpr("partition AS part", "offset AS pos")

    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", name).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", "20").option("maxRecordsPerPartition", "5").load()
    checkpoint = str(tmp_path / "checkpoint")
    failures: list[str] = []
    is_done = False
    while not is_done:
        write = for_each_batch(sink, "s", checkpoint=checkpoint, transform=work)
        query = rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write)
        try:
            is_done = query.trigger(availableNow=True).start().awaitTermination(240)
            assert is_done, "the query does not end"
        except StreamingQueryException as error:
            failures.append(str(error))
            assert len(failures) <= len(KILLS), failures
        finally:
            write.close()  # type: ignore[attr-defined]
    assert killed == list(KILLS.values())
    found = sorted(OwnDatabase(server.url).run("SELECT part, pos FROM seen"))
    assert found == [(part, pos) for part in range(PARTITIONS) for pos in range(RECORDS)]
    if isinstance(server, LocalPostgres):  # what was staged is gone with the server, and this is detected
        assert sum("STAGE_INCOMPLETE" in each for each in failures) == 2, failures
        assert begun == [0, 1, 2, 2, 3, 3]
