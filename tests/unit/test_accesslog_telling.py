"""Alerts go from the database to a webhook: those that are new, each at least once, old ones to nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.apps.accesslog.monitoring.alerts import Webhook
from penstock.apps.accesslog.monitoring.telling import TOLD, AlertTeller
from penstock.apps.accesslog.stream.tables import create_tables
from penstock.core.places import Place, parse_place
from penstock.stores.sql.sessions import Database
from tests.filling import wait_until


class Receiver:
    """A server that notes the ids of what it is told."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        ids = self.ids

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                ids.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["id"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.webhook = Webhook(f"http://127.0.0.1:{self._server.server_port}/hook")
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


def write_alert(place: Place, alert_id: str, closed_at: str | None = None) -> None:
    values = [alert_id, "rate_spike", "www", "2026-01-02T00:00:00+00:00", closed_at, 90.0, 30.0, 95.0, 7.0, 0]
    Database(place).run(
        lambda session: session.execute(
            f"INSERT OR REPLACE INTO accesslog_alerts VALUES ({session.grammar.marks(len(values))})", values
        ),
        writes=True,
    )


def read_told(place: Place) -> list[str]:
    rows = Database(place).run(lambda session: session.execute(f"SELECT event_id FROM {TOLD}"))
    return sorted(row[0] for row in rows)


def test_an_alert_is_told_when_it_opens_and_when_it_closes_and_not_again(
    tmp_path: Path, receiver: Receiver
) -> None:
    place = parse_place(str(tmp_path / "results.db"))
    create_tables(place)
    write_alert(place, "old")
    with closing(AlertTeller(place, receiver.webhook)) as teller:
        assert teller.tell() == 0
        write_alert(place, "new")
        assert teller.tell() == 1
        assert teller.tell() == 0
        wait_until(lambda: "new-opened" in read_told(place), "it was noted")
    write_alert(place, "new", "2026-01-02T00:01:00+00:00")
    with closing(AlertTeller(place, receiver.webhook)) as teller:
        assert teller.tell() == 1
        wait_until(lambda: "new-closed" in read_told(place), "it was noted")
    assert receiver.ids == ["new-opened", "new-closed"]
    assert read_told(place) == ["new-closed", "new-opened", "old-opened"]
