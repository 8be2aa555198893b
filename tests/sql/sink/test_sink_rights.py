"""A sink whose user has few rights: only on rows, and on separate tables where tasks stage rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from penstock.core.errors import SinkError
from penstock.core.offsets.offset_store_contract import Change
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.ledger.publish_history import merge_history
from penstock.stores.sql.sink.sql_sink import Mode
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.sql.databases import OwnDatabase
from tests.sql.roles import Role, make_role
from tests.sql.sinks import NUMBERS, at, make_numbers

TOTALS = pa.schema([("number", pa.int64()), ("times", pa.int64())])


@pytest.fixture
def role(server_database: OwnDatabase) -> Iterator[Role]:
    """Create a user without rights; the owner has created the tables."""
    with make_role(server_database) as role:
        yield role


def make_sink(url: str) -> SqlSink:
    return SqlSink(url, Table("numbers"), Table("totals", mode="merge", key="number", add="times"))


def create(database: OwnDatabase) -> None:
    create_tables(make_sink(database.url), {"numbers": NUMBERS, "totals": TOTALS})


def test_rights_on_rows_are_enough_where_rows_go_through_the_driver(
    server_database: OwnDatabase, role: Role
) -> None:
    """S31: the owner has created tables and ledger; the sink's user creates no table that stays."""
    create(server_database)
    role.grant_rows(numbers="append", totals="merge")
    sums = pa.table({"number": [1, 2], "times": [3, 4]}, TOTALS)
    with closing(make_sink(role.url).open("s")) as writer:
        for before, end in ((at(0), at(5)), (at(5), at(9))):
            writer.write({"numbers": make_numbers(before, end), "totals": sums}, before, end)
        Database(writer.sink.place).run(lambda session: merge_history(session, "s", keep=1), writes=True)
    with closing(make_sink(role.url).open("s")) as writer:
        assert writer.position == at(9)
        writer.write({"numbers": make_numbers(at(0), at(1))}, at(9), at(9, 1))
        writer.write({}, at(9, 1), at(9))  # a partition that is no longer read
    assert server_database.run("SELECT COUNT(*) FROM numbers") == [(10,)]
    assert sorted(server_database.run("SELECT number, times FROM totals")) == [(1, 6), (2, 8)]


@pytest.mark.parametrize("mode", ["upsert", "state"])
def test_rights_on_rows_are_enough_for_tables_whose_rows_change(
    server_database: OwnDatabase, role: Role, mode: Mode
) -> None:
    """S31: rows are inserted, changed and, in a state table, read and removed."""
    tables = {"totals": TOTALS}
    create_tables(SqlSink(server_database.url, Table("totals", mode=mode, key=("number",))), tables)
    role.grant_rows(totals=mode)
    expected = [(1, 3), (2, 5)]
    with closing(SqlSink(role.url, Table("totals", mode=mode, key=("number",))).open("s")) as writer:
        writer.write(pa.table({"number": [1, 2], "times": [3, 4]}, TOTALS), at(0), at(5))
        writer.write(pa.table({"number": [2], "times": [5]}, TOTALS), at(5), at(9))
        if mode == "state":
            gone = pa.table({"number": [1], "times": [0], "penstock_deleted": [True]})
            writer.write(gone, at(9), at(12))
            expected = [(2, 5)]
            assert writer.read_state("totals").to_pylist() == [{"number": 2, "times": 5}]
    assert sorted(server_database.run("SELECT number, times FROM totals")) == expected


def test_staging_needs_the_right_to_make_tables_and_says_so(server_database: OwnDatabase, role: Role) -> None:
    """S31: the error names the missing right; with it, the user creates and drops only staging tables."""
    create(server_database)
    role.grant_rows(numbers="append", totals="merge")
    rows = make_numbers(at(0), at(5))
    with closing(make_sink(role.url).open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        with pytest.raises(SinkError, match=r"STAGING_REFUSED.*may not create tables.*strategy=\"driver\""):
            fill_stage(staging, 1, rows.to_batches())
    role.grant_staging()  # a MariaDB connection keeps the rights that it started with
    with closing(make_sink(role.url).open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        reports = [fill_stage(staging, 1, rows.to_batches())]
        assert writer.write_staged(reports, at(0), at(5)).rows == 5
        writer.drop_staging([staging])
    found = server_database.run("SELECT table_name FROM information_schema.tables")
    assert [name for (name,) in found if name.startswith("penstock_stage_")] == []


def test_a_user_without_rights_is_told_what_the_owner_must_do(
    server_database: OwnDatabase, role: Role
) -> None:
    """S31: first there is no ledger, and later one that may not be read."""
    for _ in range(2):
        with pytest.raises(SinkError, match=r"SINK_RIGHTS_MISSING.*create_tables"):
            make_sink(role.url).open("s")
        create(server_database)


def test_a_stream_that_its_owner_has_moved_starts_with_rights_on_rows(
    server_database: OwnDatabase, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    """The moves are in a table that the sink's user may not be able to see."""
    create(server_database)
    role.grant_rows(numbers="append", totals="merge")
    with closing(make_sink(role.url).open("s")) as writer:
        writer.write({"numbers": make_numbers(at(0), at(5))}, at(0), at(5))
    SinkOffsetStore(server_database.url).change("s", Change(1, "ann", "skip", at(5), at(6)))
    with closing(make_sink(role.url).open("s")) as writer:
        assert writer.position == at(6)
    assert "Could not check whether sums" in caplog.text
