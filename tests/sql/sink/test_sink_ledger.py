"""What the ledger of a sink keeps: versions, history, state as of its offsets, and what is swept."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.model import OffsetRange
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.ledger.ledger_tables import LEDGER_VERSION
from penstock.stores.sql.ledger.publish_history import History, merge_history, select_history
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.sql.databases import OwnDatabase, make_file_database
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers

GOLDEN = Path(__file__).parents[2] / "golden"


def read_history(place: Place, stream: str) -> History:
    return Database(place).run(lambda session: select_history(session, stream))


def test_a_ledger_of_the_first_version_is_read(tmp_path: Path) -> None:
    assert LEDGER_VERSION == 1, "a new version needs a golden file of its own, beside this one"
    database = make_file_database(tmp_path)
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript((GOLDEN / "sink_ledger_v1.sql").read_text())
    with closing(SqlSink(database.url, Table("numbers")).open("visits")) as writer:
        position = writer.position
        assert position is not None
        assert position.offsets == at(7).offsets
        assert position.topic_ids == {"t": b"\1" * 16}
        assert position.leader_epochs == {next(iter(at(7).offsets)): 3}
        assert {str(each): offset for each, offset in position.gone.items()} == {"t-1": 4}
        assert (writer.epoch, writer.last_batch) == (3, "query/12")
    assert [each.rows for each in read_history(writer.sink.place, "visits").batches] == [11]
    (tmp_path / "new").mkdir()
    new = make_file_database(tmp_path / "new")
    make_sink(new.url).open("visits").close()
    layout = "SELECT sql FROM sqlite_master WHERE name LIKE 'penstock_sink_%' ORDER BY name"
    assert database.run(layout) == new.run(layout)


def test_a_ledger_that_is_too_new_is_refused(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url)
    sink.open("s").close()
    own_database.run("UPDATE penstock_meta SET version = 2 WHERE component = 'sink'")
    with pytest.raises(OffsetStoreError, match="SINK_LEDGER_TOO_NEW"):
        sink.open("s")


def test_the_history_tells_what_each_batch_was_and_old_ones_are_merged(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url)
    one = min(at(0, 0).offsets)
    positions = [at(0, 0), at(5, 0), at(9, 4), at(20, 4, starts={one: 15}), at(25, 6)]
    with closing(sink.open("s")) as writer:
        for before, end in pairwise(positions):
            writer.write(make_numbers(before, end).slice(0, 2), before, end, name=f"q/{end.offsets[one]}")
    history = read_history(sink.place, "s")
    assert [(each.rows, each.batches, each.name) for each in history.batches] == [
        (2, 1, f"q/{number}") for number in (5, 9, 20, 25)
    ]
    assert [each.range for each in history.ranges if each.range.partition == 0] == [
        OffsetRange("t", 0, *pair) for pair in ((0, 5), (5, 9), (15, 20), (20, 25))
    ]
    for _ in range(2):  # merging again changes nothing
        Database(sink.place).run(lambda session: merge_history(session, "s", keep=1), writes=True)
        history = read_history(sink.place, "s")
        assert [(each.rows, each.batches, each.name) for each in history.batches] == [
            (6, 3, "q/20"),
            (2, 1, "q/25"),
        ]
        assert [each.range for each in history.ranges] == [
            OffsetRange("t", *numbers)
            for numbers in ((0, 0, 9), (0, 15, 20), (1, 0, 4), (0, 20, 25), (1, 4, 6))
        ]
    assert {each.generation for each in history.ranges} == {1}


@pytest.mark.parametrize("driver", ["adbc", "its own"])
def test_a_state_table_is_read_as_of_the_ledger(
    own_database: OwnDatabase, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver == "its own":
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    schema = pa.schema(
        [("page", pa.string()), ("hits", pa.int64()), ("open", pa.bool_()), ("x", pa.float64())]
    )
    sink = SqlSink(own_database.url, Table("visits", mode="state", key="page"))
    create_tables(sink, {"visits": schema})
    with closing(sink.open("s")) as writer:
        assert writer.read_state("visits").num_rows == 0
        rows = pa.table(
            {"page": ["a", "b"], "hits": [1, None], "open": [True, None], "x": [0.5, 1.5]}, schema
        )
        writer.write(rows, at(0), at(2))
        found = writer.read_state("visits", ["page", "hits", "x"]).sort_by("page").to_pylist()
        assert found == [{"page": "a", "hits": 1, "x": 0.5}, {"page": "b", "hits": None, "x": 1.5}]
        state = writer.read_state("visits")
        assert [bool(each) for each in state.sort_by("page")["open"].to_pylist()] == [True, False]
        writer.write(state.cast(schema), at(2), at(3))  # what was read can be written
        with pytest.raises(SinkError, match="COLUMN_NOT_FOUND"):
            writer.read_state("visits", ["nobody"])


@pytest.mark.parametrize("driver", ["adbc", "copy"])
def test_only_stages_that_were_reported_are_published_and_all_are_swept(
    server_database: OwnDatabase, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8, G9: retries and speculation leave separate stages; the next writer sweeps those of a dead one."""
    if driver == "copy":
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    sink = make_sink(server_database.url)
    rows = make_numbers(at(0), at(10))
    with closing(sink.open("s")) as writer:
        left, staging = (writer.plan_staging({"numbers": rows.schema})["numbers"] for _ in range(2))
        fill_stage(left, 0, rows.to_batches())
        fill_stage(staging, 4, rows.to_batches())  # a slower copy of the task
        reports = [fill_stage(staging, 3, rows.to_batches())]
        assert writer.write_staged(reports, at(0), at(10)).rows == 10
        assert len(read_numbers(server_database)) == 10
        assert writer.write_staged(reports, at(0), at(10)).was_repeated
        wrong = [type(reports[0])(staging, 4, 9)]
        with pytest.raises(SinkError, match=r"STAGE_INCOMPLETE.*holds 10 rows.*wrote 9"):
            writer.write_staged(wrong, at(10), at(20))
    with closing(sink.open("other")) as writer, closing(sink.open("s")):
        found = server_database.run("SELECT table_name FROM information_schema.tables")
        assert [name for (name,) in found if name.startswith("penstock_stage_")] == []
    assert len(read_numbers(server_database)) == 10


def test_rows_that_a_trigger_leaves_out_fail_the_batch(postgres_database: OwnDatabase) -> None:
    sink = make_sink(postgres_database.url)
    postgres_database.run(
        "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.number = 3 THEN RETURN NULL; END IF; RETURN NEW; END $$"
    )
    postgres_database.run(
        "CREATE TRIGGER leave BEFORE INSERT ON numbers FOR EACH ROW EXECUTE FUNCTION leave_out()"
    )
    rows = make_numbers(at(0), at(10))
    with closing(sink.open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        reports = [fill_stage(staging, 1, rows.to_batches())]
        with pytest.raises(SinkError, match="ROWS_NOT_TAKEN"):
            writer.write_staged(reports, at(0), at(10))
        with pytest.raises(SinkError, match="ROWS_NOT_TAKEN"):
            writer.write(rows, at(0), at(10))
    assert read_numbers(postgres_database) == []


def test_rows_from_no_partition_are_refused(own_database: OwnDatabase) -> None:
    """Without an offset nothing would show a second attempt that the first one succeeded."""
    with closing(make_sink(own_database.url).open("s")) as writer:
        assert writer.write({}, at(), at()).rows == 0
        with pytest.raises(SinkError, match="BATCH_WITHOUT_OFFSETS"):
            writer.write(make_numbers(at(0), at(1)), at(), at())
