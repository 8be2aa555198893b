"""Alerts go from the database to a webhook: new ones at least once each, old ones never."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.apps.accesslog.monitoring.alert_delivery import TOLD, AlertSender
from penstock.apps.accesslog.monitoring.alert_webhook import Webhook
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.cli.accesslog.run_outputs import finish, list_troubles, make_webhook_output
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.support.accesslog.decisions_database import make_news
from tests.support.waiting import wait_until


class Receiver:
    """A server that records the ids it receives. With `is_away` it accepts nothing."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.is_away = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event_id = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["id"]
                if not receiver.is_away:
                    receiver.ids.append(event_id)
                self.send_response(503 if receiver.is_away else 204)
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                """Log nothing."""

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
    with closing(AlertSender(place, receiver.webhook)) as sender:
        assert sender.send() == 0
        write_alert(place, "new")
        assert sender.send() == 1
        assert sender.send() == 0
        wait_until(lambda: "new-opened" in read_told(place), "it was noted")
    write_alert(place, "new", "2026-01-02T00:01:00+00:00")
    with closing(AlertSender(place, receiver.webhook)) as sender:
        assert sender.send() == 1
        wait_until(lambda: "new-closed" in read_told(place), "it was noted")
    assert receiver.ids == ["new-opened", "new-closed"]
    assert read_told(place) == ["new-closed", "new-opened", "old-opened"]


def test_a_receiver_that_takes_nothing_is_in_the_live_line_and_in_the_exit_code(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    place = parse_place(str(tmp_path / "results.db"))
    create_tables(place)
    receiver.is_away = True
    with closing(AlertSender(place, receiver.webhook, patience_s=0.1)) as sender:
        output = make_webhook_output(sender)
        write_alert(place, "new")

        def follow() -> list[str]:
            output.follow(make_news())
            return list_troubles([output])

        told = ["webhook not up to date [WEBHOOK_NOT_DELIVERED]"]
        wait_until(lambda: follow() == told, "the live line names it")
        receiver.is_away = False
        wait_until(lambda: follow() == [], "it has caught up")
        receiver.is_away = True
        write_alert(place, "new", "2026-01-02T00:01:00+00:00")
        output.follow(make_news(attempts=2))
        assert finish([output]) == 1
    stamped = [line.partition(" ") for line in capsys.readouterr().err.splitlines()]
    assert all(datetime.fromisoformat(when).tzinfo for when, _, _ in stamped)
    complaints = [words for _, _, words in stamped]
    assert complaints[0].startswith("[WEBHOOK_NOT_DELIVERED] The webhook http://127.0.0.1:")
    assert "status 503" in complaints[0]
    assert "/hook" not in complaints[0]
    assert complaints[1] == "The webhook: up to date again."
    assert complaints[-1].startswith("The run ends with webhook not up to date [WEBHOOK_NOT_DELIVERED]")
    assert receiver.ids == ["new-opened"]
    with closing(AlertSender(place, receiver.webhook)) as sender:
        output = make_webhook_output(sender)
        receiver.is_away = False
        output.follow(make_news())
        assert finish([output]) == 0
    assert receiver.ids == ["new-opened", "new-closed"]
