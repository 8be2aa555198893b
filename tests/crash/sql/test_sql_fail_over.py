"""The database fails over: its primary is killed, its standby is promoted, and the stream has to find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import ServerPlace, parse_place
from penstock.core.sinks.sql_commit_protocol import Commit, Step
from penstock.direct import Batch, DirectStream, Subscribe
from penstock.sinks import SqlSink, Table, create_tables, for_each_batch
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.sink.task_staging import open_adbc
from tests.sql.sinks import at, make_numbers, make_sink, open_watched
from tests.support.kafka.topic_filling import produce
from tests.support.servers.postgres_standby import Pair, start_pair

pytestmark = pytest.mark.sql
PARTITIONS, RECORDS, STEP = 2, 20, 10
#: The batch in which replication ends, if it does: commits from here on are on the primary alone.
CUT = 1
KILLED = CUT + 2


@pytest.fixture
def pair() -> Iterator[Pair]:
    with start_pair() as pair:
        yield pair


@pytest.fixture
def source(kafka: Any, topic: Any) -> str:
    name: str = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka.bootstrap, name, [str(number) for number in range(RECORDS)], partition=partition)
    return name


def make_hook(pair: Pair, is_whole: bool) -> Callable[[int], None]:
    """Return the hook that acts on the servers while a batch is at work."""
    done: list[int] = []

    def pass_batch(number: int) -> None:
        if number in done:
            return
        done.append(number)
        if number == CUT and not is_whole:
            pair.cut_replication()
        if number == (KILLED - 1 if is_whole else KILLED):
            if is_whole:
                pair.wait_for_replay()
            pair.fail_over()

    return pass_batch


def check_seen(pair: Pair, batches: int | None) -> None:
    """Check that all records, or those of the first batches, are there once."""
    pair.join()
    until = RECORDS if batches is None else batches * STEP // PARTITIONS
    found = sorted(pair.run("SELECT part, pos FROM seen"))
    assert found == [(part, pos) for part in range(PARTITIONS) for pos in range(until)]


def make_seen(pair: Pair) -> SqlSink:
    sink = SqlSink(pair.url, Table("seen"), strategy="parallel")
    create_tables(sink, {"seen": "part int, pos bigint"})
    return sink


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "lacking"])
def test_a_direct_stream_goes_on_at_the_promoted_standby_or_says_what_it_lacks(
    spark: SparkSession, kafka: Any, source: str, pair: Pair, is_whole: bool
) -> None:
    """What it has is neither lost nor doubled; if something is missing, the stream ends and names it."""
    pass_batch = make_hook(pair, is_whole)

    def work(batch: Batch) -> DataFrame:
        pass_batch(batch.id)
        return batch.frame.selectExpr("partition AS part", "offset AS pos")

    stream = DirectStream(
        spark,
        Subscribe(source),
        {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
        interval=0,
        name="s",
        options={"maxOffsetsPerTrigger": STEP, "maxRecordsPerPartition": 3},
        batch_attempts=1,  # a second attempt would hide that the first one did not wait
    )
    stream.write(make_seen(pair), work)
    if is_whole:
        stream.run(until_idle=True)
        check_seen(pair, None)
        return
    with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*2 batches.*-0 from 5 to 15") as caught:
        stream.run(until_idle=True)
    assert not caught.value.retriable
    check_seen(pair, CUT)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "lacking"])
def test_a_query_goes_on_at_the_promoted_standby_or_says_what_it_lacks(
    spark: SparkSession, kafka: Any, source: str, pair: Pair, tmp_path: Path, is_whole: bool
) -> None:
    """The same holds for Structured Streaming, whose query does not even fail if nothing is missing."""
    pass_batch = make_hook(pair, is_whole)

    def work(frame: DataFrame, batch_id: int) -> DataFrame:
        pass_batch(batch_id)
        return frame.selectExpr("partition AS part", "offset AS pos")

    checkpoint = str(tmp_path / "checkpoint")
    sink = make_seen(pair)

    def run() -> None:
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
        reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", STEP).option("maxRecordsPerPartition", "3").load()
        write = for_each_batch(sink, "s", checkpoint=checkpoint, transform=work)
        query = rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write)
        try:
            assert query.trigger(availableNow=True).start().awaitTermination(240), "the query does not end"
        finally:
            write.close()  # type: ignore[attr-defined]

    if is_whole:
        run()
        check_seen(pair, None)
        return
    for told in ("-0 from 5 to 15", "the batches 1 to 2"):  # a restart finds the same
        with pytest.raises(StreamingQueryException, match=f"LEDGER_WENT_BACK.*{told}"):
            run()
        check_seen(pair, CUT)


def test_a_commit_that_nobody_answers_is_made_at_the_promoted_standby(pair: Pair) -> None:
    """The primary dies when asked to commit; the new primary is asked whether the commit happened."""
    sink, commits = make_sink(pair.url), []

    def kill_at_commit(step: Step) -> None:
        commits.extend([step] if isinstance(step, Commit) else [])
        if isinstance(step, Commit) and len(commits) == 3:
            pair.wait_for_replay()
            pair.fail_over()

    with closing(open_watched(sink, kill_at_commit)) as writer:
        writer.write(make_numbers(at(0), at(3)), at(0), at(3))
        assert writer.write(make_numbers(at(3), at(5)), at(3), at(5)).rows == 2
        assert len(commits) == 4
        assert writer.read_state("numbers").num_rows == 5
    assert sorted(pair.run("SELECT number FROM numbers")) == [(number,) for number in range(5)]


@pytest.mark.parametrize("first", ["offsets", "state"])
def test_offsets_are_kept_and_state_is_read_at_the_promoted_standby(pair: Pair, first: str) -> None:
    """The first to come waits for the fail-over: the offset store, or a sink that reads its state back."""
    store = SqlOffsetStore(pair.url)
    sink = make_sink(pair.url)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(3)), at(0), at(3))
        store.save("s", at(3))
        pair.wait_for_replay()
        pair.fail_over()
        if first == "offsets":
            store.save("s", at(5))
        assert writer.read_state("numbers").num_rows == 3
        store.save("s", at(5))
    pair.join()
    assert store.load("s") == at(5)


def test_a_standby_alone_is_told_to_be_one_and_may_be_read(pair: Pair) -> None:
    """A program that only reads may use it; one that writes is told why it cannot."""
    make_sink(pair.url)
    pair.wait_for_replay()
    place = parse_place(pair.standby.url)
    rows = Database(place).run(lambda session: session.execute("SELECT count(*) FROM numbers"))
    assert rows == [(0,)]
    # Beside its primary it is skipped, even by programs that only read, because its data may be old.
    both = parse_place(pair.url_backwards)
    assert isinstance(both, ServerPlace)
    question = "SELECT pg_is_in_recovery()"
    assert Database(both).run(lambda session: session.execute(question)) == [(False,)]
    with open_adbc(both, writes=False) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(question)
        assert cursor.fetchone() == (False,)
    with pytest.raises(OffsetStoreError, match=r"DATABASE_READ_ONLY.*transaction_read_only is on") as caught:
        Database(place).run(lambda session: session.execute("DELETE FROM numbers"), writes=True)
    assert caught.value.retriable
    with pytest.raises(OffsetStoreError, match=r"DATABASE_READ_ONLY.*read-only transaction") as caught:
        Database(place).run(lambda session: session.execute("DELETE FROM numbers"))
    assert caught.value.retriable
