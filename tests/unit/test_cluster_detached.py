"""Bringing a cluster up or down takes turns, and nobody waits for his turn for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.cluster import detached
from penstock.core.errors import ClusterError
from tests.stopped_holder import hold_lock


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    return tmp_path


def test_a_turn_that_does_not_come_is_an_error_and_not_a_wait_for_ever(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN house rule 7: the other process is stopped while it holds the cluster's lock."""
    monkeypatch.setattr(detached, "TURN_PATIENCE_S", 0.3)
    with hold_lock(state / "clusters" / "mine.lock"):
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"^\[CLUSTER_BUSY\].* mine .*0\.3 s") as caught:
            detached.bring_down("mine")
        assert 0.3 <= time.monotonic() - began < 30
        assert caught.value.retriable
        assert detached.bring_down("another") is False
    assert detached.bring_down("mine") is False
