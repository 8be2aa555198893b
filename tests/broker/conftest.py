"""Fixtures shared by the tests with a real broker."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from tests.support.kafka.client_settings import settings_of


@pytest.fixture
def settings(kafka: Any) -> ClientSettings:
    """Return client settings for the shared broker."""
    return settings_of(kafka.bootstrap)


@pytest.fixture
def group() -> str:
    """Return a consumer group name that nobody else uses."""
    return f"group-{secrets.token_hex(4)}"
