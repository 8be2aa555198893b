"""Failures between a writer and a real database: every row is there once, or there is an error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.options.storage_addresses import Place
from penstock.core.sinks.sql_commit_protocol import Begin, Commit, InsertStages, LockWriter, Step
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections import database_outages, database_timeouts, sql_connections, sql_sessions
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink import task_staging
from penstock.stores.sql.sink.sink_writer import SqlWriter
from penstock.stores.sql.sink.staging_tables import Staging, ensure_staging
from penstock.testing.proxy import FaultProxy
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import NUMBERS, at, lead_through, make_numbers, make_sink, open_watched, read_numbers
from tests.support.waiting import wait_until

FIRST, SECOND, THIRD = at(0, 0), at(5, 3), at(9, 3)


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy() as proxy:
        yield proxy


# --- two writers ------------------------------------------------------------------------------------------


def test_the_older_of_two_writers_is_fenced_in_the_transaction_that_would_publish(
    own_database: OwnDatabase,
) -> None:
    """T39, C13: the second writer has only started, which is enough."""
    sink = make_sink(own_database.url)
    with closing(sink.open("s")) as older:
        older.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        with closing(sink.open("s")) as newer:
            with pytest.raises(SinkError, match="WRITER_FENCED") as caught:
                older.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
            assert not caught.value.retriable
            assert "Another writer has taken over" in str(caught.value)
            assert newer.position == SECOND
            newer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
        with pytest.raises(SinkError, match="WRITER_FENCED"):
            older.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert read_numbers(own_database) == [(0, n) for n in range(9)] + [(1, n) for n in range(3)]


def test_streams_of_one_table_do_not_disturb_each_other(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url)
    with closing(sink.open("one")) as one, closing(sink.open("two")) as two:
        one.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert two.position is None
        two.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert one.position == two.position == SECOND
    assert len(read_numbers(own_database)) == 16


def test_a_ledger_that_somebody_moved_refuses_the_batch(own_database: OwnDatabase) -> None:
    with closing(make_sink(own_database.url).open("s")) as writer:
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        own_database.run("UPDATE penstock_sink_positions SET next_offset = 7 WHERE partition_id = 0")
        with pytest.raises(OffsetStoreError, match=r"LEDGER_MOVED.*t-0.*begins at 5.*stands at 7"):
            writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert len(read_numbers(own_database)) == 8


@pytest.mark.parametrize(
    "restore",
    [
        "UPDATE penstock_sink_positions SET next_offset = 2 WHERE partition_id = 0",
        "DELETE FROM penstock_sink_positions",
        "UPDATE penstock_sink_writers SET epoch = 0",
        "DELETE FROM penstock_sink_writers",
    ],
)
def test_a_ledger_that_went_back_is_a_condition_of_its_own(own_database: OwnDatabase, restore: str) -> None:
    """A backup was restored, or a replica that lagged behind has taken over."""
    with closing(make_sink(own_database.url).open("s")) as writer:
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        own_database.run(restore)
        with pytest.raises(OffsetStoreError, match="LEDGER_WENT_BACK"):
            writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert len(read_numbers(own_database)) == 8


def test_a_ledger_of_a_topic_that_was_recreated_refuses_the_old_stream(own_database: OwnDatabase) -> None:
    old, new = ({"topic_ids": {"t": each * 16}} for each in (b"\1", b"\2"))
    with closing(make_sink(own_database.url).open("s")) as writer:
        writer.write({}, at(0, **new), at(5, **new))
        with pytest.raises(OffsetStoreError, match="LEDGER_OF_ANOTHER_TOPIC"):
            writer.write({}, at(5, **old), at(6, **old))
        writer.write({}, at(5, **new), at(2, **old, starts=at(0).offsets))  # stepped over on purpose


# --- locks ------------------------------------------------------------------------------------------------


def test_a_lock_that_is_not_given_up_fails_the_batch_and_it_can_be_repeated(
    own_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_timeouts, "LOCK_TIMEOUT_S", 1)
    with closing(make_sink(own_database.url).open("s")) as writer:
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        writer.close()  # the next connection has the short limit
        holder = own_database.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN" if "sqlite" not in own_database.url else "BEGIN IMMEDIATE")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'me'")
        with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_BUSY") as caught:
            writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
        assert caught.value.retriable
        cursor.execute("ROLLBACK")
        holder.close()
        writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert len(read_numbers(own_database)) == 12


def test_a_lock_wait_in_the_middle_leaves_nothing_behind(
    server_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL undoes only one statement: rows that went in before would be committed with what follows."""
    monkeypatch.setattr(database_timeouts, "LOCK_TIMEOUT_S", 1)
    sink = SqlSink(server_database.url, Table("numbers"), Table("totals", mode="upsert", key="number"))
    create_tables(sink, {"numbers": NUMBERS, "totals": NUMBERS})
    rows = make_numbers(FIRST, SECOND).slice(0, 5)
    with closing(sink.open("s")) as writer, closing(server_database.connect()) as holder:
        writer.write({"totals": rows}, at(0), at(1))
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        cursor.execute("UPDATE totals SET partition_id = 9 WHERE number = 3")
        with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_BUSY"):
            writer.write({"numbers": rows, "totals": rows}, at(1), at(2))
        cursor.execute("ROLLBACK")
        assert read_numbers(server_database) == []
        writer.write({"numbers": rows, "totals": rows}, at(1), at(2))
    assert len(read_numbers(server_database)) == 5


def test_a_writer_that_stands_still_in_its_transaction_is_ended_by_the_server(
    server_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T39: it holds the stream's row, and nobody could take over until it is killed."""
    monkeypatch.setattr("penstock.stores.sql.connections.database_timeouts.IDLE_TIMEOUT_S", 1)
    sink = make_sink(server_database.url)
    successors: list[SqlWriter] = []

    def stand_still(step: Step) -> None:
        if isinstance(step, InsertStages) and not successors:
            successors.append(sink.open("s"))  # waits for the lock for as long as the first writer has it

    with closing(open_watched(sink, stand_still)) as writer:
        with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_UNREACHABLE") as caught:
            writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert caught.value.retriable, "had nobody taken over, the batch would only have to be done again"
        with pytest.raises(SinkError, match="WRITER_FENCED"):
            writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        with closing(successors[0]) as successor:
            successor.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
    assert len(read_numbers(server_database)) == 8


def test_a_connection_that_was_closed_between_batches_is_made_again(server_database: OwnDatabase) -> None:
    with closing(make_sink(server_database.url).open("s")) as writer:
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        if "postgres" in server_database.url:
            server_database.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        else:
            for (number,) in server_database.run(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() "
                "AND id <> CONNECTION_ID()"
            ):
                server_database.run(f"KILL {number}")
        writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert len(read_numbers(server_database)) == 12


# --- a COMMIT in doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_a_connection_lost_during_commit_is_settled_by_asking(
    server_database: OwnDatabase, proxy: FaultProxy, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T38, C15: the COMMIT never arrived; it arrived but the answer did not; it arrives while we ask."""
    make_sink(server_database.url)
    seen: list[str] = []

    def lose_first_commit(step: Step) -> None:
        seen.append(type(step).__name__)
        if isinstance(step, Commit) and seen.count("Commit") == 2:  # the first COMMIT belongs to taking over
            if when == "before":
                proxy.cut()
            elif when == "after":
                proxy.cut_before_answer()
            else:
                monkeypatch.setattr(database_timeouts, "ANSWER_TIMEOUT_S", 0.5)
                proxy.delay(1500, direction="requests")
        if isinstance(step, Begin) and seen.count("Commit") == 2:
            monkeypatch.undo()
            proxy.pass_on()

    sink = SqlSink(lead_through(proxy, server_database.url), Table("numbers"))
    with closing(open_watched(sink, lose_first_commit)) as writer:
        written = writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert written.rows == 8
        assert seen.count("Begin") == 3, seen
        assert seen.count("Commit") == (3 if when == "before" else 2), seen
        assert writer.position == SECOND
        writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert read_numbers(server_database) == [(0, n) for n in range(9)] + [(1, n) for n in range(3)]


@pytest.mark.parametrize("was_done", [True, False])
def test_a_commit_that_nobody_could_be_asked_about_is_settled_at_the_next_write(
    server_database: OwnDatabase, proxy: FaultProxy, was_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T38: it is neither written again nor lost, because the batch is remembered by its token."""
    make_sink(server_database.url)
    monkeypatch.setattr("penstock.stores.sql.connections.database_outages.RECONNECT_TIMEOUT_S", 0.5)
    seen: list[str] = []

    def lose_all(step: Step) -> None:
        seen.append(type(step).__name__)
        if isinstance(step, Commit) and seen.count("Commit") == 2:
            proxy.refuse()
            if was_done:
                proxy.cut_before_answer()
            else:
                proxy.cut()

    sink = SqlSink(lead_through(proxy, server_database.url), Table("numbers"))
    with closing(open_watched(sink, lose_all)) as writer:
        with pytest.raises(SinkError, match="COMMIT_IN_DOUBT") as caught:
            writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert caught.value.retriable
        proxy.accept()
        assert writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND).was_repeated == was_done
        writer.write(make_numbers(SECOND, THIRD), SECOND, THIRD)
    assert read_numbers(server_database) == [(0, n) for n in range(9)] + [(1, n) for n in range(3)]


@pytest.mark.parametrize("was_done", [True, False])
def test_whoever_asks_before_working_again_is_told_of_a_batch_in_doubt_also_one_without_records(
    server_database: OwnDatabase, proxy: FaultProxy, was_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T38: a batch without records ends where it begins, so offsets do not show whether it is there."""
    make_sink(server_database.url)
    monkeypatch.setattr("penstock.stores.sql.connections.database_outages.RECONNECT_TIMEOUT_S", 0.5)
    commits: list[Step] = []

    def lose_second(step: Step) -> None:
        commits.extend([step] if isinstance(step, Commit) else [])
        if isinstance(step, Commit) and len(commits) == 3:  # the first COMMIT belongs to taking over
            proxy.refuse()
            if was_done:
                proxy.cut_before_answer()
            else:
                proxy.cut()

    rows = make_numbers(FIRST, SECOND)
    sink = SqlSink(lead_through(proxy, server_database.url), Table("numbers"))
    with closing(open_watched(sink, lose_second)) as writer:
        assert not writer.is_written(FIRST, SECOND)
        writer.write(rows, FIRST, SECOND)
        with pytest.raises(SinkError, match="COMMIT_IN_DOUBT"):
            writer.write(rows, SECOND, SECOND)
        with pytest.raises(SinkError, match="COMMIT_IN_DOUBT"):
            writer.is_written(SECOND, SECOND)
        proxy.accept()
        assert writer.is_written(SECOND, SECOND) == was_done
        assert not writer.is_written(SECOND, SECOND), "the next one that is without records is another batch"
        if not was_done:
            writer.write(rows, SECOND, SECOND)
    assert len(read_numbers(server_database)) == 16


@pytest.mark.parametrize("where", [LockWriter, InsertStages])
def test_a_connection_lost_before_commit_fails_the_batch_and_it_can_be_repeated(
    server_database: OwnDatabase, proxy: FaultProxy, where: type[Step]
) -> None:
    make_sink(server_database.url)
    faults = []

    def cut_once(step: Step) -> None:
        if isinstance(step, where) and len(faults) == (0 if where is InsertStages else 1):
            proxy.cut()
        if isinstance(step, where):
            faults.append(step)

    sink = SqlSink(lead_through(proxy, server_database.url), Table("numbers"))
    with closing(open_watched(sink, cut_once)) as writer:
        with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_UNREACHABLE") as caught:
            writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert caught.value.retriable
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
    assert len(read_numbers(server_database)) == 8


# --- refused at the start ---------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_refused_when_the_sink_is_opened(own_database: OwnDatabase) -> None:
    with pytest.raises(SinkError, match=r"TABLE_NOT_FOUND.*create_tables"):
        SqlSink(own_database.url, Table("numbers")).open("s")
    sink = make_sink(own_database.url)
    with pytest.raises(SinkError, match=r"COLUMN_NOT_FOUND.*nombre"):
        SqlSink(sink.place, Table("numbers", mode="upsert", key="nombre")).open("s")
    with pytest.raises(SinkError, match="KEY_NOT_UNIQUE"):
        SqlSink(sink.place, Table("numbers", mode="upsert", key="number")).open("s")
    own_database.run("CREATE UNIQUE INDEX by_number ON numbers (number)")
    with pytest.raises(SinkError, match="KEY_MAY_BE_NULL"):
        SqlSink(sink.place, Table("numbers", mode="upsert", key="number")).open("s")
    own_database.run("CREATE VIEW shown AS SELECT number FROM numbers")
    with pytest.raises(SinkError, match="TABLE_NOT_TRANSACTIONAL"):
        SqlSink(sink.place, Table("shown")).open("s")


def test_a_table_that_does_not_roll_back_is_refused(server_database: OwnDatabase) -> None:
    """T40: a results table in an engine without transactions, or a table that a crash empties."""
    sink = make_sink(server_database.url)
    is_postgres = "postgres" in server_database.url
    for change in ("SET UNLOGGED", "SET LOGGED") if is_postgres else ("ENGINE=MyISAM", "ENGINE=InnoDB"):
        server_database.run(f"ALTER TABLE numbers {change}")
        if change in ("SET UNLOGGED", "ENGINE=MyISAM"):
            with pytest.raises(SinkError, match="TABLE_NOT_TRANSACTIONAL"):
                sink.open("s")
    sink.open("s").close()


def test_a_ledger_that_does_not_roll_back_is_refused(mariadb_database: OwnDatabase) -> None:
    """T40: as after a restore into another engine. The row that was to be deleted is removed."""
    sink = make_sink(mariadb_database.url)
    sink.open("s").close()
    mariadb_database.run("ALTER TABLE penstock_sink_writers ENGINE=Aria TRANSACTIONAL=0")
    with pytest.raises(SinkError, match="ROLLBACK_NOT_KEPT"):
        sink.open("s")
    assert mariadb_database.run("SELECT stream FROM penstock_sink_writers") == [("s",)]


def test_a_way_to_the_database_that_commits_each_statement_is_refused(
    own_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T40: this is what a pooler does in its statement mode; here the driver does it."""
    sink = make_sink(own_database.url)
    connect = sql_connections.connect

    def connect_committing(place: Place, *, writes: bool) -> Any:
        connection = connect(place, writes=writes)
        connection.commit()
        if place.dialect == "postgresql":
            connection.autocommit = True
        elif place.dialect == "mysql":
            connection.autocommit(True)
        return connection

    monkeypatch.setattr(sql_sessions, "connect", connect_committing)
    with pytest.raises(SinkError, match=r"ROLLBACK_NOT_KEPT.*pooler"):
        sink.open("s")


def test_a_writer_that_was_paused_too_long_loses_its_session_and_may_try_again(
    server_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T39: the server ends an idle transaction so that others can continue; here nobody else came."""
    monkeypatch.setattr(database_timeouts, "IDLE_TIMEOUT_S", 1)
    others = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        if "postgres" in server_database.url
        else "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> "
        "CONNECTION_ID()"
    )
    pauses = [True]

    def pause(step: Step) -> None:
        if isinstance(step, InsertStages) and pauses.pop():
            wait_until(lambda: server_database.run(others) == [(0,)], "the server has ended the session", 30)

    with closing(open_watched(make_sink(server_database.url), pause)) as writer:
        with pytest.raises(SinkError, match="PUBLISH_FAILED") as caught:
            writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
        assert caught.value.retriable
        pauses.append(False)
        writer.write(make_numbers(FIRST, SECOND), FIRST, SECOND)
    assert len(read_numbers(server_database)) == 8


def test_mysql_cannot_replace_rows_by_one_of_two_keys(mariadb_database: OwnDatabase) -> None:
    mariadb_database.run("CREATE TABLE two (a INTEGER PRIMARY KEY, b INTEGER NOT NULL UNIQUE)")
    with pytest.raises(SinkError, match=r"KEY_NOT_ALONE.*\(b\)"):
        SqlSink(mariadb_database.url, Table("two", mode="upsert", key="a")).open("s")


def test_letters_that_the_table_takes_for_one_are_one_key(mariadb_database: OwnDatabase) -> None:
    """The table's collation decides: `a` and `A` are two keys in one table and the same key in another."""
    mariadb_database.run(
        "CREATE TABLE words (word VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n BIGINT)"
    )
    with (
        closing(SqlSink(mariadb_database.url, Table("words", mode="upsert", key="word")).open("s")) as writer,
        pytest.raises(SinkError, match="DUPLICATE_KEY"),
    ):
        writer.write(pa.table({"word": ["a", "A"], "n": [1, 2]}), at(0), at(2))


def test_a_task_waits_for_a_database_that_goes_away_before_it_loads_its_rows(
    server_database: OwnDatabase, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds without ADBC: the driver has reached the database, so a fail-over is waited out."""
    make_sink(server_database.url)
    sink = SqlSink(lead_through(proxy, server_database.url), Table("numbers"))
    rows, pauses = make_numbers(FIRST, SECOND), list[float]()

    def go_away(session: Session, staging: Staging) -> None:
        ensure_staging(session, staging)
        proxy.refuse()  # this connection continues to its commit

    def come_back(seconds: float) -> None:
        pauses.append(seconds)
        proxy.accept()

    monkeypatch.setattr(task_staging, "has_adbc", lambda place: False)
    monkeypatch.setattr(task_staging, "ensure_staging", go_away)
    with closing(sink.open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        monkeypatch.setattr(
            database_outages, "time", SimpleNamespace(monotonic=time.monotonic, sleep=come_back)
        )
        report = task_staging.fill_stage(staging, 1, rows.to_batches())
        assert (report.rows, len(pauses)) == (8, 1)
        writer.write_staged([report], FIRST, SECOND)
        writer.drop_staging([staging])
    assert len(read_numbers(server_database)) == 8
