"""Several MariaDB hosts: the one that accepts writes is found, and a replica is never written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from penstock.cluster import LocalMariaDB
from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.sql.connections.sql_sessions import Database
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers

pytestmark = pytest.mark.sql


@pytest.fixture
def first(mariadb_database: OwnDatabase) -> Iterator[tuple[LocalMariaDB, OwnDatabase]]:
    """Start a server for one test, with a database and a login like those of `mariadb_database`."""
    address = urlsplit(mariadb_database.url)
    with LocalMariaDB() as server:
        whole = OwnDatabase(server.url)
        whole.run(f"CREATE DATABASE {address.path[1:]}")
        whole.run(f"ALTER USER {address.username}@'127.0.0.1' IDENTIFIED BY '{address.password}'")
        here = mariadb_database.url.replace(f":{address.port}/", f":{server.port}/")
        yield server, OwnDatabase(here)


def test_a_read_only_host_and_a_dead_one_are_passed_over(
    first: tuple[LocalMariaDB, OwnDatabase], mariadb_database: OwnDatabase
) -> None:
    """Even if the login could write there: an administrator may, and would make the copies differ."""
    server, here = first
    hosts = [urlsplit(each.url).netloc.rpartition("@")[2] for each in (here, mariadb_database)]
    store = SqlOffsetStore(here.url.replace(hosts[0], ",".join(hosts)))
    apart = [SqlOffsetStore(each.url) for each in (here, mariadb_database)]
    store.save("s", at(3))
    here.run("SET GLOBAL read_only = 1")
    store.save("s", at(5))
    assert [each.load("s") for each in apart] == [at(3), at(5)]
    assert store.load("s") == at(5)  # a reader also asks the host that accepts writes
    server.kill()
    store.save("s", at(6))
    assert apart[1].load("s") == at(6)


def test_a_replica_alone_is_read_and_waited_for_and_not_written_to(
    first: tuple[LocalMariaDB, OwnDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here = first
    sink = make_sink(here.url)
    here.run("CREATE USER clerk@'127.0.0.1' IDENTIFIED BY 'x'")
    here.run("GRANT SELECT, INSERT ON *.* TO clerk@'127.0.0.1'")
    monkeypatch.setattr("penstock.stores.sql.connections.database_outages.RECONNECT_TIMEOUT_S", 0.5)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(3)), at(0), at(3))
        here.run("SET GLOBAL read_only = 1")
        with pytest.raises(SinkError, match=r"PUBLISH_FAILED.*DATABASE_READ_ONLY") as caught:
            writer.write(make_numbers(at(3), at(5)), at(3), at(5))
        assert caught.value.retriable
        assert len(read_numbers(here)) == 3
        # A sink that cannot know beforehand learns it from the server.
        login = urlsplit(here.url).netloc.rpartition("@")[0]
        clerk = Database(parse_place(here.url.replace(login, "clerk:x")))
        insert = "INSERT INTO numbers VALUES (9, 9)"
        with pytest.raises(OffsetStoreError, match=r"DATABASE_READ_ONLY.*--read-only") as refused:
            clerk.run(lambda session: session.execute(insert))
        assert refused.value.retriable
        assert clerk.run(lambda session: session.execute("SELECT COUNT(*) FROM numbers")) == [(3,)]
        here.run("SET GLOBAL read_only = 0")
        assert writer.write(make_numbers(at(3), at(5)), at(3), at(5)).rows == 2
