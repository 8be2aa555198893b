"""A stream whose offsets are kept with its results is moved by hand: its writer fenced, its rows too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.core.errors import OffsetStoreError, OptionError, SinkError
from penstock.core.offset_stores import Change, OffsetStore
from penstock.core.stream_offsets import StreamPosition
from penstock.stores.offsets.addresses import open_offset_store
from penstock.stores.offsets.ledger import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers, with_provenance


def test_a_moved_stream_reads_and_writes_again_from_there(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """The writer of before is fenced; what comes again is of the next generation, and nothing is twice."""
    sink = make_sink(own_database.url, provenance=True)
    before, end = at(0, 0), at(5, 4, topic_ids={"t": b"\x01" * 16})
    old = sink.open("s")
    old.write(with_provenance(make_numbers(before, end)), before, end)
    store = open_offset_store(f"sink:{own_database.url}")
    assert isinstance(store, OffsetStore)
    assert isinstance(store, SinkOffsetStore)
    assert store.list_streams() == ["s"]
    assert store.load("s") == end
    assert store.list_changes("s") == []

    asked = ["offsets", "rewind", "--at", f"sink:{own_database.url}", "s", "--offset", "t-0=2"]
    assert main([*asked, "--delete-from", "numbers"]) == 0  # only shown
    assert store.load("s") == end
    assert main([*asked, "--delete-from", "numbers", "--yes", "--watch", "0s"]) == 0
    moved = store.load("s")
    assert moved is not None
    assert moved.offsets == at(2, 4).offsets
    assert read_numbers(own_database) == [(0, 0), (0, 1), *((1, n) for n in range(4))]
    open_offset_store(own_database.url).save("s", end)
    assert main(["offsets", "plan", "--at", own_database.url, "s", "--by", "-1"]) == 0
    assert "they decide where it starts: move sink:" in capsys.readouterr().out
    (change,) = store.list_changes("s")
    assert (change.verb, change.before, change.after) == ("rewind", end, moved)

    with pytest.raises(SinkError, match="WRITER_FENCED"), closing(old):
        old.write(with_provenance(make_numbers(end, at(6, 4))), end, at(6, 4, topic_ids=end.topic_ids))
    with closing(sink.open("s")) as writer:
        assert writer.position == moved
        writer.write(with_provenance(make_numbers(moved, end)), moved, end)
    assert read_numbers(own_database) == [*((0, n) for n in range(5)), *((1, n) for n in range(4))]
    generations = own_database.run("SELECT generation FROM penstock_sink_batches")
    assert sorted(int(row[0]) for row in generations) == [1, 2]


def test_a_change_that_cannot_be_made_changes_nothing(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(5)), at(0), at(5))
        store = SinkOffsetStore(own_database.url)
        with pytest.raises(OffsetStoreError, match="OFFSETS_MOVED"):
            store.change("s", Change(1, "ann", "rewind", at(4), at(1)))
        with pytest.raises(SinkError, match="COLUMN_NOT_FOUND"):
            store.change("s", Change(1, "ann", "rewind", at(5), at(1)), delete_from=["numbers"])
        with pytest.raises(OffsetStoreError, match="LEDGER_IS_THE_SINKS"):
            store.save("s", at(9))
        assert store.load("s") == at(5)
        assert store.list_changes("s") == []
        writer.write(make_numbers(at(5), at(6)), at(5), at(6), name="q/7")  # not fenced
    with pytest.raises(OffsetStoreError, match=r"LEDGER_FOLLOWS_CHECKPOINT.*q/7"):
        store.change("s", Change(1, "ann", "rewind", at(6), at(1)))
    assert store.load("s") == at(6)


def test_rows_that_add_up_cannot_be_deleted_and_read_again(own_database: OwnDatabase) -> None:
    """The sum in a row is of many records; a rewind would bring back the last of them only."""
    sink = SqlSink(
        own_database.url, Table("sums", mode="merge", key=("name",), add=("total",), provenance=True)
    )
    create_tables(sink, {"sums": pa.schema([("name", pa.string()), ("total", pa.int64())])})
    with closing(sink.open("s")) as writer:
        for start, until in ((0, 5), (5, 6)):
            rows = {"name": ["all"], "total": [until - start]}
            rows |= {"penstock_topic": ["t"], "penstock_partition": [0], "penstock_offset": [until - 1]}
            writer.write(pa.table(rows), at(start), at(until))
    store = SinkOffsetStore(own_database.url)
    for name in ("sums", *(["main.sums"] if own_database.url.endswith(".db") else [])):
        with pytest.raises(OptionError, match="ROWS_ARE_SUMS"):
            store.change("s", Change(1, "ann", "rewind", at(6), at(5)), delete_from=[name])
    assert own_database.run("SELECT name, total FROM sums") == [("all", 6)]
    assert store.load("s") == at(6)


def test_rows_of_another_stream_in_the_same_table_are_not_deleted(own_database: OwnDatabase) -> None:
    """Two streams may read one topic into one table; a row does not say whose it is."""
    sink = make_sink(own_database.url, provenance=True)
    for stream in ("one", "two"):
        with closing(sink.open(stream)) as writer:
            writer.write(with_provenance(make_numbers(at(0), at(3))), at(0), at(3))
    store = SinkOffsetStore(own_database.url)
    with pytest.raises(OptionError, match=r"ROWS_OF_OTHERS.*two"):
        store.change("one", Change(1, "ann", "rewind", at(3), at(1)), delete_from=["numbers"])
    assert len(read_numbers(own_database)) == 6
    assert store.load("one") == at(3)


def test_a_database_without_a_ledger_is_told(tmp_path: Path) -> None:
    open_offset_store(f"{tmp_path}/x.db").save("s", StreamPosition({}))
    with pytest.raises(OffsetStoreError, match="OFFSETS_NOT_FOUND"):
        open_offset_store(f"sink:{tmp_path}/x.db")


def test_only_a_sink_has_results_to_delete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_offset_store(f"{tmp_path}/o").save("s", at(5))
    asked = ["offsets", "rewind", "--at", f"{tmp_path}/o", "s", "--by", "1", "--yes", "--watch", "0s"]
    assert main([*asked, "--delete-from", "numbers"]) == 1
    assert "[NO_RESULTS_HERE]" in capsys.readouterr().err
    assert open_offset_store(f"{tmp_path}/o").load("s") == at(5)
