"""Fixtures shared by the tests that kill a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase


@pytest.fixture(params=[LocalPostgres, LocalMariaDB], ids=lambda kind: kind.__name__)
def server(request: pytest.FixtureRequest) -> Iterator[LocalDatabase]:
    """Start a server for one test only, because the test kills it."""
    with request.param() as server:
        yield server
