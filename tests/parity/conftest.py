"""Fixtures shared by the parity tests: their topics, created once per session."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.parity.topics import TopicWriter


@dataclass(frozen=True)
class World:
    """Where the topics are, and how their names begin."""

    bootstrap: str
    prefix: str

    def name(self, text: str) -> str:
        return text.replace("~", self.prefix)


@pytest.fixture(scope="session")
def world(kafka: Any) -> Iterator[World]:
    prefix = f"parity{secrets.token_hex(3)}-"
    writer = TopicWriter(kafka.bootstrap, prefix)
    try:
        writer.write_all()
        yield World(kafka.bootstrap, prefix)
    finally:
        writer.close()
