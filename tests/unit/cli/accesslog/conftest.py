"""What the tests share of what a run says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cli.shared.progress_bar import end_bars


@pytest.fixture(autouse=True)
def _screen() -> Iterator[None]:
    """A live line that a test leaves would be erased in the output of the next one."""
    yield
    end_bars()
