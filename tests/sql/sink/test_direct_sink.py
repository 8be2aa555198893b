"""Direct streams into SQL sinks: rows and offsets in one transaction, on three databases."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.cli import main
from penstock.core.errors import OffsetStoreError, OptionError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.direct import Batch, DirectStream, SqlOffsetStore, Subscribe
from penstock.sinks import SqlSink, Table, create_tables, keep_provenance
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from tests.spark.direct.test_direct_examples import load
from tests.sql.databases import OwnDatabase, make_file_database
from tests.support.kafka.topic_filling import produce

ITEMS = ("item1", "item2", "item3")


@pytest.mark.usefixtures("spark")
def test_words_and_actions_are_counted_once_over_restarts_and_a_failure(
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
    # A batch whose second table cannot be written leaves nothing of the first, and no offsets.
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
    told = [line.partition("; ")[2] for line in capsys.readouterr().out.splitlines() if "Stopped" in line]
    assert told == ["6 offsets in 1 batches.", "6 offsets in 1 batches.", "0 offsets in 0 batches."]


def test_a_state_table_is_read_as_of_the_offsets_and_published_with_the_batch(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """D39: a batch's changes are visible to the next one; a repeated batch sees what its first run saw."""
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
    """C27: after a crash the two may differ; the stream continues where the results are."""
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


def test_a_seek_back_is_a_generation_of_its_own_and_the_audit_can_tell(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """C7, C15: it is like a rewind by hand; what is read again is written again, and this is recorded."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("rows_read", provenance=True))
    create_tables(sink, {"rows_read": "value binary"})
    settings = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    columns = ("value", "topic", "partition", "offset")
    beside = MemoryOffsetStore()

    def run(**how: Any) -> None:
        stream = DirectStream(spark, Subscribe(name), settings, interval=0, name="s", offsets=beside, **how)
        stream.write(sink, lambda batch: keep_provenance(batch.frame.select(*columns)))
        stream.run(until_idle=True)

    run(seek={(name, 0): 0})  # a first start has nothing to move
    run(seek={(name, 0): 1})
    found = database.run("SELECT penstock_offset FROM rows_read ORDER BY penstock_offset")
    assert found == [(0,), (1,), (1,), (2,), (2,)]
    (change,) = SinkOffsetStore(database.url).list_changes("s")
    partition = TopicPartition(name, 0)
    assert change.before is not None
    assert (change.verb, change.before.offsets, change.after.offsets) == (
        "seek",
        {partition: 3},
        {partition: 1},
    )
    generations = database.run("SELECT DISTINCT generation FROM penstock_sink_ranges ORDER BY generation")
    assert generations == [(1,), (2,)]
    assert main(["audit", database.url]) == 0
    run(seek={(name, 0): 3})  # where it already is
    assert len(SinkOffsetStore(database.url).list_changes("s")) == 1


def test_a_sink_without_results_of_a_stream_that_has_run_is_an_error(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """T36, C27: the rule `latest` would skip what arrived since, so somebody must say where it starts."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["a", "b"])
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("rows_read"))
    create_tables(sink, {"rows_read": "value binary"})
    beside = MemoryOffsetStore()
    beside.save("s", StreamPosition({TopicPartition(name, 0): 1}))

    def run(**how: Any) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap}
        stream = DirectStream(spark, Subscribe(name), settings, interval=0, name="s", offsets=beside, **how)
        stream.write(sink, lambda batch: batch.frame.select("value")).run(until_idle=True)

    with pytest.raises(OffsetStoreError) as raised:
        run()
    assert raised.value.condition == "SINK_IS_EMPTY"
    run(seek={(name, 0): 1})
    assert [bytes(value) for (value,) in database.run("SELECT value FROM rows_read")] == [b"b"]


def test_a_restart_goes_on_from_positions_in_the_database(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """D38, C4, C25: from positions that somebody stored, each partition from its own."""
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


def test_a_stream_with_a_sink_has_a_name_and_its_function_returns_something(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Two programs without a name would overwrite each other's position; None is not an empty result."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["a"])
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("rows", provenance=True))
    create_tables(sink, {"rows": "value string"})
    settings = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    with pytest.raises(OptionError, match="NAME_MISSING"):
        DirectStream(spark, Subscribe(name), settings).write(sink)
    attempts: list[int] = []

    def run(answer: Any) -> None:
        def transform(batch: Batch) -> Any:
            attempts.append(1)
            return answer(batch)

        DirectStream(spark, Subscribe(name), settings, interval=0, name="s").write(sink, transform).run(
            batches=1
        )

    with pytest.raises(OptionError, match="RESULTS_MISSING"):
        run(lambda batch: None)
    with pytest.raises(SinkError, match=r"RESULTS_DO_NOT_FIT.*no column penstock_topic"):
        run(lambda batch: batch.frame.selectExpr("cast(value as string) value"))
    assert len(attempts) == 2
    assert database.run("SELECT COUNT(*) FROM rows") == [(0,)]


def test_the_times_of_a_frame_arrive_whichever_way_rows_travel(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase
) -> None:
    """A frame's timestamps are instants, whether staged by tasks or collected, in any session's zone."""
    name = topic(1)
    times_ms = [1_700_000_000_123, 1_700_000_001_456]
    for time_ms in times_ms:
        produce(kafka.bootstrap, name, ["v"], timestamp_ms=time_ms)
    zone = spark.conf.get("spark.sql.session.timeZone")
    is_file = own_database.url.endswith(".db")
    try:
        for number, strategy in enumerate(("driver",) if is_file else ("driver", "single", "parallel")):
            spark.conf.set("spark.sql.session.timeZone", ("Asia/Tokyo", "UTC", "America/Lima")[number])
            table = f"times_{number}"
            sink = SqlSink(own_database.url, Table(table), strategy=strategy)  # type: ignore[arg-type]
            create_tables(sink, {table: "at timestamp, n bigint"})
            stream = DirectStream(
                spark,
                Subscribe(name),
                {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
                interval=0,
                name=table,
            )
            stream.write(sink, lambda batch: batch.frame.selectExpr("timestamp as at", "offset as n"))
            stream.run(until_idle=True)
            found = own_database.run(f"SELECT at FROM {table} ORDER BY n")
            assert [read_ms(value) for (value,) in found] == times_ms, strategy
    finally:
        assert zone is not None
        spark.conf.set("spark.sql.session.timeZone", zone)


def read_ms(value: Any) -> int:
    """Return milliseconds from what a driver returns for a time: an instant, or a text or a time in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
