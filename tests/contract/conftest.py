"""The worlds that the contract suite runs in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.worlds import KafkaWorld, MemoryWorld, QueueWorld, World

_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.fixture(params=["memory", _KAFKA])
def world(request: pytest.FixtureRequest) -> World:
    """Return a log to test: in memory, or on a real broker."""
    return _open(request)


@pytest.fixture(params=["memory", _KAFKA, "own queue"])
def any_world(request: pytest.FixtureRequest) -> World:
    """Return a log to test what every queue can do.

    This includes the example of a queue of your own, which has no transactions, no headers and no topics.
    """
    return _open(request)


def _open(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    if request.param == "own queue":
        return QueueWorld(request.getfixturevalue("tmp_path") / "queue.db")
    cluster: Any = request.getfixturevalue("kafka")
    return KafkaWorld(cluster.bootstrap)
