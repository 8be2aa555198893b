"""Fixtures shared by the tests of the console commands."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.console import Run, make_console


@pytest.fixture
def penstock(kafka: Any, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command with the shared broker."""
    return make_console(capsys, kafka.bootstrap)
