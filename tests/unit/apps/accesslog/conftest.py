"""What the tests of the application share."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import make_database


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where the results of a run are, none so far."""
    return make_database(tmp_path / "results.db")
