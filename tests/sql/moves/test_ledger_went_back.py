"""A database that went back to an earlier state, through a fail-over or a restore: never a silent loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.sql_commit_protocol import Begin, Commit, Step, StepFailedError
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter, open_writer
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers

#: The tables that a batch changes; the writer's epoch is in another table and reached the replica earlier.
TABLES = ("numbers", "penstock_sink_positions")


def keep_copy(database: OwnDatabase) -> Callable[[], None]:
    """Copy the state of the database; return a function that restores it, as a replica that lagged would."""
    for table in TABLES:
        database.run(f"CREATE TABLE copy_of_{table} AS SELECT * FROM {table}")

    def restore() -> None:
        for table in TABLES:
            database.run(f"DELETE FROM {table}")
            database.run(f"INSERT INTO {table} SELECT * FROM copy_of_{table}")

    return restore


def write(
    writer: SqlWriter, before: StreamPosition, end: StreamPosition, rows: pa.Table | None = None
) -> None:
    writer.write(make_numbers(before, end) if rows is None else rows, before, end)


def test_a_lost_batch_that_moved_only_a_new_partition_is_noticed(own_database: OwnDatabase) -> None:
    """The ledger is where the next batch begins in every partition that it knows."""
    with closing(make_sink(own_database.url).open("s")) as writer:
        write(writer, at(0), at(5))
        restore = keep_copy(own_database)
        write(writer, at(5), at(5, 3))
        restore()
        with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*t-1 up to 3") as raised:
            write(writer, at(5, 3), at(9, 4))
        assert raised.value.facts["batches"] == 1
        assert not raised.value.retriable
    assert read_numbers(own_database) == [(0, n) for n in range(5)]


def test_a_lost_batch_that_moved_nothing_and_wrote_rows_is_noticed(own_database: OwnDatabase) -> None:
    """The rows are results of what was read before, such as windows that were closed."""
    with closing(make_sink(own_database.url).open("s")) as writer:
        write(writer, at(0), at(5))
        restore = keep_copy(own_database)
        for _ in range(2):
            write(writer, at(5), at(5), make_numbers(at(0), at(2)))
        restore()
        with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*2 batches.*no offsets") as raised:
            write(writer, at(5), at(9))
        assert raised.value.facts["batches"] == 2
    with closing(make_sink(own_database.url).open("s")) as writer:  # after a restart it continues from there
        assert writer.position == at(5)
        write(writer, at(5), at(9))
    assert read_numbers(own_database) == [(0, n) for n in range(9)]


def test_a_batch_that_another_writer_published_with_the_same_epoch_is_noticed(
    own_database: OwnDatabase,
) -> None:
    """The fail-over lost the first writer's take-over, so the second writer was given the same epoch."""
    sink = make_sink(own_database.url)
    with closing(sink.open("s")) as first:
        write(first, at(0), at(5))
    with closing(sink.open("s")) as first:
        own_database.run("UPDATE penstock_sink_writers SET epoch = epoch - 1")
        with closing(sink.open("s")) as second:
            assert first.epoch == second.epoch
            write(second, at(5), at(5), make_numbers(at(0), at(2)))
            with pytest.raises(OffsetStoreError, match="LEDGER_MOVED"):
                write(first, at(5), at(9))
    assert len(read_numbers(own_database)) == 7


class LostAnswer(Performer):
    """A performer of steps that loses the answer to the third COMMIT, and the question that follows."""

    commits = 0
    is_away = False

    def __call__(self, step: Step) -> Any:
        if self.is_away and isinstance(step, Begin):
            self.is_away = False
            raise StepFailedError("the connection is gone")
        answer = super().__call__(step)
        self.commits += isinstance(step, Commit)
        if isinstance(step, Commit) and self.commits == 3:
            self.is_away = True
            raise StepFailedError("the answer is lost")
        return answer


def test_a_commit_in_doubt_of_a_batch_that_moved_nothing_is_not_made_twice(own_database: OwnDatabase) -> None:
    """T38: its offsets are those of the next batch too; its token shows that it is there."""
    windows = make_numbers(at(0), at(2))
    with closing(open_writer(make_sink(own_database.url), "s", performer_type=LostAnswer)) as writer:
        write(writer, at(0), at(5))
        with pytest.raises(SinkError, match="COMMIT_IN_DOUBT"):
            write(writer, at(5), at(5), windows)
        assert writer.write(windows, at(5), at(5)).was_repeated
        write(writer, at(5), at(5), windows)  # the next one
        write(writer, at(5), at(9))
    assert len(read_numbers(own_database)) == 9 + 2 * windows.num_rows


def test_a_commit_in_doubt_over_a_database_that_went_back_is_not_repeated(own_database: OwnDatabase) -> None:
    """T38: the ledger has neither the batch's token nor the state before it."""
    with closing(open_writer(make_sink(own_database.url), "s", performer_type=LostAnswer)) as writer:
        restore = keep_copy(own_database)
        write(writer, at(0), at(5))
        with pytest.raises(SinkError, match="COMMIT_IN_DOUBT"):
            write(writer, at(5), at(9))
        restore()
        for _ in range(2):
            with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*1 batch .*t-0 up to 5"):
                write(writer, at(5), at(9))
    assert read_numbers(own_database) == []
