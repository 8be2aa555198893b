"""Fixtures shared by the tests that move a stream by hand."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide any local cluster on this computer, which has nothing to do with these streams."""
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
