"""The audit of real tables: what is right passes, and each planted fault is found by the named evidence."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, RowRequest
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.loss_ledger import open_loss_ledger
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.audit.audit_facts import read_in_snapshot
from penstock.stores.sql.audit.provenance_digests import digest_rows, read_digests
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.ledger.publish_history import merge_history
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.sql.databases import OwnDatabase, make_file_database
from tests.sql.sinks import at, make_numbers, make_sink, with_provenance
from tests.support.kafka.topic_filling import delete_before, produce

POSITIONS = (at(0, 0), at(5, 4), at(9, 4), at(20, 11))


def fill(database: OwnDatabase, *positions: Any) -> SqlSink:
    sink = make_sink(database.url, provenance=True)
    with closing(sink.open("s")) as writer:
        for before, end in pairwise(positions or POSITIONS):
            writer.write(with_provenance(make_numbers(before, end)), before, end)
    return sink


def audit(database: OwnDatabase, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    ended = main(["audit", database.url, *more, "--json"])
    printed = capsys.readouterr()
    assert ended < 2, printed.err
    told: dict[str, Any] = json.loads(printed.out)
    assert ended == (1 if told["findings"] else 0)
    return told


def name(told: dict[str, Any]) -> set[str]:
    return {each["condition"] for each in told["findings"]}


FAULTS = {
    "DELETE FROM numbers WHERE number = 7": {"ROWS_MISSING", "DIGEST_DIFFERS"},
    "INSERT INTO numbers SELECT * FROM numbers WHERE number = 7 AND partition_id = 0": {
        "ROWS_TOO_MANY",
        "OFFSETS_TWICE",
        "DIGEST_DIFFERS",
    },
    "UPDATE numbers SET penstock_offset = 8 WHERE penstock_offset = 7 AND partition_id = 0": {
        "OFFSETS_TWICE",
        "DIGEST_DIFFERS",
    },
    "UPDATE numbers SET penstock_offset = 21 WHERE penstock_offset = 7 AND partition_id = 0": {
        "OFFSETS_OUTSIDE",
        "DIGEST_DIFFERS",
    },
    "INSERT INTO numbers VALUES (0, 1, 'u', 0, 1)": {"OFFSETS_OUTSIDE", "ROWS_TOO_MANY", "DIGEST_DIFFERS"},
    "INSERT INTO numbers (partition_id, number) VALUES (0, 1)": {"ROWS_TOO_MANY", "ROWS_WITHOUT_ORIGIN"},
    "DELETE FROM penstock_sink_ranges WHERE start_offset = 5": {"RANGE_MISSING", "OFFSETS_OUTSIDE"},
    "DELETE FROM penstock_sink_ranges WHERE start_offset = 0 AND partition_id = 0": {"OFFSETS_OUTSIDE"},
    "UPDATE penstock_sink_ranges SET start_offset = 4 WHERE start_offset = 5": {"RANGES_OVERLAP"},
    "UPDATE penstock_sink_positions SET next_offset = 19 WHERE partition_id = 0": {"POSITION_ELSEWHERE"},
    "DELETE FROM penstock_sink_batches WHERE row_count = 9": {"BOOKS_DISAGREE"},
    "DROP TABLE numbers": {"TABLE_GONE"},
}


def test_results_that_are_right_pass_and_the_evidence_is_named(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """G7: what the ledger promises is checked against the rows themselves, on each database."""
    sink = fill(own_database)
    told = audit(own_database, capsys)
    assert told["findings"] == []
    assert any(
        "31 rows, as published (evidence: row counts in the tasks' messages)" in each
        for each in told["checked"]
    )
    assert any("digests written at commit" in each for each in told["checked"])
    assert any("ranges abut from 0 to 20" in each for each in told["checked"])
    assert any("--re-read" in each for each in told["unchecked"])
    assert main(["audit", own_database.url, "s"]) == 0
    printed = capsys.readouterr().out
    assert "Ranges that abut prove little" in printed
    assert "Nothing found." in printed
    Database(sink.place).run(lambda session: merge_history(session, "s", keep=1), writes=True)
    assert audit(own_database, capsys)["findings"] == []
    own_database.run("DELETE FROM numbers WHERE number = 7 AND partition_id = 1")
    told = audit(own_database, capsys)
    assert name(told) == {"ROWS_MISSING", "DIGEST_DIFFERS"}
    (differs,) = (each for each in told["findings"] if each["condition"] == "DIGEST_DIFFERS")
    assert "Offsets [4, 11): 6 of 7 rows." in differs["what"]


def test_rows_of_a_batch_that_read_nothing_new_are_right(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream with state may publish what it has held back long after it was read."""
    sink = make_sink(own_database.url)
    with closing(sink.open("s")) as writer:
        rows = make_numbers(at(0, 0), at(5, 4))
        writer.write(rows.slice(0, 6), at(0, 0), at(5, 4))
        writer.write(rows.slice(6), at(5, 4), at(5, 4))
        writer.write(make_numbers(at(5, 4), at(9, 4)), at(5, 4), at(9, 4))
    assert audit(own_database, capsys)["findings"] == []
    Database(sink.place).run(lambda session: merge_history(session, "s", keep=1), writes=True)
    told = audit(own_database, capsys)
    assert told["findings"] == []
    assert any("ranges abut from 0 to 9" in each for each in told["checked"])


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G7: rows that were lost, doubled, changed or added, and ledgers that were changed."""
    database = make_file_database(tmp_path)
    fill(database)
    database.run(fault)
    assert name(audit(database, capsys, "s")) == FAULTS[fault]


def test_a_moved_stream_is_audited_by_generation(
    own_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that a rewind deleted are recorded, and rows that it left are known to be there twice."""
    sink = fill(own_database)
    end = POSITIONS[-1]
    store = SinkOffsetStore(own_database.url)
    store.move("s", Change(1, "ann", "rewind", end, at(7, 11)), RowRequest(delete_from=("numbers",)))
    assert audit(own_database, capsys)["findings"] == []
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(7, 11), end)), at(7, 11), end)
    told = audit(own_database, capsys)
    assert (told["findings"], told["notes"]) == ([], [])
    assert any("generation 2: 1 noted ranges abut from 7 to 20" in each for each in told["checked"])
    store.change("s", Change(2, "ann", "rewind", end, at(18, 11)))
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(18, 11), end)), at(18, 11), end)
    told = audit(own_database, capsys)
    assert told["findings"] == []
    assert (
        "2 rows of t-0 have an offset that another row has, too. They were published so" in told["notes"][0]
    )
    own_database.run("DELETE FROM penstock_sink_ranges WHERE generation = 2")
    (found,) = (each for each in audit(own_database, capsys)["findings"] if each["subject"] == "s t-0")
    assert (found["condition"], found["generation"]) == ("POSITION_ELSEWHERE", 2)


def test_records_that_were_skipped_by_hand_are_told_until_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The move was requested, so it is not a finding; that rows are missing must be known all the same."""
    database = make_file_database(tmp_path)
    sink = fill(database)
    end, further = POSITIONS[-1], at(50, 11)
    store = SinkOffsetStore(database.url)
    store.change("s", Change(1_000, "ann", "skip", end, further))
    told = audit(database, capsys)
    assert told["findings"] == []
    assert told["notes"] == [
        "s: moved ahead by hand (ann did `skip` at 1970-01-01 00:00:01 UTC), past t-0 [20, 50): never read, "
        "so no rows."
    ]
    assert main(["audit", database.url]) == 0
    assert "To know:\n  s: moved ahead by hand" in capsys.readouterr().out
    store.change("s", Change(2_000, "ann", "rewind", further, at(30, 11)))
    (note,) = audit(database, capsys)["notes"]
    assert "past t-0 [20, 30): never read" in note
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(30, 11), further)), at(30, 11), further)
    assert audit(database, capsys)["notes"] == [note]
    store.change("s", Change(3_000, "ann", "rewind", further, end))
    assert audit(database, capsys)["notes"] == []


def test_rows_that_a_rewind_deleted_and_a_skip_did_not_bring_back_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    sink = fill(database)
    end = POSITIONS[-1]
    store = SinkOffsetStore(database.url)
    store.move("s", Change(1, "ann", "rewind", end, at(7, 11)), RowRequest(delete_from=("numbers",)))
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(7, 11), at(9, 11))), at(7, 11), at(9, 11))
    store.change("s", Change(1_000, "bob", "skip", at(9, 11), at(25, 11)))
    told = audit(database, capsys)
    assert told["findings"] == []
    moved = "s: moved ahead by hand (bob did `skip` at 1970-01-01 00:00:01 UTC), past"
    assert told["notes"] == [
        f"{moved} t-0 [20, 25): never read, so no rows.",
        f"{moved} t-0 [9, 20): a rewind had deleted the rows of numbers, and they were not read again.",
    ]
    store.change("s", Change(2, "ann", "rewind", at(25, 11), at(9, 11)))
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(9, 11), at(25, 11))), at(9, 11), at(25, 11))
    assert (audit(database, capsys)["findings"], audit(database, capsys)["notes"]) == ([], [])
    store.change("s", Change(2, "ann", "rewind", at(25, 11), at(9, 11)))
    store.change("s", Change(2, "ann", "skip", at(9, 11), at(25, 11)))
    assert audit(database, capsys)["notes"] == [], "no row was deleted"


def test_a_loss_that_was_stepped_over_is_explained_by_the_loss_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    sink = make_sink(database.url, provenance=True)
    one = TopicPartition("t", 0)
    with closing(sink.open("s")) as writer:
        writer.write(with_provenance(make_numbers(at(0), at(5))), at(0), at(5))
        writer.write(with_provenance(make_numbers(at(9), at(12))), at(5), at(12, starts={one: 9}))
    assert name(audit(database, capsys)) == {"RANGE_MISSING"}
    open_loss_ledger(tmp_path / "losses.db").record([Loss("DATA_LOST", "t", 0, 5, 9)], seen_ms=1)
    told = audit(database, capsys, "--losses", str(tmp_path / "losses.db"))
    assert told["findings"] == []
    assert "[5, 9) was lost and stepped over" in told["notes"][0]


def test_tables_without_provenance_or_with_keys_are_said_to_be_unchecked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    sink = SqlSink(database.url, Table("plain"), Table("sums", mode="merge", key=("page",), add=("hits",)))
    create_tables(
        sink,
        {
            "plain": pa.schema([("x", pa.int64())]),
            "sums": pa.schema([("page", pa.string()), ("hits", pa.int64())]),
        },
    )
    with closing(sink.open("s")) as writer:
        results = {"plain": pa.table({"x": [1, 2]}), "sums": pa.table({"page": ["a"], "hits": [3]})}
        writer.write(results, at(0), at(3))
    database.run("CREATE TABLE other (x INTEGER)")
    told = audit(database, capsys, "--table", "other")
    assert told["findings"] == []
    assert sum("keeps no provenance" in each for each in told["unchecked"]) == 3
    assert any("its mode is merge" in each for each in told["unchecked"])
    assert any(each.startswith("other: its 0 rows against") for each in told["unchecked"])
    database.run("DELETE FROM plain WHERE x = 1")
    database.run("DELETE FROM sums")
    assert name(audit(database, capsys)) == {"ROWS_MISSING"}  # of the plain one


def test_what_cannot_be_looked_at_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = make_file_database(tmp_path)
    assert main(["audit", database.url]) == 2
    assert "[DATABASE_NOT_FOUND]" in capsys.readouterr().err
    fill(database)
    assert main(["audit", database.url, "--filters"]) == 2
    assert "[FILTERS_WITHOUT_RE_READ]" in capsys.readouterr().err
    assert main(["audit", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "say --filters" in printed
    assert "--set isolation.level=read_committed" in printed
    assert main(["audit", database.url, "nobody"]) == 2
    assert "[STREAM_NOT_FOUND]" in capsys.readouterr().err
    for stream in (["s"], []):
        assert main(["audit", database.url, *stream, "--table", "nosuch"]) == 2  # a usage error, no finding
        printed = capsys.readouterr().err
        assert "[TABLE_NOT_IN_LEDGER]" in printed
        assert "The books have: numbers." in printed
    database.run("DROP TABLE numbers")
    for more in ([], ["--table", "numbers"]):
        assert main(["audit", database.url, "s", *more]) == 1
        assert "[TABLE_GONE] numbers" in capsys.readouterr().out
    (tmp_path / "offsets").mkdir()
    assert main(["audit", f"{tmp_path}/offsets"]) == 2
    printed = capsys.readouterr().err
    assert "[NOT_A_SINK]" in printed
    assert "is a folder, and no file sink has written to it" in printed
    assert main(["offsets", "show", "--at", f"sink:{tmp_path}/offsets"]) == 1
    assert "is a folder, not a database file" in capsys.readouterr().err


def test_a_database_computes_the_digest_that_a_task_computes(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url, provenance=True)
    random = np.random.default_rng(7)
    offsets = np.concatenate([random.integers(0, 2**62, 500), random.integers(0, 2**33, 500), [0, 2**63 - 1]])
    rows = pa.table(
        {
            "partition_id": pa.array(np.zeros(offsets.size), pa.int32()),
            "number": pa.array(np.arange(offsets.size)),
            "penstock_topic": pa.array(random.choice(["t", "u"], offsets.size)),
            "penstock_partition": pa.array(random.integers(0, 3, offsets.size), pa.int32()),
            "penstock_offset": pa.array(offsets),
        }
    )
    with closing(sink.open("s")) as writer:
        writer.write(rows, at(0), at(1))
    found = Database(sink.place).run(lambda session: read_digests(session, "numbers"))
    assert {each: kept.digest for each, kept in found.items()} == digest_rows(rows)


def test_tasks_that_stage_rows_report_their_digests(
    server_database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = make_sink(server_database.url, provenance=True)
    rows = with_provenance(make_numbers(at(0, 0), at(10, 3)))
    with closing(sink.open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        reports = [
            fill_stage(staging, 1, rows.slice(0, 6).to_batches()),
            fill_stage(staging, 2, rows.slice(6).to_batches()),
        ]
        writer.write_staged(reports, at(0, 0), at(10, 3))
        writer.drop_staging([staging])
    told = audit(server_database, capsys)
    assert told["findings"] == []
    assert any("digests written at commit" in each for each in told["checked"])


def test_a_second_reading_of_the_log_names_what_is_missing_and_what_is_no_record(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """G7: the log itself is the evidence; what has aged out of it is reported as unchecked."""
    source = topic(1)
    produce(kafka.bootstrap, source, [str(number) for number in range(30)])
    delete_before(kafka.bootstrap, source, 4)
    database = make_file_database(tmp_path)
    sink = make_sink(database.url, provenance=True)

    def place(offset: int) -> StreamPosition:
        return StreamPosition({TopicPartition(source, 0): offset})

    with closing(sink.open("s")) as writer:
        rows = with_provenance(make_numbers(at(0), at(25)))
        rows = rows.set_column(2, "penstock_topic", pa.array([source] * 25))
        writer.write(rows, place(0), place(25))
    again = ("--re-read", "--bootstrap-server", kafka.bootstrap)
    told = audit(database, capsys, "s", *again)
    assert told["findings"] == []
    assert any("21 records of [4, 25) each have a row" in each for each in told["checked"])
    assert any("[0, 4) has aged out" in each for each in told["unchecked"])

    # The job itself left two records out and made one up, so ledger and digests agree with the rows.
    with closing(sink.open("s")) as writer:
        wrong = rows.slice(0, 4).set_column(4, "penstock_offset", pa.array([26, 28, 29, 31]))
        writer.write(wrong, place(25), place(32))
    told = audit(database, capsys, "s", *again)
    assert {each["condition"]: each["what"].partition(".")[0] for each in told["findings"]} == {
        "RECORDS_WITHOUT_ROW": "2 records have no row: 25, 27",
        "LOG_ENDS_BEFORE": "[30, 32) was read once, and the log ends before it",
    }
    assert name(audit(database, capsys, "s", *again, "--filters")) == {"LOG_ENDS_BEFORE"}
    database.run("UPDATE numbers SET penstock_topic = 'gone'")
    database.run("UPDATE penstock_sink_ranges SET topic = 'gone'")
    told = audit(database, capsys, "s", *again)
    assert any("no such partition any more" in each for each in told["unchecked"])


def test_records_that_are_not_read_again_yet_are_no_finding(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their rows were deleted by a rewind, and the stream has not caught up."""
    source = topic(1)
    produce(kafka.bootstrap, source, [str(number) for number in range(30)])
    database = make_file_database(tmp_path)
    sink = make_sink(database.url, provenance=True)

    def place(offset: int) -> StreamPosition:
        return StreamPosition({TopicPartition(source, 0): offset})

    def write(start: int, until: int) -> None:
        rows = with_provenance(make_numbers(at(start), at(until)))
        rows = rows.set_column(2, "penstock_topic", pa.array([source] * rows.num_rows))
        with closing(sink.open("s")) as writer:
            writer.write(rows, place(start), place(until))

    again = ("s", "--re-read", "--bootstrap-server", kafka.bootstrap)
    store = SinkOffsetStore(database.url)
    write(0, 25)
    store.move("s", Change(1, "ann", "rewind", place(25), place(15)), RowRequest(delete_from=("numbers",)))
    told = audit(database, capsys, *again)
    assert told["findings"] == []
    assert any(
        "[15, 25) has not been read again yet: 10 records have no row" in each for each in told["notes"]
    )
    assert any("15 records of [0, 15) each have a row" in each for each in told["checked"])
    write(15, 20)
    told = audit(database, capsys, *again)
    assert told["findings"] == []
    assert any(
        "[20, 25) has not been read again yet: 5 records have no row" in each for each in told["notes"]
    )
    database.run("DELETE FROM numbers WHERE number = 17")
    (found,) = (
        each for each in audit(database, capsys, *again)["findings"] if "WITHOUT" in each["condition"]
    )
    assert "1 records have no row: 17." in found["what"]


def test_an_audit_sees_one_moment_while_the_stream_goes_on(server_database: OwnDatabase) -> None:
    """Otherwise a batch between two of the audit's queries would look like a fault."""
    sink = fill(server_database)
    end, further = POSITIONS[-1], at(25, 11)

    def look(session: Session) -> list[int]:
        question = "SELECT COUNT(*) FROM numbers"
        seen = [int(session.execute(question)[0][0])]
        with closing(sink.open("s")) as writer:
            writer.write(with_provenance(make_numbers(end, further)), end, further)
        return [*seen, int(session.execute(question)[0][0])]

    assert read_in_snapshot(sink.place, look) == [31, 31]
    assert read_in_snapshot(sink.place, lambda session: session.execute("SELECT COUNT(*) FROM numbers")) == [
        (36,)
    ]
