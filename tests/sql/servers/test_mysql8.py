"""A real MySQL 8, where it differs from MariaDB: error numbers, the login, read-only modes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.core.errors import SinkError
from penstock.stores.sql.ledger.blocking_sessions import find_blockers
from penstock.stores.sql.ledger.writer_rows import look_at_writer
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.sql.databases import OwnDatabase, make_database
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers
from tests.support.servers.mysql8 import LocalMySql
from tests.support.waiting import wait_until

pytestmark = pytest.mark.sql


@pytest.fixture(scope="module")
def server() -> Iterator[LocalMySql]:
    with LocalMySql() as server:
        yield server


@pytest.fixture
def database(server: LocalMySql) -> Iterator[OwnDatabase]:
    with make_database(server) as database:
        yield database


def test_a_row_that_another_session_holds_is_seen_without_waiting_for_it(database: OwnDatabase) -> None:
    """MySQL answers NOWAIT with its own number, 3572, and shows in another place than MariaDB who blocks."""
    sink = make_sink(database.url)
    sink.open("s", owner="ann").close()
    with closing(database.connect()) as other:
        cursor = other.cursor()
        cursor.execute("BEGIN")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'x' WHERE stream = 's'")
        held = look_at_writer(sink.place, "s")
        assert held is not None
        assert held.is_locked
        assert [each.session for each in find_blockers(sink.place, "s")] == [other.thread_id()]
        cursor.execute("ROLLBACK")
    free = look_at_writer(sink.place, "s")
    assert free is not None
    assert not free.is_locked


def test_who_has_locked_a_table_is_named_and_not_the_stream_that_waits_for_it(database: OwnDatabase) -> None:
    """MySQL lists metadata locks; MariaDB does so if performance_schema is on."""
    sink = make_sink(database.url)
    with closing(sink.open("s")) as writer, closing(database.connect()) as other:
        cursor = other.cursor()
        cursor.execute("LOCK TABLES numbers WRITE")
        stream = threading.Thread(target=writer.write, args=(make_numbers(at(0), at(2)), at(0), at(2)))
        stream.start()
        try:
            waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE '%metadata lock'"
            wait_until(lambda: database.run(waits) == [(1,)], "it waits for the table")
            (found,) = find_blockers(sink.place, "s")
        finally:
            cursor.execute("UNLOCK TABLES")
            stream.join()
        assert (found.session, found.is_waiting) == (other.thread_id(), False)


def test_rows_are_staged_published_and_read_back(database: OwnDatabase) -> None:
    sink = make_sink(database.url)
    rows = make_numbers(at(0), at(30))
    with closing(sink.open("s")) as writer:
        staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
        report = fill_stage(staging, 1, rows.to_batches())
        assert writer.write_staged([report], at(0), at(30)).rows == 30
        assert writer.read_state("numbers").num_rows == 30


@pytest.mark.parametrize("setting", ["read_only", "super_read_only"])
def test_a_server_that_was_made_read_only_gets_no_rows(
    database: OwnDatabase, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even from this login, which `read_only` alone would not stop."""
    monkeypatch.setattr("penstock.stores.sql.connections.database_outages.RECONNECT_TIMEOUT_S", 0.5)
    with closing(make_sink(database.url).open("s")) as writer:
        database.run(f"SET GLOBAL {setting} = 1")
        try:
            with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_READ_ONLY") as caught:
                writer.write(make_numbers(at(0), at(3)), at(0), at(3))
        finally:
            database.run("SET GLOBAL super_read_only = 0")
            database.run("SET GLOBAL read_only = 0")
        assert caught.value.retriable
        assert read_numbers(database) == []
        assert writer.write(make_numbers(at(0), at(3)), at(0), at(3)).rows == 3
