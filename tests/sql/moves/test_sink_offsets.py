"""A stream whose offsets are kept with its results is moved by hand: its writer is fenced, its rows too."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.core.errors import OffsetStoreError, OptionError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, OffsetStore, RowRequest
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.ledger.publish_history import merge_history
from penstock.stores.sql.sink.sink_writer import SqlWriter
from tests.sql.databases import OwnDatabase, make_file_database
from tests.sql.sinks import NUMBERS, at, make_numbers, make_sink, read_numbers, with_provenance
from tests.support.kafka.topic_filling import delete_before, produce

GOLDEN = Path(__file__).parents[2] / "golden"


def test_a_moved_stream_reads_and_writes_again_from_there(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """The previous writer is fenced; what is read again is of the next generation, and nothing is twice."""
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

    with pytest.raises(SinkError, match=r"WRITER_FENCED.*moved by hand: .*@.* did `rewind`"), closing(old):
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
            store.move("s", Change(1, "ann", "rewind", at(5), at(1)), RowRequest(delete_from=("numbers",)))
        with pytest.raises(OffsetStoreError, match="LEDGER_IS_THE_SINKS"):
            store.save("s", at(9))
        assert store.load("s") == at(5)
        assert store.list_changes("s") == []
        writer.write(make_numbers(at(5), at(6)), at(5), at(6), name="q/7")  # not fenced
    with pytest.raises(OffsetStoreError, match=r"LEDGER_FOLLOWS_CHECKPOINT.*q/7"):
        store.change("s", Change(1, "ann", "rewind", at(6), at(1)))
    assert store.load("s") == at(6)


def test_rows_that_add_up_cannot_be_deleted_and_read_again(own_database: OwnDatabase) -> None:
    """The sum in a row comes from many records; a rewind would bring back only the last of them."""
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
            store.move("s", Change(1, "ann", "rewind", at(6), at(5)), RowRequest(delete_from=(name,)))
    assert own_database.run("SELECT name, total FROM sums") == [("all", 6)]
    assert store.load("s") == at(6)


def test_rows_of_another_stream_in_the_same_table_are_not_deleted(own_database: OwnDatabase) -> None:
    """Two streams may read one topic into one table, and a row does not say which stream wrote it."""
    sink = make_sink(own_database.url, provenance=True)
    for stream in ("one", "two"):
        with closing(sink.open(stream)) as writer:
            writer.write(with_provenance(make_numbers(at(0), at(3))), at(0), at(3))
    store = SinkOffsetStore(own_database.url)
    with pytest.raises(OptionError, match=r"ROWS_OF_OTHERS.*two"):
        store.move("one", Change(1, "ann", "rewind", at(3), at(1)), RowRequest(delete_from=("numbers",)))
    assert len(read_numbers(own_database)) == 6
    assert store.load("one") == at(3)


def add_up(until: int, start: int = 0) -> dict[str, pa.Table]:
    """Return what a batch of these offsets writes to a table of rows, one of sums and one of last values."""
    rows = with_provenance(make_numbers(at(start), at(until)))
    last = {"name": ["odd", "even"], "n": [max(range(1, until, 2)), max(range(0, until, 2))]}
    return {
        "numbers": rows,
        "sums": pa.table({"name": ["all"], "n": [sum(range(start, until))]}),
        "latest": pa.table(last),
    }


def make_adding_sink(url: str) -> SqlSink:
    name_and_n = pa.schema([("name", pa.string()), ("n", pa.int64())])
    sink = SqlSink(
        url,
        Table("numbers", provenance=True),
        Table("sums", mode="merge", key=("name",), add=("n",)),
        Table("latest", mode="upsert", key=("name",)),
    )
    create_tables(sink, {"numbers": NUMBERS, "sums": name_and_n, "latest": name_and_n})
    return sink


def read_all(database: OwnDatabase) -> dict[str, list[tuple[object, ...]]]:
    return {
        "numbers": sorted(database.run("SELECT partition_id, number FROM numbers")),
        "sums": sorted(database.run("SELECT name, n FROM sums")),
        "latest": sorted(database.run("SELECT name, n FROM latest")),
    }


def test_a_table_of_sums_is_not_taken_back_a_little_but_emptied_and_filled_anew(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal does not depend on --yes; what is deleted is counted before and recorded after."""
    sink = make_adding_sink(own_database.url)
    store = SinkOffsetStore(own_database.url)
    with closing(sink.open("s")) as writer:
        for start, until in ((0, 5), (5, 9)):
            writer.write(add_up(until, start), at(start), at(until))
    truth = read_all(own_database)

    def fill(start: int) -> None:
        with closing(sink.open("s")) as writer:
            writer.write(add_up(9, start), at(start), at(9))

    for rows in (RowRequest(), RowRequest(delete_from=("numbers",))):
        for ask in (store.preview, store.move):
            with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*t-0 \[5, 9\).*sums \(mode merge"):
                ask("s", Change(1, "ann", "rewind", at(9), at(5)), rows)
    for ask in (store.preview, store.move):
        with pytest.raises(OptionError, match=r"REBUILD_INCOMPLETE.*begin at 5, and the table holds"):
            ask("s", Change(1, "ann", "rewind", at(9), at(5)), RowRequest(rebuild=("sums",)))
    assert read_all(own_database) == truth

    # Records that count twice because somebody said so are found by an audit, until the table is rebuilt.
    twice = RowRequest(delete_from=("numbers",), may_count_twice=True)
    assert store.preview("s", Change(1, "ann", "rewind", at(9), at(5)), twice).deleted == {"numbers": 4}
    assert store.move("s", Change(1, "ann", "rewind", at(9), at(5)), twice).deleted == {"numbers": 4}
    fill(5)
    found = read_all(own_database)
    assert found["sums"] == [("all", sum(range(9)) + sum(range(5, 9)))]
    assert (found["numbers"], found["latest"]) == (truth["numbers"], truth["latest"])
    capsys.readouterr()
    assert main(["audit", own_database.url, "s"]) == 1
    printed = capsys.readouterr().out
    assert "[SUMS_COUNT_TWICE] sums (generation 2)" in printed
    assert "latest: t-0 [5, 9) was written again" in printed
    assert "1 finding." in printed

    anew = RowRequest(delete_from=("numbers",), rebuild=("sums", "latest"))
    back = Change(2, "ann", "rewind", at(9), at(0))
    assert store.preview("s", back, anew).deleted == {"numbers": 9, "sums": 1, "latest": 2}
    assert read_all(own_database) == found
    store.move("s", back, anew)
    assert read_all(own_database) == {"numbers": [], "sums": [], "latest": []}
    fill(0)
    assert read_all(own_database) == truth
    assert main(["audit", own_database.url, "s"]) == 0


def test_state_that_a_stream_reads_back_is_not_fed_twice(tmp_path: Path) -> None:
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("sessions", mode="state", key=("name",)))
    create_tables(sink, {"sessions": pa.schema([("name", pa.string()), ("n", pa.int64())])})
    with closing(sink.open("s")) as writer:
        writer.write(pa.table({"name": ["a"], "n": [9]}), at(0), at(9))
    store, back = SinkOffsetStore(database.url), Change(1, "ann", "seek", at(9), at(4))
    with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*sessions \(mode state"):
        store.change("s", back)
    # A sink that fills another table from then on adds nothing to this one.
    store.move("s", back, RowRequest(written=frozenset({"sessions_2"})))
    assert store.load("s") == at(4)


def test_a_stream_that_began_in_the_middle_of_the_log_is_sent_back_to_there(tmp_path: Path) -> None:
    """Before that there are records that its sums have never held."""
    database = make_file_database(tmp_path)
    with closing(make_adding_sink(database.url).open("s")) as writer:
        writer.write(add_up(9, 4), at(4), at(9))
    store, anew = SinkOffsetStore(database.url), RowRequest(rebuild=("sums", "latest", "numbers"))
    with pytest.raises(OptionError, match=r"SUMS_WOULD.*rewind ... s --offset t-0=4 --rebuild sums"):
        store.preview("s", Change(1, "ann", "rewind", at(9), at(5)))
    told = store.preview("s", Change(1, "ann", "rewind", at(9), at(0)), anew)
    assert any(
        "sums will hold more than before: records of t-0 from 0, not 4." in each for each in told.notes
    )
    told = store.preview("s", Change(1, "ann", "rewind", at(9), at(4)), anew)
    assert [each for each in told.notes if not each.startswith("Deletes")] == []


def test_a_row_of_an_upsert_that_was_deleted_comes_back_with_its_last_record(tmp_path: Path) -> None:
    """An earlier value, from a record that is not read again, does not come back.

    Only the same program ends with the same rows.
    """
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("latest", mode="upsert", key=("name",), provenance=True))
    create_tables(sink, {"latest": pa.schema([("name", pa.string()), ("n", pa.int64())])})

    def put(writer: SqlWriter, name: str, offset: int) -> None:
        rows = {"name": [name], "n": [offset], "penstock_topic": ["t"], "penstock_partition": [0]}
        writer.write(pa.table({**rows, "penstock_offset": [offset]}), at(offset), at(offset + 1))

    with closing(sink.open("s")) as writer:
        for offset, name in enumerate(("a", "b", "a", "c")):
            put(writer, name, offset)
    question = "SELECT name, n FROM latest ORDER BY name"
    truth = database.run(question)
    store = SinkOffsetStore(database.url)
    store.move("s", Change(1, "ann", "rewind", at(4), at(1)), RowRequest(delete_from=("latest",)))
    assert database.run(question) == []  # not a=0, which a=2 had already replaced
    with closing(sink.open("s")) as writer:
        for offset, name in enumerate(("b", "a", "c"), start=1):
            put(writer, name, offset)
    assert database.run(question) == truth


def test_a_table_can_only_be_emptied_by_the_one_stream_that_can_fill_it(tmp_path: Path) -> None:
    database = make_file_database(tmp_path)
    sink = make_adding_sink(database.url)
    for stream in ("one", "two"):
        with closing(sink.open(stream)) as writer:
            writer.write(add_up(5), at(0), at(5))
    store, back = SinkOffsetStore(database.url), Change(1, "ann", "rewind", at(5), at(0))
    for rows, condition in (
        (RowRequest(rebuild=("sums",)), "ROWS_OF_OTHERS.*two fills sums"),
        (RowRequest(rebuild=("nothing",)), "TABLE_NOT_IN_LEDGER.*It has filled: latest, numbers, sums"),
        (RowRequest(delete_from=("numbers", "main.numbers")), "TABLE_NAMED_TWICE"),
        (RowRequest(delete_from=("numbers",), rebuild=("numbers",)), "TABLE_NAMED_TWICE"),
    ):
        with pytest.raises(OptionError, match=condition):
            store.move("one", back, rows)
    assert store.load("one") == at(5)


def test_rows_deleted_under_another_name_of_the_table_are_booked_under_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    sink = make_sink(database.url, provenance=True)
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(0), at(5))), at(0), at(5))
    rows = RowRequest(delete_from=("main.numbers",))
    SinkOffsetStore(database.url).move("s", Change(1, "ann", "rewind", at(5), at(2)), rows)
    assert main(["audit", database.url]) == 0, capsys.readouterr().out


def test_records_that_have_aged_out_keep_their_sums(
    kafka: Any, topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it was emptied, the table could not be filled again: this is detected before a row is deleted."""
    name, database = topic(1), make_file_database(tmp_path)
    produce(kafka.bootstrap, name, ["x"] * 9)
    delete_before(kafka.bootstrap, name, 3)
    sink = make_adding_sink(database.url)
    start, end = (StreamPosition({TopicPartition(name, 0): each}) for each in (0, 9))
    with closing(sink.open("s")) as writer:
        writer.write(add_up(9), start, end)
    asked = ["offsets", "rewind", "--at", f"sink:{database.url}", "s", "--rebuild", "sums"]
    asked += ["--rebuild", "numbers", "--rebuild", "latest", "--bootstrap-server", kafka.bootstrap]
    for how in (["--to-start"], ["--to-offset", "0"], ["--to-start", "--yes", "--watch", "0"]):
        assert main([*asked, *how]) == 1
        assert "[REBUILD_INCOMPLETE]" in capsys.readouterr().err
    assert len(read_numbers(database)) == 9


def test_a_dry_run_says_what_the_real_run_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = make_file_database(tmp_path)
    with closing(make_adding_sink(database.url).open("s")) as writer:
        writer.write(add_up(5), at(0), at(5))
        writer.write(add_up(9, 5), at(5), at(9), name="")
    asked = ["offsets", "rewind", "--at", f"sink:{database.url}", "s"]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*asked, *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    for refused, condition in (
        (["--by", "4", "--delete-from", "sums"], "ROWS_ARE_SUMS"),
        (["--by", "4", "--delete-from", "latest"], "COLUMN_NOT_FOUND"),
        (["--by", "4", "--delete-from", "nothing"], "TABLE_NOT_FOUND"),
        (["--by", "4"], "SUMS_WOULD_COUNT_TWICE"),
    ):
        dry, real = run(*refused), run(*refused, "--yes", "--watch", "0")
        assert dry == real
        assert (dry[0], condition in dry[2]) == (1, True)
    asked += ["--by", "4", "--delete-from", "numbers", "--sums-count-twice"]
    dry, real = run(), run("--yes", "--watch", "0")
    assert "Deletes 4 rows of numbers, of records that are read again." in dry[1]
    assert "sums (merge) counts t-0 [5, 9) twice from now on, as you asked." in dry[1]
    assert dry[1].splitlines()[:-1] == real[1].splitlines()[:-1]
    assert "Nothing was changed. Say --yes to do it" in dry[1]
    asked[1] = "plan"
    capsys.readouterr()
    with closing(make_adding_sink(database.url).open("s")) as writer:
        writer.write(add_up(9, 5), at(5), at(9))
    assert main(["offsets", "plan", "--at", f"sink:{database.url}", "s", "--by", "-2"]) == 0
    assert "the move would be refused. [SUMS_WOULD_COUNT_TWICE]" in capsys.readouterr().out


def test_a_dry_run_knows_that_a_query_goes_on_from_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    with closing(make_sink(database.url).open("s")) as writer:
        writer.write(make_numbers(at(0), at(5)), at(0), at(5), name="q/7")
    assert main(["offsets", "rewind", "--at", f"sink:{database.url}", "s", "--by", "2"]) == 1
    assert "[LEDGER_FOLLOWS_CHECKPOINT]" in capsys.readouterr().err


def test_a_ledger_that_an_older_version_has_moved_is_judged_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That version's moves have no number in their names, and its tables have no recorded modes."""
    database = make_file_database(tmp_path)
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript((GOLDEN / "sink_ledger_v1_moved.sql").read_text())
    for _ in range(2):
        assert main(["audit", database.url, "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert [(each["condition"], each["subject"]) for each in told["findings"]] == [
            ("SUMS_COUNT_TWICE", "totals")
        ]
        Database(parse_place(database.url)).run(lambda each: merge_history(each, "visits", 0), writes=True)


def test_the_plain_address_of_a_sinks_database_leads_to_the_sink(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(make_sink(own_database.url).open("s")) as writer:
        writer.write(make_numbers(at(0), at(5)), at(0), at(5))
    meant = f"use sink:{parse_place(own_database.url)}."
    assert main(["offsets", "show", "--at", own_database.url, "s"]) == 1  # there are no store tables yet
    assert meant in capsys.readouterr().err
    SinkOffsetStore(own_database.url).change("s", Change(1, "ann", "skip", at(5), at(6)))  # now there are
    assert main(["offsets", "show", "--at", own_database.url, "s"]) == 1
    printed = capsys.readouterr().err
    assert "[STREAM_NOT_FOUND]" in printed
    assert meant in printed
    assert main(["offsets", "show", "--at", own_database.url, "other"]) == 1
    assert meant not in capsys.readouterr().err  # the sink has no results of that stream
    assert main(["offsets", "show", "--at", own_database.url]) == 0
    assert meant in capsys.readouterr().out
    assert main(["audit", f"sink:{own_database.url}", "s"]) == 0


def test_a_database_without_a_ledger_is_told(tmp_path: Path) -> None:
    open_offset_store(f"{tmp_path}/x.db").save("s", StreamPosition({}))
    with pytest.raises(OffsetStoreError, match="OFFSETS_NOT_FOUND"):
        open_offset_store(f"sink:{tmp_path}/x.db")


@pytest.mark.parametrize("verb", ["import", "copy"])
def test_a_position_from_elsewhere_that_leads_back_is_taken_if_sums_may_count_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """The error names the option, so the verb has it; a dry run answers like a real one."""
    database = make_file_database(tmp_path)
    with closing(make_adding_sink(database.url).open("s")) as writer:
        writer.write(add_up(9), at(0), at(9))
    open_offset_store(f"{tmp_path}/o").save("s", at(5))
    assert main(["offsets", "export", "--at", f"{tmp_path}/o", "s", "--file", f"{tmp_path}/s.json"]) == 0
    asked = {
        "import": ["--at", f"sink:{database.url}", "s", "--file", f"{tmp_path}/s.json"],
        "copy": ["--from", f"{tmp_path}/o", "s", "--to", f"sink:{database.url}"],
    }[verb]
    for more in ([], ["--yes", "--watch", "0"]):
        assert main(["offsets", verb, *asked, *more]) == 1
        assert "[SUMS_WOULD_COUNT_TWICE]" in capsys.readouterr().err
        assert main(["offsets", verb, *asked, "--sums-count-twice", *more]) == 0
        assert "counts t-0 [5, 9) twice from now on, as you asked." in capsys.readouterr().out
    assert SinkOffsetStore(database.url).load("s") == at(5)


def test_a_rewind_that_moves_nothing_is_not_made_and_fences_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An offset that lies ahead leaves every partition where it is, and no row has to go."""
    database = make_file_database(tmp_path)
    sink = make_sink(database.url, provenance=True)
    store = SinkOffsetStore(database.url)
    asked = ["offsets", "rewind", "--at", f"sink:{database.url}", "s", "--to-offset", "99"]
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(0), at(5))), at(0), at(5))
        for rows in ([], ["--delete-from", "numbers"], ["--sums-count-twice"]):
            for more in ([], ["--yes", "--watch", "0s"]):
                assert main([*asked, *rows, *more]) == 0
                printed = capsys.readouterr().out
                assert "Nothing to change." in printed
                assert "Done" not in printed
                assert "fenced" not in printed
        assert store.list_changes("s") == []
        writer.write(with_provenance(make_numbers(at(5), at(7))), at(5), at(7))
    assert main([*asked[:-2], "--only", "tt-1", "--by", "1"]) == 1
    assert "[NOT_IN_STREAM]" in capsys.readouterr().err
    # Rows that were lost are still in the ledger, so there is something to change.
    database.run("DELETE FROM numbers")
    store.move("s", Change(1, "ann", "rewind", at(7), at(0)))
    moved = store.move("s", Change(1, "ann", "rewind", at(0), at(0)), RowRequest(rebuild=("numbers",)))
    assert (moved.is_empty, moved.deleted) == (False, {"numbers": 0})
    assert main(["audit", database.url]) == 0
    assert store.move(
        "s", Change(1, "ann", "rewind", at(0), at(0)), RowRequest(rebuild=("numbers",))
    ).is_empty
    assert len(store.list_changes("s")) == 2


def test_only_a_sink_has_results_to_delete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_offset_store(f"{tmp_path}/o").save("s", at(5))
    asked = ["offsets", "rewind", "--at", f"{tmp_path}/o", "s", "--by", "1"]
    for more in ([], ["--yes", "--watch", "0s"]):
        for what in (["--delete-from", "numbers"], ["--rebuild", "sums"], ["--sums-count-twice"]):
            assert main([*asked, *more, *what]) == 1
            assert "[NO_RESULTS_HERE]" in capsys.readouterr().err
    assert open_offset_store(f"{tmp_path}/o").load("s") == at(5)
