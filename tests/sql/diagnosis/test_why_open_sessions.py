"""`penstock why` while a stream pauses between two waits for the same lock: not everything is free then."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.sql.ledger.blocking_sessions import find_open_sessions
from tests.sql.databases import OwnDatabase
from tests.sql.diagnosis.test_why import ask, is_postgres
from tests.sql.roles import make_role
from tests.sql.sinks import at, make_numbers, make_sink
from tests.support.kafka.topic_filling import produce


def test_a_session_that_holds_rows_while_the_stream_does_not_wait_is_told(
    server_database: OwnDatabase, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last wait was given up after 30 s and the next one has not begun, so its own row is free."""
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    sink = make_sink(server_database.url)
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 2)]
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(2)), *place)
    asked = ("s", "--sink", server_database.url, "--bootstrap-server", kafka.bootstrap, "--watch", "1s")
    with closing(server_database.connect()) as other, closing(other.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE numbers SET number = number + 100")
        number = find_session(server_database, other)
        told = ask(capsys, *asked)
        by_offsets = ask(capsys, "s", "--offsets", f"sink:{server_database.url}", *asked[3:])
        cursor.execute("ROLLBACK")
    assert number in [each["session"] for each in by_offsets["open_sessions"]]
    assert (told["condition"], told["state"]) == ("STANDS_STILL", "stuck")
    assert number in [each["session"] for each in told["open_sessions"]]
    assert f"session {number} (" in told["what"]
    ending = f"SELECT pg_terminate_backend({number})" if is_postgres(server_database) else f"KILL {number}"
    assert ending in told["hint"]
    if is_postgres(server_database):
        assert "with locks on numbers" in told["what"]
    told = ask(capsys, *asked)
    assert number not in [each["session"] for each in told["open_sessions"]]
    assert "row in the ledger, which was free in both looks" in told["hint"]


def test_a_session_that_holds_the_row_of_an_offset_store_is_told(
    server_database: OwnDatabase, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a sink, the blocked rows may be the store's, so the store is not said to be free."""
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    store = SqlOffsetStore(server_database.url)
    store.save("s", StreamPosition({TopicPartition(source, 0): 2}))
    asked = ("s", "--offsets", server_database.url, "--bootstrap-server", kafka.bootstrap, "--watch", "1s")
    with closing(server_database.connect()) as other, closing(other.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE penstock_streams SET stream = stream")
        number = find_session(server_database, other)
        told = ask(capsys, *asked)
        cursor.execute("ROLLBACK")
    assert told["condition"] == "STANDS_STILL"
    assert number in [each["session"] for each in told["open_sessions"]]
    assert f"session {number} (" in told["what"]


def test_a_session_that_only_reads_is_nobodys_cause(server_database: OwnDatabase) -> None:
    make_sink(server_database.url)
    with closing(server_database.connect()) as other, closing(other.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM numbers")
        cursor.fetchall()
        found = find_open_sessions(parse_place(server_database.url))
        number = find_session(server_database, other)
        cursor.execute("ROLLBACK")
    assert found is not None
    assert number not in [each.session for each in found]


def test_a_user_who_may_not_see_other_sessions_is_not_told_that_there_are_none(
    server_database: OwnDatabase,
) -> None:
    """PostgreSQL shows everyone who holds which table, but not since when; MariaDB shows nothing."""
    sink = make_sink(server_database.url)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(2)), at(0), at(2))
    with closing(server_database.connect()) as other, make_role(server_database) as role:
        role.grant_rows(numbers="append")
        with closing(other.cursor()) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE numbers SET number = number + 100")
            found = find_open_sessions(parse_place(role.url))
            number = find_session(server_database, other)
            cursor.execute("ROLLBACK")
    if not role.is_postgres:
        assert found is None
        return
    assert found is not None
    assert [(each.session, each.open_s, each.tables) for each in found] == [(number, None, ("numbers",))]


def find_session(database: OwnDatabase, connection: Any) -> int:
    return int(connection.info.backend_pid if is_postgres(database) else connection.thread_id())
