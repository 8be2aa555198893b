"""A separate database for each test, once in SQLite, once in PostgreSQL, once in MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cluster import LocalMariaDB, LocalPostgres
from tests.sql.databases import OwnDatabase, make_database, make_file_database

SERVERS = [pytest.param(name, marks=pytest.mark.sql) for name in ("postgres", "mariadb")]


@pytest.fixture(params=["sqlite", *SERVERS])
def own_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnDatabase]:
    """Create an empty database of each kind."""
    if request.param == "sqlite":
        yield make_file_database(tmp_path)
        return
    with make_database(request.getfixturevalue(request.param)) as database:
        yield database


@pytest.fixture(params=SERVERS)
def server_database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    """Create an empty database on each kind of server."""
    with make_database(request.getfixturevalue(request.param)) as database:
        yield database


@pytest.fixture
def mariadb_database(mariadb: LocalMariaDB) -> Iterator[OwnDatabase]:
    """Create an empty database in MariaDB."""
    with make_database(mariadb) as database:
        yield database


@pytest.fixture
def postgres_database(postgres: LocalPostgres) -> Iterator[OwnDatabase]:
    """Create an empty database in PostgreSQL."""
    with make_database(postgres) as database:
        yield database
