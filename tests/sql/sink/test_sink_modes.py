"""What a sink's tables hold after batches, in each mode, on each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import OptionError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.sink.sink_writer import SqlWriter
from tests.sql.databases import OwnDatabase

ONE = TopicPartition("clicks", 0)
PAGES = pa.schema([("page", pa.string()), ("hits", pa.int64())])


def at(*offsets: int, **more: Any) -> StreamPosition:
    return StreamPosition(
        {TopicPartition("clicks", number): each for number, each in enumerate(offsets)}, **more
    )


def pages(*rows: tuple[str | None, int | None]) -> pa.Table:
    return pa.table({"page": [row[0] for row in rows], "hits": [row[1] for row in rows]}, PAGES)


@contextmanager
def opened(database: OwnDatabase, table: Table, schema: pa.Schema = PAGES) -> Iterator[SqlWriter]:
    sink = SqlSink(database.url, table)
    create_tables(sink, {table.name: schema})
    with closing(sink.open("s")) as writer:
        yield writer


def test_rows_are_appended_and_the_ledger_moves_with_them(own_database: OwnDatabase) -> None:
    with opened(own_database, Table("visits")) as writer:
        assert writer.position is None
        assert writer.write(pages(("a", 1), ("b", 2)), at(0), at(2)).rows == 2
        assert writer.write(pages(("a", 3)), at(2), at(3)).rows == 1
        assert writer.position == at(3)
    with closing(SqlSink(own_database.url, Table("visits")).open("s")) as writer:
        assert writer.position == at(3)
    assert sorted(own_database.run("SELECT page, hits FROM visits")) == [("a", 1), ("a", 3), ("b", 2)]


def test_an_upsert_replaces_the_row_with_the_same_key(own_database: OwnDatabase) -> None:
    with opened(own_database, Table("visits", mode="upsert", key="page")) as writer:
        writer.write(pages(("a", 1), ("b", 2)), at(0), at(2))
        writer.write(pages(("a", 5), ("c", None)), at(2), at(4))
    assert sorted(own_database.run("SELECT page, hits FROM visits")) == [("a", 5), ("b", 2), ("c", None)]


def test_two_rows_of_one_key_are_an_error_and_nothing_of_the_batch_stays(own_database: OwnDatabase) -> None:
    with opened(own_database, Table("visits", mode="upsert", key="page")) as writer:
        with pytest.raises(SinkError, match=r"DUPLICATE_KEY.*2 rows.*page 'a'"):
            writer.write(pages(("a", 1), ("b", 1), ("a", 2)), at(0), at(3))
        writer.write(pages(("a", 7)), at(0), at(3))
    assert own_database.run("SELECT page, hits FROM visits") == [("a", 7)]


def test_with_provenance_the_last_row_of_a_key_counts(own_database: OwnDatabase) -> None:
    table = Table("visits", mode="upsert", key="page", provenance=True)
    rows = pages(("a", 1), ("a", 2), ("a", 3), ("b", 4))
    for name, values in {
        "penstock_topic": pa.array(["t"] * 4),
        "penstock_partition": pa.array([0, 1, 1, 0], pa.int32()),
        "penstock_offset": pa.array([9, 5, 4, 8], pa.int64()),
    }.items():
        rows = rows.append_column(name, values)
    with opened(own_database, table) as writer:
        writer.write(rows, at(0), at(3))
    found = own_database.run("SELECT page, hits, penstock_partition, penstock_offset FROM visits")
    assert sorted(found) == [("a", 2, 1, 5), ("b", 4, 0, 8)]


def test_a_merge_adds_to_what_is_there(own_database: OwnDatabase) -> None:
    with opened(own_database, Table("visits", mode="merge", key="page", add="hits")) as writer:
        writer.write(pages(("a", 1), ("b", 2), ("a", 10)), at(0), at(2))
        writer.write(pages(("a", 5), ("c", 1), ("b", None)), at(2), at(4))
    assert sorted(own_database.run("SELECT page, hits FROM visits")) == [("a", 16), ("b", 2), ("c", 1)]


def test_a_merge_replaces_the_columns_it_does_not_add(own_database: OwnDatabase) -> None:
    schema = PAGES.append(pa.field("seen", pa.string()))
    with opened(own_database, Table("visits", mode="merge", key="page", add="hits"), schema) as writer:
        for number, word in enumerate(("one", "two")):
            rows = pa.table({"page": ["a"], "hits": [2], "seen": [word]}, schema)
            writer.write(rows, at(number), at(number + 1))
        with pytest.raises(SinkError, match="DUPLICATE_KEY"):
            writer.write(pa.concat_tables([rows, rows]), at(2), at(4))
    assert own_database.run("SELECT page, hits, seen FROM visits") == [("a", 4, "two")]


def test_a_state_table_is_changed_and_rows_of_it_are_removed(own_database: OwnDatabase) -> None:
    deleted = pa.array([True, False, None])
    with opened(own_database, Table("visits", mode="state", key="page")) as writer:
        writer.write(pages(("a", 1), ("b", 2), ("c", 3)), at(0), at(3))
        changes = pages(("a", 1), ("b", 20), ("d", 4)).append_column("penstock_deleted", deleted)
        writer.write(changes, at(3), at(6))
    assert sorted(own_database.run("SELECT page, hits FROM visits")) == [("b", 20), ("c", 3), ("d", 4)]


def test_an_empty_batch_moves_the_ledger_only(own_database: OwnDatabase) -> None:
    """A filter may leave nothing, or a batch may be all losses. Then there are no rows, but offsets move."""
    with opened(own_database, Table("visits")) as writer:
        assert writer.write(pages(), at(0, 5), at(4, 5)).rows == 0
        assert writer.write({}, at(4, 5), at(9, 5, starts={ONE: 9})).rows == 0
        assert writer.position == at(9, 5)
    with closing(writer.sink.open("s")) as writer:
        assert writer.position == at(9, 5)


def test_a_batch_written_again_changes_nothing(own_database: OwnDatabase) -> None:
    with opened(own_database, Table("visits")) as writer:
        writer.write(pages(("a", 1)), at(0), at(1))
        assert writer.write(pages(("a", 1)), at(0), at(1)).was_repeated
    with closing(writer.sink.open("s")) as writer:
        assert writer.write(pages(("a", 1)), at(0), at(1)).was_repeated
    assert own_database.run("SELECT page, hits FROM visits") == [("a", 1)]


def test_two_tables_of_a_sink_are_written_in_one_transaction(own_database: OwnDatabase) -> None:
    sink = SqlSink(own_database.url, Table("visits"), Table("totals", mode="merge", key="page", add="hits"))
    create_tables(sink, {"visits": PAGES, "totals": PAGES})
    with closing(sink.open("s")) as writer:
        writer.write({"visits": pages(("a", 1), ("a", 2)), "totals": pages(("a", 3))}, at(0), at(2))
        with pytest.raises(SinkError, match="RESULTS_UNNAMED"):
            writer.write(pages(("a", 1)), at(2), at(3))
        with pytest.raises(OptionError, match="TABLE_UNKNOWN"):
            writer.write({"visit": pages(("a", 1))}, at(2), at(3))
        two = pages(("x", 1)), pa.table({"page": pa.array([None], pa.string()), "hits": [1]})
        with pytest.raises(SinkError, match="PUBLISH_FAILED"):
            writer.write({"visits": two[0], "totals": two[1]}, at(2), at(3))  # a key must not be null
    assert own_database.run("SELECT COUNT(*) FROM visits") == [(2,)]
    assert own_database.run("SELECT page, hits FROM totals") == [("a", 3)]


def test_a_position_comes_back_as_it_was_written(own_database: OwnDatabase) -> None:
    """Offsets, topic ids, leader epochs, partitions that are gone, and those that were forgotten."""
    two, three = TopicPartition("clicks", 1), TopicPartition("other-ü", 7)
    first = StreamPosition(
        {ONE: 1, two: 2, three: 2**62}, {"clicks": b"\1" * 16, "other-ü": b"\2" * 16}, {ONE: 4, three: 0}
    )
    second = StreamPosition({ONE: 3}, {"clicks": b"\3" * 16}, {ONE: 5}, starts={ONE: 0}, gone={two: 2})
    with opened(own_database, Table("visits")) as writer:
        writer.write(pages(), StreamPosition({}), first)
        assert writer.position == first
        writer.write(pages(), first, second)
    with closing(writer.sink.open("s")) as writer:
        assert writer.position == replace(second, starts={})
        writer.write(pages(), second, at(8, 2))
        assert writer.position == at(8, 2)
