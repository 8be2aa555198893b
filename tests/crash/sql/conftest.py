"""What the tests share that kill a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase


@pytest.fixture(params=[LocalPostgres, LocalMariaDB], ids=lambda kind: kind.__name__)
def server(request: pytest.FixtureRequest) -> Iterator[LocalDatabase]:
    """One of the test's own, for it is killed."""
    with request.param() as server:
        yield server
