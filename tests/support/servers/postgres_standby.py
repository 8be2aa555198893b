"""A PostgreSQL primary and its standby, made by streaming replication, to test what a fail-over leaves.

The embedded program has no pg_basebackup, so the standby begins with a copy of the primary's data folder,
taken while the primary is down.

    with start_pair() as pair:
        SqlSink(pair.url, ...)
        pair.fail_over()
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.cluster import LocalPostgres
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import USER
from tests.sql.databases import OwnDatabase
from tests.support.waiting import wait_until

#: How long a stream may take from the primary's end to its first login here: a Spark job has to begin.
LOGIN_TIMEOUT_S = 120
PROMOTE_TIMEOUT_S = 30
#: What the server logs for a login by Penstock, and for no other login.
_OUR_LOGIN = "application_name=penstock"


class Standby(LocalPostgres):
    """A server that replicates `primary` until it is promoted. It records who logs in."""

    def __init__(self, primary: LocalPostgres) -> None:
        super().__init__()
        self._primary = primary
        self._password = primary._password

    def prepare(self, password: str) -> None:
        self._primary.stop()
        shutil.copytree(self._primary.data, self.data, dirs_exist_ok=True)
        self._primary.start()
        address = f"host={LOOPBACK} port={self._primary.port} user={USER} password={password}"
        self.follow(address)
        (self.data / "standby.signal").touch()
        for path in [self.data, *self.data.rglob("*")]:
            self._give(path)

    def command(self) -> list[str]:
        return [*super().command(), "-c", "log_connections=on"]

    @property
    def was_used(self) -> bool:
        """Return whether Penstock has logged in; `logs` keeps only the last lines, and tests log in often."""
        return _OUR_LOGIN in (self.folder / "server.log").read_text(errors="replace")

    def follow(self, address: str) -> None:
        """Write the address of the server to follow; an empty one means none."""
        (self.data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{address}'\n")

    def _give(self, path: Path) -> None:
        owner = self._primary.data.stat()
        if not path.is_symlink() and os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)


class Pair:
    """Both servers, and the address that names both of them."""

    def __init__(self, primary: LocalPostgres, standby: Standby) -> None:
        self.primary = primary
        self.standby = standby
        first, second = (f"{LOOPBACK}:{server.port}" for server in (primary, standby))
        self.url = primary.url.replace(first, f"{first},{second}")
        self.url_backwards = primary.url.replace(first, f"{second},{first}")
        self._pool = ThreadPoolExecutor(1)
        self._promoting: Future[None] | None = None

    def wait_for_replay(self) -> None:
        """Wait until the standby has everything that the primary has committed."""
        ((end,),) = _ask(self.primary, "SELECT pg_current_wal_flush_lsn()")
        question = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: _ask(self.standby, question) == [(True,)], "the standby has caught up")

    def cut_replication(self) -> None:
        """Let the standby have what is committed now, and nothing that comes later."""
        self.wait_for_replay()
        self.standby.follow("")
        _ask(self.standby, "SELECT pg_reload_conf()")
        question = "SELECT count(*) FROM pg_stat_wal_receiver"
        wait_until(lambda: _ask(self.standby, question) == [(0,)], "replication has ended")

    def fail_over(self) -> None:
        """Kill the primary. The standby is promoted as soon as Penstock has found it still read-only."""
        assert not self.standby.was_used, "somebody used the standby beside its primary"
        self.primary.kill()
        self._promoting = self._pool.submit(self._promote)

    def join(self) -> None:
        """Wait until the standby has been promoted."""
        if self._promoting is not None:
            self._promoting.result()

    def close(self) -> None:
        self._pool.shutdown()

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the server that was the standby."""
        return _ask(self.standby, statement)

    def _promote(self) -> None:
        wait_until(lambda: self.standby.was_used, "ours come to the standby", LOGIN_TIMEOUT_S)
        assert _ask(self.standby, f"SELECT pg_promote(true, {PROMOTE_TIMEOUT_S})") == [(True,)]


@contextlib.contextmanager
def start_pair() -> Iterator[Pair]:
    with LocalPostgres() as primary, Standby(primary) as standby:
        pair = Pair(primary, standby)
        try:
            yield pair
        finally:
            pair.close()


def _ask(server: LocalPostgres, statement: str) -> list[tuple[Any, ...]]:
    return OwnDatabase(server.url).run(statement)
