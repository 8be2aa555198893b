"""What the tests with a real broker share."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from tests.support.kafka.client_settings import settings_of


@pytest.fixture
def settings(kafka: Any) -> ClientSettings:
    """A client of the shared broker."""
    return settings_of(kafka.bootstrap)


@pytest.fixture
def group() -> str:
    """The name of a consumer group nobody else has."""
    return f"group-{secrets.token_hex(4)}"
