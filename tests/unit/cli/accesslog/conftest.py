"""Fixtures shared by the tests of a run's output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cli.shared.progress_bar import end_bars


@pytest.fixture(autouse=True)
def _screen() -> Iterator[None]:
    """End live lines after each test: one that is left would be erased in the output of the next test."""
    yield
    end_bars()
