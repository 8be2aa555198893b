"""An SQLite file that is replaced or removed under a running stream: never a silent loss."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import OffsetStoreError, PenstockError
from penstock.core.options.storage_addresses import parse_place
from penstock.core.outages import is_outage
from penstock.core.sinks.sql_commit_protocol import Commit, InsertStages, Step
from penstock.stores.sql.connections.database_errors import translate_errors
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter, open_writer
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers


@pytest.fixture(params=["delete", "wal"])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> OwnDatabase:
    """Create a database in each of SQLite's journal modes; only in the first does SQLite check the file."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
    return OwnDatabase(str(path))


def copy(database: OwnDatabase) -> Path:
    """Return a backup: a complete copy of the file as it is."""
    target = Path(database.url).with_name("old.db")
    with closing(sqlite3.connect(database.url)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)
    return target


def replace(database: OwnDatabase, by: Path) -> None:
    """Replace the file like `cp old.db t.db && rm -f a.db-wal a.db-shm && mv t.db a.db`.

    With another file's log, an older file would become a mixture of both.
    """
    shutil.copy(by, fresh := by.with_name("t.db"))
    for end in ("-wal", "-shm"):
        Path(database.url + end).unlink(missing_ok=True)
    fresh.rename(database.url)


def write(writer: SqlWriter, first: int, last: int) -> None:
    writer.write(make_numbers(at(first), at(last)), at(first), at(last))


class Meddling(Performer):
    """A performer that changes something about the file right before a step, once."""

    kind: type[Step] = Commit

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.meddle: list[Callable[[], None]] = []

    def __call__(self, step: Step) -> Any:
        if isinstance(step, self.kind) and self.meddle:
            self.meddle.pop()()
        return super().__call__(step)


def open_meddling(database: OwnDatabase, kind: type[Step]) -> tuple[SqlWriter, list[Callable[[], None]]]:
    made: list[Meddling] = []

    class Hands(Meddling):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.kind = kind
            made.append(self)

    writer = open_writer(make_sink(database.url), "s", performer_type=Hands)
    return writer, made[0].meddle


def test_an_older_file_that_took_the_place_of_ours_is_a_ledger_that_went_back(database: OwnDatabase) -> None:
    with closing(make_sink(database.url).open("s")) as writer:
        write(writer, 0, 5)
        old = copy(database)
        write(writer, 5, 7)
        replace(database, old)
        with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*t-0 from 5 to 7"):
            write(writer, 7, 9)
    assert read_numbers(database) == [(0, n) for n in range(5)]


def test_a_copy_that_lacks_nothing_is_gone_on_with(database: OwnDatabase) -> None:
    with closing(make_sink(database.url).open("s")) as writer:
        write(writer, 0, 5)
        replace(database, copy(database))
        write(writer, 5, 7)
    assert read_numbers(database) == [(0, n) for n in range(7)]


def test_what_was_committed_to_a_file_without_a_name_is_written_again(database: OwnDatabase) -> None:
    """A file that was replaced a moment earlier has no name, so nobody will ever read rows written to it."""
    writer, meddle = open_meddling(database, Commit)
    with closing(writer):
        write(writer, 0, 5)
        old = copy(database)
        meddle.append(lambda: replace(database, old))
        write(writer, 5, 7)
    assert read_numbers(database) == [(0, n) for n in range(7)]


def test_a_file_that_is_replaced_in_the_middle_of_a_batch_is_called_so_and_the_batch_may_be_repeated(
    tmp_path: Path,
) -> None:
    """Without a write-ahead log SQLite notices this on its own, and reports only `readonly`."""
    database = OwnDatabase(str(tmp_path / "a.db"))
    writer, meddle = open_meddling(database, InsertStages)
    with closing(writer):
        write(writer, 0, 5)
        old = copy(database)
        meddle.append(lambda: replace(database, old))
        with pytest.raises(PenstockError, match=r"PUBLISH_FAILED.*DATABASE_REPLACED.*was replaced") as raised:
            write(writer, 5, 7)
        assert raised.value.retriable
        assert "yours to write" not in str(raised.value)
        assert not is_outage(raised.value)
        write(writer, 5, 7)
    assert read_numbers(database) == [(0, n) for n in range(7)]


def test_a_file_that_was_taken_away_is_not_made_anew(database: OwnDatabase) -> None:
    """An empty file in its place would hide that the results are gone."""
    path = Path(database.url)
    with closing(make_sink(database.url).open("s")) as writer:
        write(writer, 0, 5)
        path.rename(path.with_name("away.db"))
        with pytest.raises(PenstockError, match=r"DATABASE_REPLACED.*is not there any more") as raised:
            write(writer, 5, 7)
        assert raised.value.retriable
        assert not path.exists()


def test_a_file_that_may_not_be_written_is_still_called_so(tmp_path: Path) -> None:
    database = OwnDatabase(str(tmp_path / "a.db"))
    make_sink(database.url)
    with (
        pytest.raises(OffsetStoreError, match=r"DATABASE_UNREACHABLE.*yours to write"),
        translate_errors(parse_place(database.url)),
        closing(sqlite3.connect(f"file:{database.url}?mode=ro", uri=True)) as connection,
    ):
        connection.execute("DELETE FROM numbers")
