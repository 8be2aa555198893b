"""Alerts as log lines and webhooks: one line each, stable ids, no blocking, no visible secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import pickle
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.monitoring import alert_webhook
from penstock.apps.accesslog.monitoring.alert_delivery import TOLD, AlertSender
from penstock.apps.accesslog.monitoring.alert_events import AlertEvent, list_events, log_events, write_line
from penstock.apps.accesslog.monitoring.alert_webhook import Webhook, WebhookSender, write_json
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.options.storage_addresses import parse_place
from tests.support.waiting import wait_until

OPENED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_row(number: int = 1, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "alert_id": f"{number:04x}",
        "kind": "rate_spike",
        "server": "www",
        "opened_at": OPENED,
        "closed_at": None,
        "value": 90.0,
        "expected": 30.0,
        "peak": 120.0,
        "score": 9.0,
        "new_level": False,
    }
    return {**row, **changes}


class Receiver:
    """A real HTTP server on the loopback that answers with the given statuses."""

    def __init__(self, *statuses: int) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self._statuses = list(statuses)
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                receiver.hold.wait(20)
                status = receiver._statuses.pop(0) if receiver._statuses else 200
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def start(*statuses: int) -> Receiver:
        made.append(Receiver(*statuses))
        return made[-1]

    yield start
    for each in made:
        each.close()


@given(st.text())
def test_an_event_is_one_printable_line_whatever_a_server_is_called(server: str) -> None:
    closed = make_row(server=server, closed_at=OPENED + timedelta(seconds=75))
    for event in list_events([closed]):
        line = write_line(event)
        assert line.isascii()
        assert line.isprintable()
        assert line.count(" server=") >= 1
        told = json.loads(write_json(event))
        assert told["server"] == server


def test_an_alert_has_two_events_with_ids_of_their_own_in_order_of_time() -> None:
    rows = [make_row(2, closed_at=OPENED + timedelta(seconds=75)), make_row(1)]
    events = list_events(rows)
    assert [each.event_id for each in events] == ["0001-opened", "0002-opened", "0002-closed"]
    assert events[2].text == "www: it is over after 75 s, furthest off: 120 requests/s"
    assert list_events(rows) == events


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("rate_drop", 0.4, "www: 0.4 requests/s, usually 30"),
        ("error_jump", 0.25, "www: 25.0% errors, usually 3000.0%"),
        ("latency_jump", 250_000.0, "www: 250 ms to answer, usually 0 ms"),
    ],
)
def test_numbers_have_the_unit_of_their_kind(kind: str, value: float, text: str) -> None:
    assert list_events([make_row(kind=kind, value=value)])[0].text == text


def test_opened_is_logged_as_a_warning_and_closed_as_information(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.accesslog.alerts"):
        log_events(list_events([make_row(closed_at=OPENED)]))
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


def test_an_event_is_posted_once_signed_and_with_its_id(receive: Callable[..., Receiver]) -> None:
    receiver, settled = receive(), []
    webhook = Webhook(receiver.url + "/hook?room=7", secret="of the house")
    sender = WebhookSender(webhook, lambda event_id, delivered: settled.append((event_id, delivered)))
    events = list_events([make_row(1), make_row(2)])
    assert sender.offer(events) == 2
    assert sender.close(20)
    assert settled == [("0001-opened", True), ("0002-opened", True)]
    path, headers, body = receiver.requests[0]
    assert path == "/hook?room=7"
    assert headers["Idempotency-Key"] == json.loads(body)["id"] == "0001-opened"
    signature = hmac.new(b"of the house", body, hashlib.sha256).hexdigest()
    assert headers["Penstock-Signature"] == f"sha256={signature}"


def test_what_a_receiver_does_not_take_is_sent_again_with_the_same_id(
    receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receive(503, 429, 200)
    monkeypatch.setattr(alert_webhook, "_BACKOFF_S", (0.01,))
    sender = WebhookSender(Webhook(receiver.url))
    sender.offer(list_events([make_row()]))
    assert sender.close(20)
    assert (sender.delivered, sender.given_up) == (1, 0)
    assert [headers["Idempotency-Key"] for _, headers, _ in receiver.requests] == ["0001-opened"] * 3
    assert len({body for _, _, body in receiver.requests}) == 1


@pytest.mark.parametrize("status", [302, 307, 400, 404, 410])
def test_a_refusal_is_for_good_and_a_redirect_is_not_followed(
    receive: Callable[..., Receiver], status: int
) -> None:
    receiver, settled = receive(status), []
    sender = WebhookSender(Webhook(receiver.url), lambda event_id, delivered: settled.append(delivered))
    sender.offer(list_events([make_row(1), make_row(2)]))
    assert sender.close(20)
    assert settled == [False, True]
    assert len(receiver.requests) == 2


def test_a_receiver_that_hangs_holds_nobody_up_and_what_waits_is_not_settled(
    receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, settled = receive(), []
    receiver.hold.clear()
    for name, value in (("_DEADLINE_S", 0.2), ("_MOST_WAITING", 3), ("_BACKOFF_S", (0.01,))):
        monkeypatch.setattr(alert_webhook, name, value)
    webhook = Webhook(receiver.url)
    sender = WebhookSender(webhook, lambda event_id, delivered: settled.append(event_id))
    events = list_events([make_row(number) for number in range(10)])
    begun = time.monotonic()
    first = sender.offer(events[:1])
    wait_until(lambda: len(receiver.requests) >= 2, "its deadline has passed, and it is tried again")
    taken = sender.offer(events[1:])
    assert (first, taken) == (1, 3)
    assert not sender.close(0.1)
    assert time.monotonic() - begun < 15
    assert settled == []


def test_a_receiver_that_answers_byte_by_byte_is_left_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alert_webhook, "_DEADLINE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with listening.accept()[0] as answering:
                answering.sendall(b"HTTP/1.1 200 OK\r\n")
                while True:
                    try:
                        answering.sendall(b"X")
                    except OSError:
                        return
                    time.sleep(0.02)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(OSError):
            Webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/").post(list_events([make_row()])[0])
        assert time.monotonic() - begun < 10
        thread.join(20)
        assert not thread.is_alive()


def test_an_event_that_nobody_takes_is_given_up_in_the_end(
    unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up for now: it is not settled, and will be offered again."""
    monkeypatch.setattr(alert_webhook, "_GIVE_UP_AFTER_S", 0.05)
    monkeypatch.setattr(alert_webhook, "_BACKOFF_S", (0.02,))
    settled: list[str] = []
    missed: list[str] = []
    sender = WebhookSender(
        Webhook(f"http://127.0.0.1:{unused_port}/"),
        lambda event_id, delivered: settled.append(event_id),
        missed.append,
    )
    sender.offer(list_events([make_row()]))
    assert sender.close(20)
    assert (settled, missed, sender.given_up) == ([], ["0001-opened"], 1)


def test_what_cannot_be_noted_is_noted_later_and_the_next_event_is_sent(
    receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is briefly locked does not end the webhook permanently."""
    receiver, settled, failures = receive(), list[str](), [1, 2]

    def settle(event_id: str, _delivered: bool) -> None:
        if failures:
            failures.pop()
            raise OffsetStoreError("DATABASE_BUSY", "The database is locked.")
        settled.append(event_id)

    monkeypatch.setattr(alert_webhook, "_BACKOFF_S", (0.01,))
    sender = WebhookSender(Webhook(receiver.url), settle)
    sender.offer(list_events([make_row(1)]))
    wait_until(lambda: settled == ["0001-opened"], "it is settled")
    sender.offer(list_events([make_row(2)]))
    assert sender.close(20)
    assert settled == ["0001-opened", "0002-opened"]
    assert len(receiver.requests) == 2


def count_told(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute(f"SELECT COUNT(*) FROM {TOLD}").fetchone()[0])


def test_an_event_that_was_missed_is_told_again_and_what_was_told_is_not_asked_for(
    tmp_path: Path, receive: Callable[..., Receiver]
) -> None:
    receiver = receive()
    place = parse_place(str(tmp_path / "results.db"))
    create_tables(place)
    with closing(AlertSender(place, Webhook(receiver.url))) as sender:
        values = [*make_row(7).values()]
        values[3] = OPENED.isoformat()
        marks = ", ".join("?" * len(values))
        with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
            connection.execute(f"INSERT INTO accesslog_alerts VALUES ({marks})", values)
            connection.commit()
        sender._offered.add("0007-opened")  # as if it were being sent
        assert sender.send() == 0
        sender._offer_again("0007-opened")
        assert sender.send(has_new_alerts=False) == 1
        wait_until(lambda: count_told(tmp_path / "results.db") == 1, "it is noted")
        (tmp_path / "results.db").rename(tmp_path / "elsewhere.db")
        assert sender.send(has_new_alerts=False) == 0
        (tmp_path / "elsewhere.db").rename(tmp_path / "results.db")


@pytest.fixture
def unused_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_address_and_the_secret_of_a_webhook_are_shown_nowhere(
    caplog: pytest.LogCaptureFixture, receive: Callable[..., Receiver]
) -> None:
    receiver = receive(404)
    address = receiver.url.replace("://", "://me:hidden1@") + "/services/hidden2?token=hidden3"
    webhook = Webhook(address, secret="hidden4")
    with caplog.at_level(logging.DEBUG):
        sender = WebhookSender(webhook)
        sender.offer(list_events([make_row()]))
        assert sender.close(20)
    told = repr(webhook) + str(webhook) + caplog.text
    assert "hidden" not in told
    assert "127.0.0.1" in str(webhook)
    assert receiver.requests[0][1]["Authorization"].startswith("Basic ")
    assert pickle.loads(pickle.dumps(webhook)) == webhook


@pytest.mark.parametrize(
    "address",
    ["", "ftp://a/", "file:///etc/passwd", "https://", "http://a b/", "http://a:x/", "http://a/\r\nX: y"],
)
def test_an_address_that_is_none_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(OptionError, match="WEBHOOK_ADDRESS") as caught:
        Webhook(address)
    assert not address or address not in str(caught.value)


def test_an_event_is_a_value() -> None:
    event = list_events([make_row()])[0]
    assert isinstance(event, AlertEvent)
    assert pickle.loads(pickle.dumps(event)) == event
