"""A query can always be stopped, and one that cannot reach its brokers ends on its own in bounded time."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.cluster import LocalKafka
from tests.spark.streaming import Flow, expect
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

NOBODY = SimpleNamespace(bootstrap="127.0.0.1:1")  # refuses at once
#: A stop takes less than a second; a query that is not stopped runs until our own deadline, after a minute.
STOP_WITHIN_S = 20.0


def is_ours(pid: int) -> bool:
    """Return whether a process descends from this one, because others run Spark on this computer too."""
    while pid > 1:
        if pid == os.getpid():
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def list_planners() -> set[int]:
    """Return the Python processes in which Spark keeps the driver's half of Python streams."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"python_streaming_source_runner" in (folder / "cmdline").read_bytes() and is_ours(
                int(folder.name)
            ):
                found.add(int(folder.name))
        except OSError:
            continue  # ended meanwhile
    return found


def stop_in_time(flow: Flow, planners: set[int]) -> None:
    began = time.monotonic()
    flow.stop()
    assert time.monotonic() - began < STOP_WITHIN_S
    wait_until(lambda: not planners & list_planners(), "the query's Python process is gone", STOP_WITHIN_S)


def test_a_query_with_a_wrong_address_fails_in_bounded_time_and_says_where_it_looked(flow: Flow) -> None:
    """F36: within our own deadline, not the network's."""
    # Its own two seconds, and time for Spark to start the query on a busy computer.
    failed = flow.start("t", on=NOBODY, kafka__default__api__timeout__ms=2000).failure(timeout_s=50)
    assert "127.0.0.1:1" in failed
    assert "[BROKER_TIMEOUT]" in failed or "[BROKER_UNREACHABLE]" in failed


def test_the_last_error_of_a_stream_with_a_wrong_option_is_the_one_that_helps(flow: Flow) -> None:
    """PySpark stops a reader that could not be created, and shows that failure instead."""
    failed = flow.start("t", endingOffsets="latest").failure()
    assert "endingOffsets" in failed
    assert "UnboundLocalError" not in failed


def test_a_query_that_looks_for_its_brokers_in_vain_can_be_stopped(flow: Flow) -> None:
    """B072, F35, F36: before its first batch; the server at the address never answers."""
    others = list_planners()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        flow.start("t", on=SimpleNamespace(bootstrap=f"127.0.0.1:{silent.getsockname()[1]}"))
        connection, _ = silent.accept()  # it has sent its request
        planners = list_planners() - others
        assert planners
        stop_in_time(flow, planners)
        connection.close()


def test_a_query_whose_broker_died_can_be_stopped(flow: Flow, topic: Any) -> None:
    """B072, F35, F36: the query was reading; the broker is killed before the query is stopped."""
    with LocalKafka() as cluster:
        name = topic(on=cluster)
        produce(cluster.bootstrap, name, ["a"])
        others = list_planners()
        flow.start(name, on=cluster, startingOffsets="earliest")
        assert flow.drain() == expect(name, 0, ["a"])
        planners = list_planners() - others
        assert planners
        cluster.brokers[0].kill()
        stop_in_time(flow, planners)
