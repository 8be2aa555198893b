"""What the tests of the console commands share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.console import Run, make_console


@pytest.fixture
def penstock(kafka: Any, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with the shared broker."""
    return make_console(capsys, kafka.bootstrap)
