"""`penstock cluster` as seen from a shell: processes, exit codes and printed lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cluster.kafka.broker_probe import ask_cluster
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.cluster.processes.owned_process import is_locked
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from tests.support.waiting import stop_process, wait_until

pytestmark = pytest.mark.kafka

COMMAND = [sys.executable, "-m", "penstock.cli", "cluster"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a separate state folder, and bring down whatever a failed test leaves running in it."""
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    yield tmp_path
    subprocess.run([*COMMAND, "down"], check=False, capture_output=True, timeout=120)


def penstock(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_up_status_logs_and_down_from_a_shell(state: Path) -> None:
    """A4: one command starts a broker in the background that outlives it; one command ends it."""
    assert "is down" in penstock("status")
    (port,) = find_free_ports(1)
    assert f"is up: 127.0.0.1:{port}" in penstock("up", "--port", str(port), "--heap-mb", "512")
    assert ask_cluster(port).broker_ids == {1}  # the command has ended, the broker has not

    # The other commands find it without being told.
    topics = [*COMMAND[:-1], "topics"]
    created = subprocess.run(
        [*topics, "create", "found"], capture_output=True, text=True, timeout=60, check=True
    )
    assert created.stdout == "Created topic found.\n"

    assert f"is already up: 127.0.0.1:{port}" in penstock("up")
    assert "[CLUSTER_UP_OTHERWISE]" in penstock("up", "--brokers", "3", code=1)

    written = json.loads((state / "clusters" / "default.json").read_text())
    assert written["version"] == 2
    pid = written["brokers"][0]["pid"]
    assert re.search(rf"^1 +{pid} +{port} +ready$", penstock("status"), re.MULTILINE)
    assert os.getsid(pid) == pid  # a session of its own: closing the terminal does not reach it

    shown = penstock("logs", "--lines", "5").splitlines()
    assert len(shown) == 5
    assert all(line.startswith("1| ") for line in shown)
    assert "[NO_SUCH_BROKER]" in penstock("logs", "--broker", "7", code=1)

    log = Path(written["brokers"][0]["folder"]) / "broker.log"
    follow_a_new_line(log)

    stop_process(pid)  # a broker that hangs is alive but not ready
    assert "running, not ready" in penstock("status")
    os.kill(pid, signal.SIGCONT)

    assert "[PORT_TAKEN]" in (taken := penstock("up", "--name", "other", "--port", str(port), code=1))
    assert "penstock cluster down --name default" in taken

    assert "is down" in penstock("down")
    assert not is_locked(log.parent / "server.lock")
    assert re.search(r"^1\| .*INFO", last := penstock("logs"), re.MULTILINE)
    assert "is down. These are its last lines" in last
    assert "was not running" in penstock("down")
    assert "is down" in penstock("status")
    assert (state / "data" / "default").exists()
    penstock("down", "--delete-data")
    assert not (state / "data" / "default").exists()
    assert "[LOGS_REMOVED]" in penstock("logs", code=1)


def follow_a_new_line(log: Path) -> None:
    """Check that what is written to the log while `--follow` runs is shown, made harmless."""
    following = subprocess.Popen(
        [*COMMAND, "logs", "--lines", "1", "--follow"], stdout=subprocess.PIPE, text=True
    )
    with following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith("1| ")
        with log.open("a") as broker:
            broker.write("hostile \x1b[31m line\n")
        while "hostile" not in (line := following.stdout.readline()):
            assert line, "the log was not followed"
        assert line == "1| hostile \\x1b[31m line\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130


def test_a_signal_while_a_cluster_starts_leaves_no_broker_that_nobody_knows(state: Path) -> None:
    """`down` finds only clusters that are written down, and that happens when they are up."""
    (port,) = find_free_ports(1)
    starting = subprocess.Popen(
        [*COMMAND, "up", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lock = state / "data" / "default" / "node-1" / "server.lock"
    with starting:
        try:
            wait_until(lambda: lock.exists() and is_locked(lock), "the broker is being started")
            starting.send_signal(signal.SIGTERM)
            told, _ = starting.communicate(timeout=120)
        finally:
            starting.kill()
    assert starting.returncode == 128 + signal.SIGTERM, told
    assert "Traceback" not in told
    assert not is_locked(lock)
    assert not (state / "clusters" / "default.json").exists()


def test_a_process_id_that_now_belongs_to_somebody_else_is_left_alone(state: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        node = state / "data" / "default" / "node-1"
        node.mkdir(parents=True)
        (node / "server.lock").touch()
        broker = {"node_id": 1, "pid": stranger.pid, "port": 20001, "folder": str(node)}
        known = {"version": 1, "name": "default", "data_dir": str(node.parent), "brokers": [broker]}
        (state / "clusters").mkdir()
        (state / "clusters" / "default.json").write_text(json.dumps(known))
        assert "stopped" in penstock("status")
        assert "was not running" in penstock("down")
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.sql
@pytest.mark.zookeeper
def test_one_command_starts_all_servers_and_one_ends_them(state: Path) -> None:
    """Kafka, PostgreSQL, MariaDB and ZooKeeper are used by their addresses; `down` leaves nothing behind."""
    (port,) = find_free_ports(1)
    assert "[NO_SUCH_SERVER]" in penstock("up", "--with", "oracle", code=1)
    assert not (state / "clusters" / "default.json").exists()
    kinds = ["postgres", "mariadb", "zookeeper"]
    told = penstock("up", "--port", str(port), "--heap-mb", "512", "--with", ",".join(kinds))
    assert f"is up: 127.0.0.1:{port}" in told
    shown = json.loads(penstock("status", "--json"))
    assert [(each["kind"], each["state"]) for each in shown["servers"]] == [(kind, "ready") for kind in kinds]
    assert all(f"{each['kind']}: {each['url']}" in told for each in shown["servers"])
    file = state / "clusters" / "default.json"
    assert file.stat().st_mode & 0o077 == 0  # it contains passwords
    position = StreamPosition({TopicPartition("t", 0): 5})
    for each in shown["servers"]:
        address = each["url"] + ("/shop" if each["kind"] == "zookeeper" else "")
        store = open_offset_store(address)
        store.save("s", position)
        assert store.load("s") == position
        store.close()

    again = json.loads(penstock("up", "--json", "--with", "zookeeper"))
    assert again["servers"] == shown["servers"]
    dead = shown["servers"][2]
    os.kill(dead["pid"], signal.SIGKILL)
    folders = [Path(each["folder"]) for each in json.loads(file.read_text())["servers"]]
    wait_until(lambda: not is_locked(folders[2] / "server.lock"), "ZooKeeper is dead")
    assert "zookeeper, process" in penstock("status")
    anew = json.loads(penstock("up", "--json", "--with", "zookeeper"))["servers"]
    assert anew[:2] == shown["servers"][:2]
    assert anew[2]["state"] == "ready"
    folders.append(Path(json.loads(file.read_text())["servers"][2]["folder"]))

    assert json.loads(penstock("down", "--json")) == {"version": 1, "cluster": "default", "is_up": False}
    assert not any(is_locked(folder / "server.lock") for folder in folders)
    assert not any(folder.exists() for folder in folders)
