"""One contract for the loss ledger, in SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core.errors import OffsetStoreError, PenstockError, VersionError
from penstock.core.losses.loss_ranges import Loss, summarise_losses
from penstock.core.options.storage_addresses import parse_place
from penstock.engines.reading.loss_book import check_ledger, write_losses
from penstock.stores.loss_ledger import DETAIL_LIMIT, open_loss_ledger
from penstock.stores.sql.connections import database_timeouts, sql_sessions
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.testing.proxy import FaultProxy
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import lead_through

AGED = Loss("START_OFFSET_RESET", "visits", 0, 5, 800, b"\x01" * 16, "Retention removed them.")
GONE = Loss("PARTITIONS_DELETED", "visits", 1, 7, 7, None, "The partition is gone.")
OTHER = Loss("LOG_TRUNCATED", "orders", 3, 2**62, 2**62 + 4)


def test_what_was_recorded_is_read_back_whole_and_in_order(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    assert ledger.record([GONE, AGED, OTHER], seen_ms=1000, stream="counting visits") == 3
    found = ledger.read()
    assert [each.loss for each in found] == [OTHER, AGED, GONE]
    assert {(each.first_seen_ms, each.last_seen_ms, each.times, each.stream) for each in found} == {
        (1000, 1000, 1, "counting visits")
    }


def test_a_repeated_report_is_one_row_with_the_first_words_and_both_times(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([AGED], seen_ms=2000, stream="first")
    again = Loss("OTHER_REASON", *AGED.key, detail="Other words.")
    ledger.record([again], seen_ms=3000, stream="second")
    ledger.record(
        [AGED, AGED], seen_ms=1000, stream="third"
    )  # a slow worker's clock, and twice in one report
    (only,) = ledger.read()
    assert only.loss == AGED
    assert (only.first_seen_ms, only.last_seen_ms, only.times, only.stream) == (1000, 3000, 3, "first")


def test_names_that_differ_in_case_only_are_different_topics(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([Loss("DATA_LOST", name, 0, 1, 2) for name in ("Visits", "visits")], seen_ms=1)
    assert [each.loss.topic for each in ledger.read()] == ["Visits", "visits"]
    assert [each.loss.topic for each in ledger.read(topic="visits")] == ["visits"]


def test_a_reader_chooses_topic_and_time(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([AGED, OTHER], seen_ms=1000)
    ledger.record([GONE], seen_ms=2000)
    ledger.record([OTHER], seen_ms=2001)
    assert [each.loss for each in ledger.read(topic="visits")] == [AGED, GONE]
    assert [each.loss for each in ledger.read(since_ms=2000)] == [OTHER, GONE]
    assert [each.loss for each in ledger.read(topic="visits", since_ms=2000)] == [GONE]
    assert ledger.read(topic="no' OR '1' = '1") == []
    assert summarise_losses(each.loss for each in ledger.read())["visits"].offsets == 795
    assert {each.loss.topic for each in ledger.read(since_ms=2001)} == {"orders"}


def test_any_text_is_kept_as_text(own_database: OwnDatabase) -> None:
    """S30: values are bound, so quotes, percent signs and statements are only text."""
    ledger = open_loss_ledger(own_database.url)
    detail = "'; DROP TABLE penstock_losses; -- %s ? {} \\ \" ` ünïcödé 🚰\n\x1b[31m"
    ledger.record([Loss("DATA_LOST", "a%sb?", 0, 1, 2, None, detail)], seen_ms=1, stream="x' OR 1=1 --")
    (only,) = ledger.read(topic="a%sb?")
    assert (only.loss.detail, only.stream) == (detail, "x' OR 1=1 --")


def test_text_that_a_database_would_refuse_is_kept_readable(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([Loss("DATA_LOST", "t", 0, 1, 2, None, "zero \0 half \ud83d " + "🚰" * 90_000)], seen_ms=1)
    detail = ledger.read()[0].loss.detail
    assert detail.startswith("zero \\x00 half \\ud83d 🚰")
    assert len(detail) == DETAIL_LIMIT
    assert detail.endswith("…")


def test_nothing_to_record_touches_nothing(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    assert ledger.record([], seen_ms=1) == 0
    assert ledger.read() == []


def test_an_opened_ledger_pickles_to_a_worker_and_shows_no_password(own_database: OwnDatabase) -> None:
    """S12: a database address counts as a secret, so its visible form has no password."""
    ledger = open_loss_ledger(own_database.url)
    copy = pickle.loads(pickle.dumps(ledger))
    copy.record([AGED], seen_ms=1)
    assert [each.loss for each in ledger.read()] == [AGED]
    password = own_database.url.split(":")[2].split("@")[0] if "@" in own_database.url else "no password"
    assert all(password not in text for text in (repr(copy), str(copy.place), repr(copy.place)))


def test_a_ledger_that_is_not_there_is_an_error_for_a_reader_and_is_not_made(
    own_database: OwnDatabase,
) -> None:
    with pytest.raises(OffsetStoreError, match=r"\[(LEDGER|DATABASE)_NOT_FOUND\]"):
        open_loss_ledger(own_database.url, create=False)
    place = parse_place(own_database.url)
    if place.dialect == "sqlite":
        assert not Path(str(place)).exists()
        own_database.run("CREATE TABLE other (n INT)")  # a database without a ledger
    with pytest.raises(OffsetStoreError, match=r"\[LEDGER_NOT_FOUND\]"):
        open_loss_ledger(own_database.url, create=False)
    assert not Database(place).run(lambda session: session.has_table("penstock_losses"))


def test_a_ledger_of_a_newer_version_is_left_alone(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([AGED], seen_ms=1)
    own_database.run("UPDATE penstock_meta SET version = 2")
    for attempt in (
        lambda: ledger.read(),
        lambda: ledger.record([GONE], seen_ms=1),
        lambda: open_loss_ledger(own_database.url),
        lambda: open_loss_ledger(own_database.url, create=False),
    ):
        with pytest.raises(OffsetStoreError, match="LEDGER_TOO_NEW") as caught:
            attempt()
        assert caught.value.facts["version"] == 2
    assert own_database.run("SELECT COUNT(*) FROM penstock_losses")[0][0] == 1


def test_tables_that_were_dropped_while_the_query_ran_are_made_again(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    own_database.run("DROP TABLE penstock_losses")
    own_database.run("DROP TABLE penstock_meta")
    ledger.record([AGED], seen_ms=1)
    assert [each.loss for each in ledger.read()] == [AGED]


def test_a_making_of_tables_that_was_killed_halfway_is_finished(own_database: OwnDatabase) -> None:
    open_loss_ledger(own_database.url)
    own_database.run("DELETE FROM penstock_meta")  # MySQL commits tables one by one, the version last
    open_loss_ledger(own_database.url).record([AGED], seen_ms=1)
    assert own_database.run("SELECT component, version FROM penstock_meta") == [("losses", 1)]


# --- several processes ------------------------------------------------------------------------------------

WRITERS, ROUNDS, LOSSES = 3, 4, 150
WRITE_AT_ONCE = f"""
import os, sys
from penstock.core.losses.loss_ranges import Loss
from penstock.stores.loss_ledger import LossLedger
from penstock.core.options.storage_addresses import parse_place
ledger = LossLedger(parse_place(os.environ["PLACE"]))  # not opened: the tables are made at once, too
losses = [Loss("DATA_LOST", "t", n % 5, n, n + 1) for n in range({LOSSES})]
if int(sys.argv[1]) % 2:
    losses.reverse()
print("ready", flush=True)
sys.stdin.readline()
for round in range({ROUNDS}):
    ledger.record(losses, seen_ms=round, stream=sys.argv[1])
"""


def start_writer(program: str, database: OwnDatabase, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PLACE": database.url},
    )


def test_processes_that_report_the_same_losses_at_once_make_one_row_each(own_database: OwnDatabase) -> None:
    writers = [start_writer(WRITE_AT_ONCE, own_database, str(number)) for number in range(WRITERS)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=240)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS, said
    found = open_loss_ledger(own_database.url, create=False).read()
    assert len(found) == LOSSES
    assert {each.times for each in found} == {WRITERS * ROUNDS}
    assert {(each.first_seen_ms, each.last_seen_ms) for each in found} == {(0, ROUNDS - 1)}


def test_tables_are_made_by_one_process_at_a_time(
    own_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_timeouts, "LOCK_TIMEOUT_S", 1)
    place = parse_place(own_database.url)

    def make_tables_meanwhile(session: sql_sessions.Session) -> None:
        session.lock_schema()
        with pytest.raises(OffsetStoreError, match="DATABASE_BUSY") as caught:
            open_loss_ledger(place)
        assert caught.value.retriable

    Database(place).run(make_tables_meanwhile, writes=True)
    open_loss_ledger(place)


@pytest.mark.parametrize("conflicts", [2, 100])
def test_a_transaction_that_the_database_ended_for_another_is_done_again(
    server_database: OwnDatabase, conflicts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own deadlock error is raised on purpose, so that it comes each time."""
    monkeypatch.setattr(sql_sessions, "CONFLICT_PAUSE_S", 0.001)
    server_database.run("CREATE TABLE done (n INT)")
    database = Database(parse_place(server_database.url))
    deadlock = (
        "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"
        if database.place.dialect == "postgresql"
        else "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"
    )
    attempts = []

    def work(session: sql_sessions.Session) -> None:
        attempts.append(1)
        session.execute("INSERT INTO done VALUES (1)")
        if len(attempts) <= conflicts:
            session.execute(deadlock)

    if conflicts == 2:
        database.run(work, writes=True)
        assert len(attempts) == 3
    else:
        with pytest.raises(OffsetStoreError, match="DATABASE_CONFLICT"):
            database.run(work, writes=True)
        assert len(attempts) == sql_sessions.CONFLICT_ATTEMPTS
    assert server_database.run("SELECT COUNT(*) FROM done") == [(1 if conflicts == 2 else 0,)]


# A crash point made for this test: the rows are written, but the commit is not reached. There are so many
# rows that SQLite has begun to change the file itself.
DIE_BEFORE_COMMIT = """
import os, signal
from penstock.core.losses.loss_ranges import Loss
from penstock.stores.sql.connections import sql_sessions as sessions
from penstock.stores.loss_ledger import open_loss_ledger
write = sessions.Session.execute_many
def write_and_die(session, statement, rows):
    write(session, statement, rows)
    os.kill(os.getpid(), signal.SIGKILL)
sessions.Session.execute_many = write_and_die
ledger = open_loss_ledger(os.environ["PLACE"])
ledger.record([Loss("DATA_LOST", "t", 0, n, n + 1, None, "x" * 100) for n in range(30_000)], seen_ms=9)
"""


def test_a_writer_killed_before_its_commit_leaves_a_ledger_as_it_was(own_database: OwnDatabase) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([AGED], seen_ms=1)
    writer = start_writer(DIE_BEFORE_COMMIT, own_database)
    writer.communicate(timeout=240)
    assert writer.returncode == -signal.SIGKILL
    assert [each.loss for each in open_loss_ledger(own_database.url, create=False).read()] == [AGED]
    ledger.record([GONE], seen_ms=2)  # and the dead process's locks block nobody
    assert [each.loss for each in ledger.read()] == [AGED, GONE]


# --- trouble ----------------------------------------------------------------------------------------------


def test_a_lock_that_is_not_given_back_ends_in_an_error_by_its_deadline(
    own_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_loss_ledger(own_database.url)
    ledger.record([AGED], seen_ms=1)
    monkeypatch.setattr(database_timeouts, "LOCK_TIMEOUT_S", 1)
    holder = own_database.connect()
    cursor = holder.cursor()
    begin = "BEGIN IMMEDIATE" if ledger.place.dialect == "sqlite" else "BEGIN"
    cursor.execute(begin)
    cursor.execute("UPDATE penstock_losses SET times_seen = 100")
    with pytest.raises(OffsetStoreError, match="DATABASE_BUSY") as caught:
        ledger.record([AGED], seen_ms=2)
    assert caught.value.retriable
    cursor.execute("ROLLBACK")
    holder.close()
    ledger.record([AGED], seen_ms=2)
    assert ledger.read()[0].times == 2


def test_a_server_that_falls_silent_is_left_by_the_deadline(
    server_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_loss_ledger(server_database.url)
    monkeypatch.setattr(database_timeouts, "ANSWER_TIMEOUT_S", 1)
    sleep = "SELECT pg_sleep(60)" if ledger.place.dialect == "postgresql" else "SELECT SLEEP(60)"
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE") as caught:
        Database(ledger.place).run(lambda session: session.execute(sleep))
    assert caught.value.retriable


def test_a_wrong_password_is_refused_without_being_shown(server_database: OwnDatabase) -> None:
    """S12: neither the error nor its facts contain the wrong password."""
    head, _, tail = server_database.url.rpartition("@")
    wrong = f"{head.rpartition(':')[0]}:hunter2@{tail}"
    with pytest.raises(OffsetStoreError, match="DATABASE_REFUSED") as caught:
        open_loss_ledger(wrong)
    assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.facts} {caught.value.__cause__}"
    assert "***" not in str(caught.value), "the server's own words hold no secret and are readable"


def test_a_database_that_does_not_exist_is_refused(server_database: OwnDatabase) -> None:
    with pytest.raises(OffsetStoreError, match="DATABASE_REFUSED"):
        open_loss_ledger(server_database.url + "_not")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_not_there_is_told_as_unreachable(scheme: str) -> None:
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE") as caught:
        open_loss_ledger(f"{scheme}://me:hunter2@127.0.0.1:1/stats")
    assert caught.value.retriable
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "driver", "package"), [("postgresql", "psycopg", "psycopg"), ("mysql", "pymysql", "PyMySQL")]
)
def test_a_missing_driver_is_told_with_what_to_install(
    scheme: str, driver: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)  # what Python does for a missing package
    with pytest.raises(VersionError, match="DRIVER_MISSING") as caught:
        open_loss_ledger(f"{scheme}://me:x@127.0.0.1:1/stats")
    assert package in str(caught.value)
    assert "pip install 'penstock[sql]'" in caught.value.hint


def test_a_user_who_may_only_write_rows_can_record(server_database: OwnDatabase) -> None:
    """The tables exist, so no right to create any is needed."""
    open_loss_ledger(server_database.url)
    head, _, tail = server_database.url.rpartition("@")
    name = f"clerk_{tail.rpartition('/')[2]}"
    is_postgres = head.startswith("postgresql")
    who = name if is_postgres else f"{name}@'127.0.0.1'"
    grant = f"GRANT SELECT, INSERT, UPDATE ON {{}} TO {who}"
    server_database.run(f"CREATE USER {who} {'PASSWORD' if is_postgres else 'IDENTIFIED BY'} 'x'")
    try:
        server_database.run(grant.format("penstock_losses"))
        server_database.run(grant.format("penstock_meta"))
        scheme = head.partition("://")[0]
        ledger = open_loss_ledger(f"{scheme}://{name}:x@{tail}")
        ledger.record([AGED], seen_ms=1)
        assert [each.loss for each in ledger.read()] == [AGED]
    finally:
        if is_postgres:
            server_database.run(f"DROP OWNED BY {who}")
        server_database.run(f"DROP USER {who}")


def test_errors_of_the_work_itself_pass_unchanged(own_database: OwnDatabase) -> None:
    class PlantedError(Exception):
        pass

    def fail(_session: object) -> None:
        raise PlantedError

    with pytest.raises(PlantedError):
        Database(parse_place(own_database.url)).run(fail, writes=True)


def test_a_wrong_statement_is_told_once_as_ours(own_database: OwnDatabase) -> None:
    with pytest.raises(PenstockError, match="DATABASE_FAILED") as caught:
        Database(parse_place(own_database.url)).run(lambda session: session.execute("SELEKT 1"), writes=True)
    assert caught.value.__cause__ is not None
    assert not isinstance(caught.value.__cause__, PenstockError)


@pytest.mark.parametrize("is_driver", [True, False], ids=["driver", "task"])
def test_a_loss_waits_for_a_ledger_that_was_reached_before_and_is_away(
    server_database: OwnDatabase, is_driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query opened it when it started; a restart or fail-over of the database must not end the query."""
    with FaultProxy() as proxy:
        place = parse_place(lead_through(proxy, server_database.url))
        check_ledger(place)
        proxy.refuse()
        pauses: list[float] = []

        def come_back(seconds: float) -> None:
            pauses.append(seconds)
            proxy.accept()

        monkeypatch.setattr(sql_sessions, "time", SimpleNamespace(monotonic=time.monotonic, sleep=come_back))
        write_losses(place, [AGED], create=is_driver)
        assert len(pauses) == 1
    assert [each.loss for each in open_loss_ledger(server_database.url).read()] == [AGED]


def test_a_ledger_that_was_never_reached_is_not_waited_for(
    server_database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy() as proxy:
        place = parse_place(lead_through(proxy, server_database.url))
        proxy.refuse()
        monkeypatch.setattr(sql_sessions, "time", SimpleNamespace(monotonic=time.monotonic))  # without sleep
        with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
            check_ledger(place)
