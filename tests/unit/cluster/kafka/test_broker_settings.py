"""A node's settings: loopback only, a unique id, and internal topics that survive the loss of a broker."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster import LocalKafka
from penstock.cluster.kafka.broker_process import Broker
from penstock.cluster.kafka.broker_settings import ClusterPlan, NodePlan, write_settings
from penstock.cluster.processes.free_ports import HIGHEST_PORT, LOWEST_PORT, demand_free, find_free_ports
from penstock.core.errors import ClusterError, PenstockError
from penstock.core.versions import SUPPORTED

PORTS = {"CLIENT": 20001, "INTERNAL": 20002, "CONTROLLER": 20003, "SSL": 20004}


def settings_of(node_id: int = 1, brokers: int = 1, **plan: object) -> dict[str, str]:
    advertise = plan.pop("advertise", None)
    node = NodePlan(node_id, Path("/data"), PORTS, advertise=advertise)  # type: ignore[arg-type]
    cluster = ClusterPlan(dict.fromkeys(range(1, brokers + 1), 20003), brokers, **plan)  # type: ignore[arg-type]
    return dict(line.split("=", 1) for line in write_settings(node, cluster).splitlines())


def test_every_listener_is_on_the_loopback_address() -> None:
    """S35: nothing outside this computer can reach the brokers."""
    settings = settings_of(listeners={"SSL": "SSL"})
    for key in ("listeners", "advertised.listeners", "controller.quorum.voters"):
        assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", settings[key])) == {"127.0.0.1"}
        assert "//:" not in settings[key]
    assert settings["listeners"].count("://") == 4


def test_each_node_has_its_own_id_and_data_folder() -> None:
    """A2, I33: the id differs on every node and the data folder is named."""
    assert [settings_of(node_id)["node.id"] for node_id in (1, 2, 3)] == ["1", "2", "3"]
    assert settings_of()["log.dirs"] == "/data/data"


@pytest.mark.parametrize(("brokers", "factor", "minimum"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2")])
def test_internal_topics_are_copied_as_far_as_there_are_brokers(
    brokers: int, factor: str, minimum: str
) -> None:
    settings = settings_of(brokers=brokers)
    assert settings["offsets.topic.replication.factor"] == factor
    assert settings["transaction.state.log.replication.factor"] == factor
    assert settings["transaction.state.log.min.isr"] == minimum


def test_what_the_user_sets_wins() -> None:
    assert settings_of(broker_settings={"message.max.bytes": "7"})["message.max.bytes"] == "7"


def test_only_the_client_listener_is_advertised_elsewhere() -> None:
    told = settings_of(advertise=("127.0.0.1", 555))["advertised.listeners"]
    assert told == "CLIENT://127.0.0.1:555,INTERNAL://127.0.0.1:20002"


def test_a_value_cannot_begin_a_new_setting() -> None:
    settings = settings_of(broker_settings={"broker.rack": "a\nnode.id=9"})
    assert settings["node.id"] == "1"
    assert settings["broker.rack"] == "a\\nnode.id=9"


def test_the_brokers_jvm_gets_kafkas_own_guards(tmp_path: Path) -> None:
    """S08: no other settings, addresses or files are fetched, and no code but two login modules is loaded."""
    node = NodePlan(1, tmp_path, PORTS)
    broker = Broker(
        node,
        ClusterPlan({1: 20003}, 1),
        tmp_path,
        heap_mb=64,
        quick_start=True,
        owned=True,
        ready_timeout_s=1.0,
    )
    command = broker._write_files()
    properties = dict(each[2:].split("=", 1) for each in command if each.startswith("-D"))
    kafkas = {name: text for name, text in properties.items() if name.startswith("org.apache.kafka.")}
    assert kafkas == {
        "org.apache.kafka.automatic.config.providers": "none",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": "",
        "org.apache.kafka.sasl.oauthbearer.allowed.files": "",
        "org.apache.kafka.allowed.login.modules": "org.apache.kafka.common.security.plain.PlainLoginModule,"
        "org.apache.kafka.common.security.scram.ScramLoginModule",
    }
    assert command.index("kafka.Kafka") > max(command.index(f"-D{n}={t}") for n, t in kafkas.items())


def test_free_ports_are_different_and_below_the_range_of_outgoing_connections() -> None:
    ports = find_free_ports(20)
    assert len(set(ports)) == 20
    assert all(LOWEST_PORT <= port < HIGHEST_PORT for port in ports)


def test_a_port_that_is_taken_is_named_before_anything_starts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"\[PORT_TAKEN\].* {port} "):
            LocalKafka(ports=[port]).start()


def test_the_holder_of_a_port_is_named_though_other_processes_end_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that ends during the search must not cause a different error."""

    def end_the_others(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def find(path: Any) -> Any:
            if re.fullmatch(r"/proc/\d+/fd/?", str(path)) and f"/{os.getpid()}/" not in str(path):
                raise FileNotFoundError(path)
            return look(path)

        return find

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(os, "scandir", end_the_others(os.scandir))
        monkeypatch.setattr(os, "listdir", end_the_others(os.listdir))
        with pytest.raises(ClusterError, match=rf"\[PORT_TAKEN\].*\(process {os.getpid()}, \S+\)\."):
            demand_free([port])


def test_a_holder_of_a_port_without_a_name_is_told_by_its_number() -> None:
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        ["", "-S", "-c", code],
        executable=os.path.realpath(sys.executable),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as nameless:
        assert nameless.stdout is not None
        port = int(nameless.stdout.readline())
        try:
            with pytest.raises(ClusterError, match=rf"another program \(process {nameless.pid}\)\."):
                demand_free([port])
        finally:
            nameless.kill()


def test_a_wrong_library_version_stops_the_start_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A19: versions are compared before anything is fetched or started."""
    monkeypatch.setitem(SUPPORTED, "pyspark", ("9.0", "9.1"))
    with pytest.raises(PenstockError, match=r"pyspark .* is installed.*pyspark>=9\.0,<9\.1"):
        LocalKafka().start()


@pytest.mark.parametrize("ports", [[0], [70000], [20001, 20001]])
def test_ports_that_cannot_be_are_refused(ports: list[int]) -> None:
    with pytest.raises(ClusterError, match="BAD_PORT"):
        demand_free(ports)


@pytest.mark.parametrize("arguments", [{"brokers": 0}, {"brokers": 3, "ports": [20001]}])
def test_a_cluster_needs_a_broker_and_a_port_for_each(arguments: dict[str, object]) -> None:
    with pytest.raises(ClusterError, match="BAD_CLUSTER_SIZE"):
        LocalKafka(**arguments)  # type: ignore[arg-type]
