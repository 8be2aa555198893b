"""What the tests of the application with a real broker share."""

from __future__ import annotations

import pytest

from penstock.core.client.client_settings import ClientSettings


@pytest.fixture
def client(settings: ClientSettings) -> ClientSettings:
    """Beside it a test has the settings of its shipper."""
    return settings
