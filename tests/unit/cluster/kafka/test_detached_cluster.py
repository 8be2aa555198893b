"""Detached clusters: waiting for a turn is limited, a stopped one keeps its logs, and ports have owners."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.shared.kafka_arguments import add_connection_arguments, gather_settings
from penstock.cluster.kafka import detached_cluster
from penstock.core.errors import ClusterError
from tests.support.stopped_lock_holder import hold_lock


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    return tmp_path


def test_a_turn_that_does_not_come_is_an_error_and_not_a_wait_for_ever(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process is stopped while it holds the cluster's lock."""
    monkeypatch.setattr(detached_cluster, "TURN_PATIENCE_S", 0.3)
    with hold_lock(state / "clusters" / "mine.lock"):
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"^\[CLUSTER_BUSY\].* mine .*0\.3 s") as caught:
            detached_cluster.bring_down("mine")
        assert 0.3 <= time.monotonic() - began < 30
        assert caught.value.retriable
        assert detached_cluster.bring_down("another") is False
    assert detached_cluster.bring_down("mine") is False


_LISTEN = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    input()
"""


@contextmanager
def take_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def write_state(state: Path, name: str, port: int, folder: Path) -> Path:
    """Write the state of a cluster of one broker, as `up` does; return its node's folder."""
    node = folder / "node-1"
    node.mkdir(parents=True)
    (node / "broker.log").write_text("first\nlast \x1b[31m words\n")
    broker = {"node_id": 1, "pid": 1, "port": port, "folder": str(node)}
    known = {"version": 2, "name": name, "data_dir": str(folder), "brokers": [broker], "servers": []}
    (state / "clusters").mkdir(exist_ok=True)
    (state / "clusters" / f"{name}.json").write_text(json.dumps(known))
    return node


def test_a_port_that_another_cluster_of_ours_has_is_told_with_its_name_and_how_to_stop_it(
    state: Path,
) -> None:
    with take_port() as port:
        node = write_state(state, "orders", port, state / "data" / "orders")
        with hold_lock(node / "server.lock"), pytest.raises(ClusterError) as caught:
            detached_cluster.bring_up("mine", ports=[port])
    told = str(caught.value)
    assert told.startswith(f"[PORT_TAKEN] 127.0.0.1 port {port} is taken by Penstock's own cluster orders (")
    assert str(node.parent) in told
    assert "`penstock cluster down --name orders`" in told


def test_a_port_of_a_dead_cluster_is_not_laid_at_its_door(state: Path) -> None:
    """Another program listens where our cluster listened until it died."""
    with take_port() as port:
        write_state(state, "orders", port, state / "data" / "orders")
        with pytest.raises(ClusterError) as caught:
            detached_cluster.bring_up("mine", ports=[port])
    assert "orders" not in str(caught.value)
    assert f"is taken by another program (process {os.getpid()}, python" in str(caught.value)


@pytest.mark.usefixtures("state")
def test_a_port_of_a_kafka_that_no_state_knows_is_told_with_its_folder(tmp_path: Path) -> None:
    """For example, a `quickstart` in another terminal, or a cluster under another PENSTOCK_STATE."""
    command = [sys.executable, "-c", _LISTEN, str(tmp_path / "node-1" / "server.properties")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(ClusterError) as caught:
            detached_cluster.bring_up("mine", ports=[port])
        other.kill()
    assert f"(process {other.pid}, a Kafka in {tmp_path / 'node-1'})" in str(caught.value)


@pytest.mark.parametrize("place", ["own", "named"])
def test_the_last_logs_are_shown_when_a_cluster_is_down(
    state: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = state / "data" / "mine" if place == "own" else tmp_path / "elsewhere"
    write_state(state, "mine", 20_001, folder)
    assert main(["cluster", "down", "--name", "mine"]) == 0
    capsys.readouterr()
    assert main(["cluster", "logs", "--name", "mine", "--lines", "1", "--follow"]) == 0  # and it ends
    shown = capsys.readouterr()
    assert shown.out == "1| last \\x1b[31m words\n"
    assert shown.err == f"Cluster mine is down. These are its last lines; the logs are in {folder}.\n"


def test_logs_that_were_removed_with_the_data_are_told_to_be(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(state, "mine", 20_001, state / "data" / "mine")
    assert main(["cluster", "down", "--name", "mine", "--delete-data"]) == 0
    capsys.readouterr()
    assert main(["cluster", "logs", "--name", "mine"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("[LOGS_REMOVED] Cluster mine is down, and its logs were removed")
    assert "`penstock cluster up --name mine`" in told
    assert "`penstock cluster down --name mine` keeps them" in told
    for name, command in (("never", "penstock cluster up --name never"), ("default", "penstock cluster up")):
        assert main(["cluster", "logs", "--name", name]) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"[CLUSTER_NOT_UP] Cluster {name} is not up and was never brought")
        assert f"`{command}`" in told
    assert detached_cluster.find_all() == []


def test_what_is_kept_of_a_stopped_cluster_has_no_passwords(state: Path) -> None:
    write_state(state, "mine", 20_001, state / "data" / "mine")
    file = state / "clusters" / "mine.json"
    server = {
        "kind": "postgres",
        "pid": 1,
        "port": 20_002,
        "folder": str(state / "pg"),
        "url": "postgresql://u:pw@h",
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"servers": [server]}))
    detached_cluster.bring_down("mine")
    kept = detached_cluster.find_stopped("mine")
    assert kept is not None
    assert kept.servers == ()
    assert not [path for path in (state / "clusters").iterdir() if "pw@h" in path.read_text()]


def test_a_command_says_which_of_several_clusters_it_asks(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    mine = write_state(state, "default", 20_001, state / "data" / "default")
    other = write_state(state, "other", 20_002, state / "data" / "other")
    with hold_lock(mine / "server.lock"):
        assert gather_settings(parser.parse_args([]))["bootstrap.servers"] == "127.0.0.1:20001"
        assert capsys.readouterr().err == ""
        with hold_lock(other / "server.lock"):
            assert gather_settings(parser.parse_args([]))["bootstrap.servers"] == "127.0.0.1:20001"
            assert capsys.readouterr().err == (
                "Using the local cluster default at 127.0.0.1:20001. Also running: other at 127.0.0.1:20002 "
                "(--bootstrap-server chooses).\n"
            )
            gather_settings(parser.parse_args(["--bootstrap-server", "127.0.0.1:20002"]))
            assert capsys.readouterr().err == ""
