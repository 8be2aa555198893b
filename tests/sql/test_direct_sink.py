"""Direct streams into SQL sinks: rows and offsets in one transaction, on three databases."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.core.errors import OptionError
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.direct import Batch, DirectStream, SqlOffsetStore, Subscribe
from penstock.sinks import SqlSink, Table, create_tables, keep_provenance
from penstock.stores.offsets.memory import MemoryOffsetStore
from tests.filling import produce
from tests.spark.test_direct_examples import load
from tests.sql.databases import OwnDatabase

ITEMS = ("item1", "item2", "item3")


def test_words_and_actions_are_counted_once_over_restarts_and_a_failure(
    spark: SparkSession,
    kafka: Any,
    topic: Any,
    own_database: OwnDatabase,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C15, C16, D39, G5, G7, H9, C14, B215: aggregates of two tables and the offsets in one transaction."""
    name = topic(3)
    example = load("direct_totals")
    arguments = [own_database.url, "--bootstrap-server", kafka.bootstrap, "--topic", name, "--until-idle"]

    def send(round_: int) -> None:
        for partition, item in enumerate(ITEMS):
            values = [f"action{round_} {item}", f"action{round_}"]
            produce(kafka.bootstrap, name, values, partition=partition, key=item.encode())

    send(1)
    example.main(arguments)
    send(2)
    # A batch whose second table cannot be written leaves nothing of the first one, and no offsets.
    good = example.total_up

    def half(batch: Batch) -> dict[str, DataFrame]:
        frames: dict[str, DataFrame] = good(batch)
        return {**frames, "actions": frames["actions"].withColumnRenamed("item", "thing")}

    monkeypatch.setattr(example, "total_up", half)
    with pytest.raises(Exception, match="thing"):
        example.main(arguments)
    monkeypatch.setattr(example, "total_up", good)
    example.main(arguments)
    example.main(arguments)
    assert dict(own_database.run("SELECT word, total FROM words")) == {
        "action1": 6, "action2": 6, **dict.fromkeys(ITEMS, 2)
    }  # fmt: skip
    joined = own_database.run("SELECT item, actions FROM actions ORDER BY item, at_ms")
    expected = [(item, f"action{round_} {item},action{round_}") for item in ITEMS for round_ in (1, 2)]
    assert joined == expected
    assert "12 records" not in capsys.readouterr().out


def test_a_state_table_is_read_as_of_the_offsets_and_published_with_the_batch(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """D39: what a batch changes is there for the next one; a repeated batch sees what its first run saw."""
    name = topic(1)
    produce(kafka.bootstrap, name, [str(number) for number in range(1, 7)])
    sink = SqlSink(own_database.url, Table("sums", mode="state", key=("name",)))
    create_tables(sink, {"sums": "name string, sum bigint, batches bigint"})
    attempts: list[int] = []

    def add(batch: Batch) -> DataFrame:
        state = batch.read_state("sums")
        new = batch.frame.selectExpr("'all' as name", "cast(cast(value as string) as bigint) as n")
        new = new.groupBy("name").sum("n").withColumnRenamed("sum(n)", "more")
        changed = new.join(state, "name", "left").selectExpr(
            "name", "coalesce(sum, 0) + more as sum", "coalesce(batches, 0) + 1 as batches",
            "false as penstock_deleted",
        )  # fmt: skip
        attempts.append(batch.id)
        if attempts == [0, 1]:
            raise ValueError("once")
        return changed

    stream = DirectStream(
        spark,
        Subscribe(name),
        {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
        interval=0,
        name="sums",
        options={"maxOffsetsPerTrigger": 2},
    )
    stream.write(sink, add).run(until_idle=True)
    assert attempts == [0, 1, 1, 2]
    assert own_database.run("SELECT name, sum, batches FROM sums") == [("all", 21, 3)]


def test_the_results_offsets_win_over_a_store_beside_them(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """C27: after a crash the two may differ; where the results are is where it goes on."""
    name = topic(1)
    settings = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    sink = SqlSink(own_database.url, Table("rows_read", provenance=True))
    schema = "value binary, penstock_topic string, penstock_partition int, penstock_offset bigint"
    create_tables(sink, {"rows_read": schema})
    beside = MemoryOffsetStore()

    def run() -> None:
        stream = DirectStream(spark, Subscribe(name), settings, interval=0, name="s", offsets=beside)
        columns = ("value", "topic", "partition", "offset")
        stream.write(sink, lambda batch: keep_provenance(batch.frame.select(*columns)))
        stream.run(until_idle=True)

    produce(kafka.bootstrap, name, ["a", "b"])
    run()
    for wrong in (0, 99):
        beside.save("s", StreamPosition({TopicPartition(name, 0): wrong}), may_go_back=True)
        produce(kafka.bootstrap, name, ["more"])
        run()
    found = own_database.run("SELECT penstock_offset FROM rows_read ORDER BY penstock_offset")
    assert found == [(number,) for number in range(4)]
    position = beside.load("s")
    assert position is not None
    assert position.offsets == {TopicPartition(name, 0): 4}


def test_a_restart_goes_on_from_positions_in_the_database(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """D38, C4, C25: positions that somebody stored, each partition its own."""
    name = topic(2)
    for partition in (0, 1):
        produce(kafka.bootstrap, name, [str(number) for number in range(35)], partition=partition)
    stored = {TopicPartition(name, 0): 33, TopicPartition(name, 1): 32}
    SqlOffsetStore(own_database.url).save("s", StreamPosition(stored))
    found: list[tuple[int, int]] = []
    stream = DirectStream(
        spark,
        Subscribe(name),
        {"bootstrap.servers": kafka.bootstrap},
        interval=0,
        name="s",
        offsets=own_database.url,
    )
    stream.for_each_batch(
        lambda batch: found.extend(tuple(row) for row in batch.frame.select("partition", "offset").collect())
    )
    stream.run(until_idle=True)
    assert sorted(found) == [(0, 33), (0, 34), (1, 32), (1, 33), (1, 34)]


def test_a_stream_has_one_sink(spark: SparkSession) -> None:
    stream = DirectStream(spark, Subscribe("t"), {"bootstrap.servers": "127.0.0.1:9"}, name="s")
    sink = SqlSink("x.db", Table("a"))
    stream.write(sink)
    with pytest.raises(OptionError) as raised:
        stream.write(sink)
    assert raised.value.condition == "TWO_SINKS"
