"""Fixtures shared by the tests of the application with a real broker."""

from __future__ import annotations

import pytest

from penstock.core.client.client_settings import ClientSettings


@pytest.fixture
def client(settings: ClientSettings) -> ClientSettings:
    """Return the client settings, under a name that a test can use beside its shipper's settings."""
    return settings
