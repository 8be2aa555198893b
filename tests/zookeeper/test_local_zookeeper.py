"""A ZooKeeper on this computer: it keeps its data after a kill, and leaves nothing when it is closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from penstock.cluster import LocalZooKeeper
from penstock.cluster.processes.owned_process import is_locked
from penstock.core.errors import ClusterError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.zookeeper

OWNER = """
import signal
from penstock.cluster import LocalZooKeeper
server = LocalZooKeeper()
server.start()
print(server.folder, flush=True)
signal.pause()
"""


def test_it_keeps_its_data_and_port_and_leaves_nothing_behind() -> None:
    with LocalZooKeeper() as server:
        port, folder = server.port, server.folder
        with pytest.raises(ClusterError, match="PORT_TAKEN"):
            LocalZooKeeper(port=port).start()
        with pytest.raises(ValueError, match="ends with its owner"):
            server.release()
        client = KazooClient(server.address, timeout=4)
        client.start(30)
        try:
            client.create("/kept", b"yes")
            server.kill()
            assert not server.is_alive
            server.start()
            assert (server.port, server.url) == (port, f"zookeeper://127.0.0.1:{port}")
            wait_until(lambda: client.connected, "the client is connected again")
            assert client.get("/kept")[0] == b"yes"
        finally:
            client.stop()
            client.close()
    assert not folder.exists()


def test_it_ends_with_its_owner() -> None:
    """Even when the owner is killed, no Java process is left running."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = owner.stdout.readline().strip()
        assert is_locked(Path(folder) / "server.lock")
        owner.kill()
    wait_until(lambda: not is_locked(Path(folder) / "server.lock"), "the server has ended")
