"""PostgreSQL and MariaDB on this computer: how they start, answer, fail and end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.cluster.processes.owned_folders import sweep_abandoned
from penstock.cluster.processes.owned_process import Identity, is_locked
from penstock.cluster.servers import local_server
from penstock.cluster.servers.local_server import LocalDatabase, make_environment
from penstock.core.errors import ClusterError
from tests.sql.databases import OwnDatabase
from tests.support.waiting import wait_until

pytestmark = pytest.mark.sql
KINDS = [LocalPostgres, LocalMariaDB]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def own(request: pytest.FixtureRequest) -> Iterator[LocalDatabase]:
    """Start a server that these tests may stop; each test leaves it running."""
    with request.param() as server:
        yield server


def shared_memory_creators() -> list[str]:
    """Return the processes, living or not, that created the existing segments."""
    return [line.split()[4] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


def test_what_was_committed_survives_a_killed_server(own: LocalDatabase) -> None:
    client, port = OwnDatabase(own.url), own.port
    client.run("CREATE TABLE kept_through_a_kill (n INT)")
    client.run("INSERT INTO kept_through_a_kill VALUES (7)")
    pid = own.pid
    assert str(pid) in shared_memory_creators() or own.scheme == "mysql"
    own.kill()
    assert not own.is_alive
    assert not own.is_ready()
    assert str(pid) not in shared_memory_creators()
    own.start()
    assert own.port == port
    assert client.run("SELECT n FROM kept_through_a_kill") == [(7,)]
    client.run("DROP TABLE kept_through_a_kill")


def test_a_stopped_server_ends_although_a_client_is_connected(own: LocalDatabase) -> None:
    client = OwnDatabase(own.url).connect()
    own.stop()
    assert not own.is_alive
    own.stop()  # stopping again is a no-op
    client.close()
    own.start()
    assert OwnDatabase(own.url).run("SELECT 1")


def test_a_running_server_cannot_be_started_twice(own: LocalDatabase) -> None:
    with pytest.raises(ClusterError, match="DATA_DIR_IN_USE"):
        own.start()
    assert own.is_ready()


def test_the_server_does_not_run_as_root(own: LocalDatabase) -> None:
    status = Path(f"/proc/{own.pid}/status").read_text()
    users = re.search(r"^Uid:\s+(.*)$", status, re.MULTILINE)
    groups = re.search(r"^Groups:\s*(.*?)\s*$", status, re.MULTILINE)
    assert users
    assert groups
    assert "0" not in users[1].split()
    assert "0" not in groups[1].split()


def test_the_server_listens_on_loopback_only_and_its_data_is_its_own(own: LocalDatabase) -> None:
    """S35: the evidence is what the kernel reports about the process, not what its settings say."""
    entries = [os.readlink(entry) for entry in Path(f"/proc/{own.pid}/fd").iterdir()]
    sockets = {entry[8:-1] for entry in entries if entry.startswith("socket:[")}
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/{own.pid}/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in sockets
    ]
    assert listening == [f"0100007F:{own.port:04X}"]
    assert own.data.stat().st_mode & 0o777 == 0o700
    assert (own.folder / "server.log").stat().st_mode & 0o777 == 0o600


def test_nobody_gets_in_without_the_password(own: LocalDatabase) -> None:
    if own.scheme == "postgresql":
        for login in ("penstock", "penstock:wrong", "postgres"):
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(f"postgresql://{login}@127.0.0.1:{own.port}/postgres")
        return
    for user in ("root", "", "penstock"):
        with pytest.raises(pymysql.err.OperationalError):
            pymysql.connect(host="127.0.0.1", port=own.port, user=user, password="")


def test_neither_the_password_nor_foreign_settings_reach_the_server_or_its_name(
    own: LocalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process list shows no password, and the file that held it is gone."""
    password = own.url.split(":")[2].split("@")[0]
    assert password not in repr(own)
    assert password.encode() not in Path(f"/proc/{own.pid}/cmdline").read_bytes()
    texts = [path for path in own.folder.iterdir() if path.is_file()]
    assert all(password not in path.read_text() for path in texts)
    monkeypatch.setenv("SOME_API_TOKEN", "hunter2")
    monkeypatch.setenv("PGOPTIONS", "-c fsync=on")
    assert not {"SOME_API_TOKEN", "PGOPTIONS"} & make_environment().keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_server_leaves_nothing(kind: type[LocalDatabase]) -> None:
    with kind() as server:
        pid, folder = server.pid, server.folder
        assert is_locked(folder / "server.lock")
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    server.close()  # closing again is a no-op


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_port_that_is_taken_is_told_before_anything_is_made(
    kind: type[LocalDatabase], own: LocalDatabase
) -> None:
    with pytest.raises(ClusterError, match="PORT_TAKEN"):
        kind(port=own.port).start()
    (port,) = find_free_ports(1)
    with kind(port=port) as server:
        assert f"@127.0.0.1:{port}/" in server.url


def test_a_server_that_cannot_start_tells_the_end_of_its_log(own: LocalDatabase) -> None:
    own.stop()
    needed = own.data / ("PG_VERSION" if own.scheme == "postgresql" else "ibdata1")
    content = needed.read_bytes()
    needed.write_bytes(b"x" * len(content))
    with pytest.raises(ClusterError) as caught:
        own.start()
    assert caught.value.condition == "DATABASE_DID_NOT_START"
    assert own.logs
    assert own.logs in str(caught.value)
    assert not own.is_alive
    needed.write_bytes(content)
    own.start()


def test_a_folder_the_servers_user_cannot_enter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local_server, "choose_identity", lambda: Identity(65534, 65534))
    tmp_path.chmod(0o700)
    with pytest.raises(ClusterError, match="FOLDER_NOT_REACHABLE") as caught:
        LocalPostgres().start()
    assert "TMPDIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


OWNER = """
import sys, threading
from penstock.cluster import LocalMariaDB, LocalPostgres
server = {"LocalPostgres": LocalPostgres, "LocalMariaDB": LocalMariaDB}[sys.argv[1]]()
starter = threading.Thread(target=server.start)  # the thread that starts it ends; the server must not
starter.start()
starter.join()
print(server.pid, server.folder, server.url, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["killed", "exits"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_ends_with_its_owner(kind: type[LocalDatabase], end: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        pid, folder, url = owner.stdout.readline().split()
        client: Any = OwnDatabase(url).connect()  # keeps a PostgreSQL process busy
        lock = Path(folder) / "server.lock"
        assert is_locked(lock)
        if end == "killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.communicate("\n", timeout=60)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server ends with its owner")
    wait_until(lambda: not is_locked(lock), "all its processes end with it")
    client.close()
    assert pid not in shared_memory_creators()
    if end == "killed":
        sweep_abandoned(f"penstock-{kind.scheme}-")  # what the next start does first
    assert not Path(folder).exists()
