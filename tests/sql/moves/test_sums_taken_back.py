"""Sums stay true however a stream was rewound: under another spelling, in two steps, or reconsidered."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.core.errors import OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, RowRequest
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import FilePlace, ServerPlace, parse_place
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.ledger.publish_history import merge_history
from tests.sql.databases import OwnDatabase, make_file_database
from tests.sql.sinks import NUMBERS, at, make_numbers, make_sink, read_numbers, with_provenance
from tests.support.kafka.topic_filling import produce

NAME_AND_N = pa.schema([("name", pa.string()), ("n", pa.int64())])


@pytest.fixture
def database(tmp_path: Path) -> OwnDatabase:
    return make_file_database(tmp_path)


def make_sums(url: str, name: str = "sums", **settings: Any) -> SqlSink:
    sink = SqlSink(url, Table(name, **{"mode": "merge", "key": ("name",), "add": ("n",), **settings}))
    create_tables(sink, {name: NAME_AND_N})
    return sink


def add_up(sink: SqlSink, start: int, until: int, **more: Any) -> None:
    """Add what one batch of a separate run adds to the only table."""
    with closing(sink.open("s")) as writer:
        rows = pa.table({"name": ["all"], "n": [sum(range(start, until))]})
        writer.write(rows, writer.position or at(start, **more), at(until, **more))


def rewind(before: StreamPosition, after: StreamPosition, verb: str = "rewind") -> Change:
    return Change(1, "ann", verb, before, after)


def qualify(url: str, name: str) -> str:
    """Return the same table with its schema."""
    place = parse_place(url)
    if isinstance(place, FilePlace):
        return f"main.{name}"
    assert isinstance(place, ServerPlace)
    return f"{'public' if place.dialect == 'postgresql' else place.database}.{name}"


def list_findings(url: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    capsys.readouterr()
    assert main(["audit", url, "--json"]) in (0, 1)
    return [(each["condition"], each["subject"]) for each in json.loads(capsys.readouterr().out)["findings"]]


def test_a_table_under_another_spelling_is_the_same_table(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """With or without its schema, the rows already hold the same records."""
    url = own_database.url
    add_up(make_sums(url), 0, 9)
    store, long_name = SinkOffsetStore(url), qualify(url, "sums")
    spellings = [long_name, "sums", *(["SUMS"] if url.startswith("sqlite") else [])]
    for written in ({each} for each in spellings):
        with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*sums \(mode merge") as told:
            store.move("s", rewind(at(9), at(5), "seek"), RowRequest(written=frozenset(written)))
        # A program has no such option, so the message names the command that has it.
        assert "`penstock offsets rewind ... s --offset t-0=5 --sums-count-twice`" in str(told.value)
    with pytest.raises(OptionError, match="TABLE_NAMED_TWICE"):
        store.move("s", rewind(at(9), at(0)), RowRequest(rebuild=("sums", long_name)))

    # Counted twice under each of two names, it is found and repaired as one table.
    store.move("s", rewind(at(9), at(5)), RowRequest(may_count_twice=True))
    add_up(make_sums(url, long_name), 5, 9)
    assert list_findings(url, capsys) == [("SUMS_COUNT_TWICE", "sums")]
    store.move("s", rewind(at(9), at(0)), RowRequest(rebuild=(long_name,)))
    add_up(make_sums(url, long_name), 0, 9)
    assert own_database.run("SELECT name, n FROM sums") == [("all", 36)]
    assert list_findings(url, capsys) == []


def test_tables_of_one_name_in_two_schemas_are_two_tables(
    postgres_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    database = postgres_database
    database.run("CREATE SCHEMA other")
    add_up(make_sums(database.url, "other.sums"), 0, 9)
    SinkOffsetStore(database.url).move("s", rewind(at(9), at(0)), RowRequest(written=frozenset({"sums"})))
    add_up(make_sums(database.url), 0, 9)
    assert database.run("SELECT n FROM sums") == database.run("SELECT n FROM other.sums") == [(36,)]
    assert list_findings(database.url, capsys) == []


def test_a_table_left_out_of_a_seek_is_not_doubled_when_it_comes_back(own_database: OwnDatabase) -> None:
    url = own_database.url
    sums = make_sums(url)
    add_up(sums, 0, 9)
    store = SinkOffsetStore(url)
    store.move("s", rewind(at(9), at(5), "seek"), RowRequest(written=frozenset({"numbers"})))
    with closing(make_sink(url).open("s")) as writer:  # this one has no sums
        writer.write(make_numbers(at(5), at(7)), at(5), at(7))
        with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*t-0 \[7, 9\)") as told:
            sums.open("s")
        writer.write(make_numbers(at(7), at(8)), at(7), at(8))  # not fenced by the one that was refused
    assert own_database.run("SELECT name, n FROM sums") == [("all", 36)]
    assert "--to-start --rebuild sums" in str(told.value)
    assert "--offset t-0=7 --sums-count-twice" in str(told.value)

    # Beyond what the sums already hold, they may continue.
    with closing(make_sink(url).open("s")) as writer:
        writer.write(make_numbers(at(8), at(9)), at(8), at(9))
    add_up(sums, 9, 11)
    assert own_database.run("SELECT name, n FROM sums") == [("all", 55)]


def test_who_said_that_sums_may_count_twice_is_not_asked_again(
    database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said once, it holds for each start until the stream has caught up, but for no later move."""
    sums, store = make_sums(database.url), SinkOffsetStore(database.url)
    add_up(sums, 0, 9)
    asked = ["offsets", "rewind", "--at", f"sink:{database.url}", "s", "--yes", "--watch", "0"]
    assert main([*asked, "--by", "4", "--sums-count-twice"]) == 0
    add_up(sums, 5, 6)
    add_up(sums, 6, 9)
    assert database.run("SELECT n FROM sums") == [(36 + 5 + 6 + 7 + 8,)]
    store.move("s", rewind(at(9), at(4), "seek"), RowRequest(written=frozenset({"other"})))
    with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*t-0 \[4, 9\)"):
        sums.open("s")
    # The error's advice is followed where the stream is.
    assert main([*asked, "--offset", "t-0=4", "--sums-count-twice"]) == 0
    assert "Nothing to change" not in capsys.readouterr().out
    add_up(sums, 4, 9)


def test_ordinary_starts_are_not_refused(database: OwnDatabase) -> None:
    """Only rereading records of the same log that the table holds is refused."""
    sums = make_sums(database.url)
    first, second = ({"t": bytes([n]) * 16} for n in (1, 2))

    def move(verb: str, before: int, then: Any, after: int, now: Any, rows: RowRequest | None = None) -> None:
        change = rewind(at(before, topic_ids=then), at(after, topic_ids=now), verb)
        SinkOffsetStore(database.url).move("s", change, rows or RowRequest())

    add_up(sums, 0, 9, topic_ids=first)
    # A recreated topic has other records at the same offsets.
    move("seek", 9, first, 0, second)
    add_up(sums, 0, 4, topic_ids=second)
    # So does a mirror that ended earlier.
    move("adopt", 4, second, 3, first)
    add_up(sums, 3, 8, topic_ids=first)
    # First ahead, then back to where it was.
    move("skip", 8, first, 20, first)
    move("rewind", 20, first, 8, first)
    add_up(sums, 8, 9, topic_ids=first)
    # Left out of a seek, after which the topic was recreated while the stream ran.
    move("seek", 9, first, 5, first, RowRequest(written=frozenset({"numbers"})))
    with closing(make_sink(database.url).open("s")) as writer:
        assert writer.position is not None
        end = at(1, topic_ids=second, starts={TopicPartition("t", 0): 0})
        writer.write(make_numbers(at(0), at(1)), writer.position, end)
    add_up(sums, 1, 2, topic_ids=second)


def test_a_regret_is_carried_out_where_the_stream_stands_already(
    database: OwnDatabase, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows to delete are something to change, even if no offset changes."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["x"] * 9)
    start, end = (StreamPosition({TopicPartition(name, 0): each}) for each in (0, 9))
    sink = SqlSink(database.url, Table("numbers", provenance=True), *make_sums(database.url).tables)
    create_tables(sink, {"numbers": NUMBERS, "sums": NAME_AND_N})

    def fill() -> None:
        with closing(sink.open("s")) as writer:
            rows = with_provenance(make_numbers(at(0), at(9)))
            rows = rows.set_column(2, "penstock_topic", pa.array([name] * 9))
            results = {"numbers": rows, "sums": pa.table({"name": ["all"], "n": [36]})}
            writer.write(results, writer.position or start, end)

    fill()
    asked = ["offsets", "rewind", "--at", f"sink:{database.url}", "s", "--to-start"]
    asked += ["--bootstrap-server", kafka.bootstrap]
    done = ["--yes", "--watch", "0"]
    assert main([*asked, "--sums-count-twice", *done]) == 0
    capsys.readouterr()
    rows = ["--rebuild", "sums", "--delete-from", "numbers"]
    assert main([*asked, *rows]) == 0
    dry = capsys.readouterr().out
    assert "Deletes 9 rows of numbers" in dry
    assert "Say --yes to do it" in dry
    assert main([*asked, *rows, *done]) == 0
    assert "Done:" in capsys.readouterr().out
    fill()
    assert database.run("SELECT name, n FROM sums") == [("all", 36)]
    assert len(read_numbers(database)) == 9
    assert list_findings(database.url, capsys) == []
    # A log that was truncated cannot fill a table that holds more than is left of the log.
    with closing(sink.open("s")) as writer:
        writer.write({"sums": pa.table({"name": ["all"], "n": [9 + 10]})}, end, replace_offset(end, 11))
    assert main([*asked, "--rebuild", "sums", "--rebuild", "numbers", *done]) == 1
    printed = capsys.readouterr().err
    assert "[REBUILD_INCOMPLETE]" in printed
    assert f"the log of {name}-0 ends at 9, and the table holds records up to 11" in printed
    assert database.run("SELECT name, n FROM sums") == [("all", 55)]


def replace_offset(position: StreamPosition, offset: int) -> StreamPosition:
    return StreamPosition(dict.fromkeys(position.offsets, offset))


def test_a_table_that_was_mended_by_filling_it_again_is_accused_no_more(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row that was lost by hand goes with the rest and comes back; one that is not read again does not."""
    url, lost = own_database.url, {"ROWS_MISSING", "DIGEST_DIFFERS"}
    sink, store = make_sink(url, provenance=True), SinkOffsetStore(url)
    with closing(sink.open("s")) as writer:
        for start, until in ((0, 3), (3, 5), (5, 9)):
            writer.write(with_provenance(make_numbers(at(start), at(until))), at(start), at(until))

    def fill(start: int) -> None:
        with closing(sink.open("s")) as writer:
            writer.write(with_provenance(make_numbers(at(start), at(9))), at(start), at(9))

    def find() -> set[str]:
        return {condition for condition, _ in list_findings(url, capsys)}

    for _ in range(2):  # rows that are already deleted are not deleted again
        own_database.run("DELETE FROM numbers WHERE number = 7")
        assert find() == lost
        told = store.move("s", rewind(at(9), at(4)), RowRequest(delete_from=("numbers",)))
        assert (told.deleted, find()) == ({"numbers": 4}, set())
        fill(4)
        assert find() == set()
    own_database.run("DELETE FROM numbers WHERE number = 1")
    store.move("s", rewind(at(9), at(4)), RowRequest(delete_from=("numbers",)))
    fill(4)
    assert find() == lost
    told = store.move("s", rewind(at(9), at(0)), RowRequest(rebuild=("numbers",)))
    assert (told.deleted, find()) == ({"numbers": 8}, set())
    fill(0)
    assert find() == set()


def test_a_table_that_was_appended_to_and_then_replaced_never_becomes_one_of_sums(
    database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither mode adds to a row: not before its history is merged, and not after."""
    upserted = make_sums(database.url, "latest", mode="upsert", add=(), provenance=True)
    appended = SqlSink(database.url, Table("latest", provenance=True))
    with closing(appended.open("s")) as writer:
        for n in range(2):
            writer.write(make_latest(n), at(n), at(n + 1))
    with closing(upserted.open("s")) as writer:
        for n in range(2, 4):
            writer.write(make_latest(n), at(n), at(n + 1))
    store = SinkOffsetStore(database.url)
    for _ in range(2):
        told = store.preview("s", rewind(at(4), at(1)), RowRequest(delete_from=("latest",)))
        assert told.deleted == {"latest": 3}
        store.preview("s", rewind(at(4), at(1)))
        assert list_findings(database.url, capsys) == []
        Database(parse_place(database.url)).run(lambda each: merge_history(each, "s", 0), writes=True)


def make_latest(n: int) -> pa.Table:
    row = {"name": f"{n}", "n": n, "penstock_topic": "t", "penstock_partition": 0, "penstock_offset": n}
    return pa.Table.from_pylist([row])
