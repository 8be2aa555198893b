"""Fixtures shared by the tests of the application."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import make_database


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return the place for a run's results, with no results so far."""
    return make_database(tmp_path / "results.db")
