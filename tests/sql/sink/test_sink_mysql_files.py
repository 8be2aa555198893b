"""LOAD DATA LOCAL: the server asks for a file by name, and gets either the one that was offered or none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from penstock.core.errors import SinkError
from penstock.stores.sql import SqlSink, Table
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers


class LyingServer:
    """A proxy that passes everything on, but asks for another file than the one that was announced."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{address.port}/", f":{self._listener.getsockname()[1]}/")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            server = socket.create_connection(self._target)  # type: ignore[arg-type]
            for source, sink, lies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass_on, args=(source, sink, lies), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, lies: bool) -> None:
        with suppress(OSError):  # one side has left
            while piece := source.recv(65536):
                sink.sendall(piece.replace(b"/penstock-", b"/password-") if lies else piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            each.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def lying_server(mariadb_database: OwnDatabase) -> Iterator[LyingServer]:
    make_sink(mariadb_database.url)
    with closing(LyingServer(mariadb_database.url)) as server:
        yield server


def test_a_server_that_asks_for_another_file_gets_none(
    lying_server: LyingServer, mariadb_database: OwnDatabase
) -> None:
    """Otherwise a user's key file would be sent to whoever has taken over the server."""
    with (
        closing(SqlSink(lying_server.url, Table("numbers")).open("s")) as writer,
        pytest.raises(SinkError, match=r"PUBLISH_FAILED.*file that was not offered"),
    ):
        writer.write(make_numbers(at(0), at(5)), at(0), at(5))
    assert read_numbers(mariadb_database) == []


def test_a_server_that_loads_no_files_is_told_with_what_to_do(mariadb_database: OwnDatabase) -> None:
    sink = make_sink(mariadb_database.url)
    mariadb_database.run("SET GLOBAL local_infile = OFF")
    try:
        with (
            closing(sink.open("s")) as writer,
            pytest.raises(SinkError, match=r"LOCAL_INFILE_OFF.*SET GLOBAL"),
        ):
            writer.write(make_numbers(at(0), at(5)), at(0), at(5))
    finally:
        mariadb_database.run("SET GLOBAL local_infile = ON")
