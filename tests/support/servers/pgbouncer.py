"""A real PgBouncer in front of a real PostgreSQL: Debian's package, on this computer.

Rule: it is as difficult to work with as one may be. Each transaction goes to the next of several connections,
so whatever relies on the session finds another one.

    with LocalPgBouncer(postgres, "transaction") as pooler:
        SqlOffsetStore(pooler.lead(postgres_database.url))
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

from penstock.cluster import LocalPostgres
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import USER, LocalDatabase
from tests.support.servers.debian_packages import fetch_package, find_libraries

#: How many connections to the server it has for each database.
CONNECTIONS = 4


class LocalPgBouncer(LocalDatabase):
    """A PgBouncer for all databases of `server`."""

    kind = "PgBouncer"
    scheme = "postgresql"
    database = "postgres"
    polite = signal.SIGINT
    at_once = signal.SIGKILL

    def __init__(
        self, server: LocalPostgres, pooling: Literal["session", "transaction", "statement"]
    ) -> None:
        super().__init__()
        self._server = server
        self._pooling = pooling
        self._password = server._password

    def lead(self, url: str) -> str:
        """Return the address of the same database through this pooler."""
        return url.replace(f"{LOOPBACK}:{self._server.port}", f"{LOOPBACK}:{self.port}")

    def fetch(self) -> Path:
        return fetch_package("pgbouncer")

    def prepare(self, password: str) -> None:
        self._write("users.txt", f'"{USER}" "{password}"\n')

    def command(self) -> list[str]:
        settings = {
            "listen_addr": LOOPBACK,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.data / "users.txt",
            "pool_mode": self._pooling,
            "default_pool_size": CONNECTIONS,
            "min_pool_size": CONNECTIONS,
            "server_round_robin": 1,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"[databases]\n* = host={LOOPBACK} port={self._server.port}\n"
        self._write("pooler.ini", f"{databases}[pgbouncer]\n" + "\n".join(lines) + "\n")
        # Servers start with an environment that does not name these library folders, so `env` adds them.
        return [
            "/usr/bin/env",
            f"LD_LIBRARY_PATH={find_libraries(self.program)}",
            str(self.program / "usr" / "sbin" / "pgbouncer"),
            str(self.data / "pooler.ini"),
        ]

    is_ready = LocalPostgres.is_ready  # its greeting is the same as PostgreSQL's

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.touch(0o600)
        path.write_text(text)
        self.give_to_server(path)
