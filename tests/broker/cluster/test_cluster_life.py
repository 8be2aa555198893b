"""How a local cluster starts, ends, fails and comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster import LocalKafka
from penstock.cluster.processes.owned_process import is_locked
from penstock.core.errors import ClusterError
from tests.support.waiting import wait_until


def make_topic(kafka: LocalKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(timeout=60)


def write(kafka: LocalKafka, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 100_000_000})
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failures == []


def count(kafka: LocalKafka, topic: str) -> int:
    """Return how many records the topic has, or -1 while its partition has no leader after a restart."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "count"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        return int(high - low)
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION  # noqa: PT017
        return -1
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def own() -> Iterator[LocalKafka]:
    """Start a broker that these tests may stop."""
    with LocalKafka() as cluster:
        make_topic(cluster, "kept")
        yield cluster


@pytest.mark.kafka
def test_start_returns_at_once_and_the_readiness_check_tells_when(own: LocalKafka) -> None:
    """A4: a broker starts in the background; only a real answer makes it ready."""
    broker = own.brokers[0]
    broker.stop()
    assert not own.is_ready()
    broker.start(wait=False)
    assert broker.is_alive
    assert not broker.is_ready()  # no JVM answers this soon
    own.wait_until_ready()
    assert own.is_ready()


@pytest.mark.kafka
def test_a_killed_broker_comes_back_with_its_port_and_data(own: LocalKafka) -> None:
    wait_until(lambda: count(own, "kept") >= 0, "the topic has a leader")
    before, port = count(own, "kept"), own.brokers[0].port
    write(own, "kept", b"x")
    own.brokers[0].kill()
    assert not own.brokers[0].is_alive
    own.brokers[0].start()
    assert own.brokers[0].port == port
    wait_until(lambda: count(own, "kept") == before + 1, "the record is there")


@pytest.mark.kafka
def test_a_paused_broker_is_silent_and_a_resumed_one_answers(own: LocalKafka) -> None:
    broker = own.brokers[0]
    broker.pause()
    try:
        assert broker.is_alive
        assert not broker.is_ready()
    finally:
        broker.resume()
    wait_until(broker.is_ready, "the broker answers after its pause")


@pytest.mark.kafka
def test_a_message_of_64_mib_is_taken(own: LocalKafka) -> None:
    wait_until(lambda: count(own, "kept") >= 0, "the topic has a leader")
    before = count(own, "kept")
    write(own, "kept", b"\0" * (64 * 1024 * 1024))
    assert count(own, "kept") == before + 1


@pytest.mark.kafka
def test_a_running_broker_cannot_be_started_twice_on_its_folder(own: LocalKafka) -> None:
    with pytest.raises(ClusterError, match="DATA_DIR_IN_USE"):
        own.brokers[0].start()
    assert own.is_ready()


@pytest.mark.kafka
def test_the_brokers_process_listens_on_loopback_only(own: LocalKafka) -> None:
    """S35: the evidence is what the kernel reports about the process, not what its settings say."""
    addresses = listening_addresses(own.brokers[0].pid or 0)
    assert len(addresses) >= 3
    # 127.0.0.1 as the kernel prints it, alone or inside an IPv6 address
    assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def listening_addresses(pid: int) -> list[str]:
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
        except FileNotFoundError:
            continue  # closed since it was listed; one that listens stays open
        if match:
            sockets.add(match[1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:  # 0A: listening
                found.append(fields[1].split(":")[0])
    return found


@pytest.mark.kafka
def test_a_broken_setting_fails_with_the_end_of_the_log() -> None:
    with pytest.raises(ClusterError) as caught, LocalKafka(broker_settings={"log.retention.ms": "soon"}):
        pass
    assert caught.value.condition == "BROKER_DID_NOT_START"
    assert "log.retention.ms" in str(caught.value)
    assert "soon" in str(caught.value)


@pytest.mark.kafka
def test_a_named_folder_keeps_its_data_and_is_used_by_one_cluster_at_a_time(tmp_path: Path) -> None:
    with LocalKafka(data_dir=tmp_path / "data") as first:
        make_topic(first, "kept")
        write(first, "kept", b"x")
        with pytest.raises(ClusterError, match="DATA_DIR_IN_USE"):
            LocalKafka(data_dir=tmp_path / "data").start()
        cluster_id = first.cluster_id
    with LocalKafka(data_dir=tmp_path / "data") as again:
        assert again.cluster_id == cluster_id
        wait_until(lambda: count(again, "kept") == 1, "the record is there")
    with pytest.raises(ClusterError, match="DATA_DIR_OF_OTHER_CLUSTER"):
        LocalKafka(3, data_dir=tmp_path / "data").start()


OWNER = """
import sys, threading
from penstock.cluster import LocalKafka
kafka = LocalKafka()
starter = threading.Thread(target=kafka.start)  # the thread that starts it ends; the broker must not
starter.start()
starter.join()
print(kafka.brokers[0].pid, kafka.data_dir, kafka.is_ready(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.kafka
@pytest.mark.parametrize("end", ["killed", "exits"])
def test_a_broker_ends_with_its_owner(end: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        pid, folder, ready = owner.stdout.readline().split()
        assert ready == "True"
        lock = Path(folder) / "node-1" / "server.lock"
        assert is_locked(lock)
        if end == "killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.communicate("\n", timeout=60)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the broker ends with its owner")
    assert not is_locked(lock)
    if end == "killed":
        from penstock.cluster.kafka.local_kafka import TEMP_PREFIX
        from penstock.cluster.processes.owned_folders import sweep_abandoned

        sweep_abandoned(TEMP_PREFIX)  # what the next start does first
    assert not Path(folder).exists()


def test_a_sweep_leaves_folders_that_are_in_use_or_not_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cluster.kafka.local_kafka import TEMP_PREFIX
    from penstock.cluster.processes.owned_folders import lock_as_owner, sweep_abandoned

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used, abandoned, fresh = (tmp_path / f"penstock-kafka-{name}" for name in ("used", "abandoned", "fresh"))
    for folder in (used, abandoned, fresh):
        folder.mkdir()
    lock = lock_as_owner(used)
    os.close(lock_as_owner(abandoned))
    sweep_abandoned(TEMP_PREFIX)
    assert used.exists()
    assert fresh.exists()  # about to be locked by its owner
    assert not abandoned.exists()
    os.close(lock)


def test_a_port_that_answers_but_is_no_broker_is_not_ready() -> None:
    from penstock.cluster.kafka.broker_probe import ask_cluster

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(OSError):
        ask_cluster(listener.getsockname()[1], timeout_s=0.2)
