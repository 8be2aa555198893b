"""Databases for a single test: an SQLite file, or a fresh database on a running server."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cluster.servers.local_server import LocalDatabase
from penstock.core.options.storage_addresses import FilePlace, ServerPlace, parse_place


@dataclass(frozen=True)
class OwnDatabase:
    """An empty database; `url` is what a user would write."""

    url: str

    def connect(self) -> Any:
        """Return a plain connection of the driver, bypassing everything that is tested."""
        place = parse_place(self.url)
        if isinstance(place, FilePlace):
            return sqlite3.connect(place.path, isolation_level=None)
        return connect_server(place)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


def connect_server(place: ServerPlace) -> Any:
    assert place.password is not None
    ((host, port),) = place.hosts
    login = {"host": host, "port": port, "user": place.user, "password": place.password.reveal()}
    if place.dialect == "postgresql":
        import psycopg

        return psycopg.connect(**login, dbname=place.database, autocommit=True)  # type: ignore[arg-type]
    import pymysql

    return pymysql.connect(**login, database=place.database, autocommit=True)


@contextlib.contextmanager
def make_database(server: LocalDatabase) -> Iterator[OwnDatabase]:
    """Create a database with a unique name, and drop it at the end."""
    name = f"t_{secrets.token_hex(6)}"
    whole = OwnDatabase(server.url)
    whole.run(f"CREATE DATABASE {name}")
    try:
        yield OwnDatabase(server.url.rpartition("/")[0] + f"/{name}")
    finally:
        force = " WITH (FORCE)" if server.scheme == "postgresql" else ""
        whole.run(f"DROP DATABASE {name}{force}")


def make_file_database(folder: Path) -> OwnDatabase:
    return OwnDatabase(f"sqlite://{folder}/own.db")
