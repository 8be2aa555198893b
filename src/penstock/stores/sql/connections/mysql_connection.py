"""A connection to MySQL or MariaDB that loads only the files that we have named.

Rule: `LOAD DATA LOCAL` is answered only while we load, and only with the file we named. In this protocol the
server asks the client for a file, by any name and after any statement: a compromised server could ask for a
key file, and PyMySQL would send it.

    with connection.offer_file(path):
        cursor.execute("LOAD DATA LOCAL INFILE ...")
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pymysql.connections import Connection
from pymysql.err import OperationalError
from pymysql.protocol import MysqlPacket

_WRONG_FILE = 2068  # MySQL's own number for a requested file that may not be read


class MySqlConnection(Connection):  # type: ignore[misc]  # PyMySQL has no types
    """A PyMySQL connection with a guard on our files and changeable time limits for answers."""

    _offered: str | None = None
    _read_timeout: float
    _write_timeout: float

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._local_infile = False

    @contextlib.contextmanager
    def offer_file(self, path: str) -> Iterator[None]:
        """Let the server ask for this file inside the block."""
        self._offered, self._local_infile = path, True
        try:
            yield
        finally:
            self._offered, self._local_infile = None, False

    @contextlib.contextmanager
    def limit_answers(self, limit_s: float) -> Iterator[None]:
        """Limit the time for an answer inside the block."""
        before = self._read_timeout, self._write_timeout
        self._read_timeout = self._write_timeout = limit_s
        try:
            yield
        finally:
            self._read_timeout, self._write_timeout = before

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        packet = super()._read_packet(packet_type)
        if self._offered is not None and packet.is_load_local_packet():
            asked = packet.get_all_data()[1:].decode("utf-8", "surrogateescape")
            if asked != self._offered:
                self._force_close()
                raise OperationalError(_WRONG_FILE, "the server asked for a file that was not offered")
        return packet
