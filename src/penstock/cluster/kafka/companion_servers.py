"""Databases and a ZooKeeper beside a detached cluster, which run and end with it.

Rule: as for brokers, a server is alive while it holds its lock, and a process id is never signalled just
because a file says so. Unlike a cluster's data, theirs is for trying things out: it is in a separate
temporary folder (the database's user could not enter a home folder) and is removed when they end.

    server = start_companion("postgres")
    server.url
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cluster.downloads.jars import Progress
from penstock.cluster.processes.endings import end_server
from penstock.cluster.processes.owned_process import is_locked
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.cluster.servers.mariadb import LocalMariaDB
from penstock.cluster.servers.postgres import LocalPostgres
from penstock.cluster.servers.zookeeper import LocalZooKeeper
from penstock.core.errors import ClusterError

KINDS: Mapping[str, type[LocalDatabase]] = {
    "postgres": LocalPostgres,
    "mariadb": LocalMariaDB,
    "zookeeper": LocalZooKeeper,
}
_STOP_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Companion:
    """One server beside a cluster. `url` contains its password, which was made for this server only."""

    kind: str
    pid: int
    port: int
    folder: str
    url: str = field(repr=False)

    @property
    def is_alive(self) -> bool:
        return is_locked(Path(self.folder) / "server.lock")

    @property
    def is_ready(self) -> bool:
        asked = KINDS[self.kind]()
        asked.port = self.port
        return self.is_alive and asked.is_ready()

    def stop(self) -> None:
        """End the server and remove its folder. A second call does nothing."""
        server = KINDS[self.kind]
        patient = ((number, _STOP_PATIENCE_S) for number in (server.polite, server.at_once))
        end_server(server.kind, self.pid, Path(self.folder) / "server.lock", *patient)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_kinds(kinds: Collection[str]) -> None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ClusterError(
            "NO_SUCH_SERVER",
            f"There is no server {', '.join(map(repr, unknown))} to start beside a cluster.",
            hint=f"Choose from {', '.join(sorted(KINDS))}.",
        )


def start_companion(kind: str, progress: Progress | None = None) -> Companion:
    """Start a server on a free port, wait until it accepts logins, and return it. It keeps running."""
    server = KINDS[kind](owned=False, progress=progress)
    server.start()
    server.release()
    return Companion(kind, server.pid or 0, server.port, str(server.folder), server.url)
