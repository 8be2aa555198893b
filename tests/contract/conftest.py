"""The two worlds of the contract suite."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.worlds import KafkaWorld, MemoryWorld, World


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def world(request: pytest.FixtureRequest) -> World:
    """A log to test: in memory, or on a real broker."""
    if request.param == "memory":
        return MemoryWorld()
    cluster: Any = request.getfixturevalue("kafka")
    return KafkaWorld(cluster.bootstrap)
