"""Posts alert events to a webhook, in a thread of its own.

Rules: a webhook never holds up the pipeline: the queue is bounded, every call has a deadline, and retries
come later. Redirects are not followed. The address is often a secret, so it is never shown in full. Why not
call it where the alert is found: a repeated batch would call it again, and a receiver that hangs would stop
the stream. Send an alert only after it was committed.

>>> str(Webhook("https://hooks.example/secret-path"))
'https://hooks.example/***'
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import queue
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.apps.accesslog.monitoring.alert_events import AlertEvent, write_time
from penstock.core.errors import OptionError, PenstockError
from penstock.core.loggers import get_logger

JSON_VERSION = 1
_LOG = get_logger("penstock.accesslog.alerts")
_BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
_DEADLINE_S, _GIVE_UP_AFTER_S = 10.0, 3_600.0
_MOST_WAITING = 1_000


@dataclass(frozen=True, slots=True)
class Webhook:
    """The address to POST events to. With a `secret`, Penstock-Signature is an HMAC-SHA256 of the body."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        try:
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is not a number
            sound = False
        if not sound or any(ord(each) <= 32 or ord(each) > 126 for each in self.url):
            raise OptionError(
                "WEBHOOK_ADDRESS",
                "The address of the webhook is not a valid http or https URL.",
                hint="Write https, a host and a path. Write a secret address as ${env:NAME}.",
            )

    def __str__(self) -> str:
        """Return scheme, host and port only: the path of a webhook is often its password."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/***"

    def post(self, event: AlertEvent) -> None:
        """Send one event. A `WebhookRefusedError` is permanent; an OSError may be temporary."""
        parts = urllib.parse.urlsplit(self.url)
        body = write_json(event)
        headers = {"Content-Type": "application/json", "Idempotency-Key": event.event_id}
        headers["User-Agent"] = "penstock"
        if parts.username is not None:
            login = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}").encode()
            headers["Authorization"] = "Basic " + base64.b64encode(login).decode()
        if self.secret:
            digest = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
            headers["Penstock-Signature"] = f"sha256={digest}"
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=_DEADLINE_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_DEADLINE_S)
        path = parts.path or "/"
        # The connection's own timeout restarts with every byte; this timer does not.
        too_late = threading.Event()
        end = threading.Timer(_DEADLINE_S, _cut_off, [connection, too_late])
        end.daemon = True
        end.start()
        try:
            connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
            answer = connection.getresponse()
        except http.client.HTTPException as error:
            raise ConnectionError("the answer is not HTTP") from error
        finally:
            end.cancel()
            connection.close()
        if too_late.is_set():
            raise TimeoutError("no complete answer before the deadline")
        if answer.status in (408, 425, 429) or answer.status >= 500:
            raise ConnectionError(f"status {answer.status}")
        if not 200 <= answer.status < 300:
            raise WebhookRefusedError(f"status {answer.status}")


def _cut_off(connection: http.client.HTTPConnection, told: threading.Event) -> None:
    told.set()
    with contextlib.suppress(OSError, AttributeError):  # closed already, or not open yet
        connection.sock.shutdown(socket.SHUT_RDWR)


class WebhookRefusedError(ValueError):
    """The receiver rejected this event; a retry would not help."""


def write_json(event: AlertEvent) -> bytes:
    """Return the JSON body that is posted for an event."""
    content = {
        "version": JSON_VERSION,
        "id": event.event_id,
        "event": event.what,
        "alert_id": event.alert_id,
        "kind": event.kind,
        "server": event.server,
        "opened_at": write_time(event.opened_at),
        "closed_at": write_time(event.closed_at),
        "value": event.value,
        "expected": event.expected,
        "peak": event.peak,
        "text": event.text,
    }
    return json.dumps(content).encode()


class WebhookSender:
    """Sends events in order from a thread of its own; offering one never blocks.

    `settled(event_id, delivered)` is called from that thread when an event need not be sent again. Record it
    then; if that fails, the call is repeated later. `missed(event_id)` is called when an event was not
    accepted for so long that others get their turn; offer it again. Offer the next sender whatever was not
    settled when this one closed.
    """

    def __init__(
        self,
        webhook: Webhook,
        settled: Callable[[str, bool], None] = lambda _event_id, _delivered: None,
        missed: Callable[[str], None] = lambda _event_id: None,
    ) -> None:
        self._webhook = webhook
        self._settled = settled
        self._missed = missed
        self._unsettled: list[tuple[str, bool]] = []
        self._waiting: queue.Queue[AlertEvent | None] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self.delivered = self.given_up = 0
        #: Why the last attempt failed; None while the receiver answers.
        self.trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-webhook", daemon=True)
        self._thread.start()

    def offer(self, events: Iterable[AlertEvent]) -> int:
        """Queue events for sending and return how many found room. Offer the rest again later."""
        taken = 0
        for event in events:
            try:
                self._waiting.put_nowait(event)
            except queue.Full:
                _LOG.warning("the webhook %s is behind; later events wait", self._webhook)
                break
            taken += 1
        return taken

    def close(self, deadline_s: float = 5.0) -> bool:
        """Send what waits, until the deadline; return whether nothing is left."""
        end = time.monotonic() + deadline_s
        try:
            self._waiting.put(None, timeout=deadline_s)  # behind all others
            self._thread.join(max(0.0, end - time.monotonic()))
        except queue.Full:
            pass
        self._closing.set()
        return not self._thread.is_alive() and self._waiting.empty() and not self._unsettled

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                event = self._waiting.get(timeout=_BACKOFF_S[0] if self._unsettled else None)
            except queue.Empty:
                self._settle_all()
                continue
            if event is None:
                self._settle_all()
                return
            self._send(event)

    def _settle(self, event_id: str, delivered: bool) -> None:
        self._unsettled.append((event_id, delivered))
        self._settle_all()

    def _settle_all(self) -> None:
        """Report the outcomes. One that cannot be recorded now, as in a locked database, is retried later."""
        while self._unsettled:
            try:
                self._settled(*self._unsettled[0])
            except PenstockError as error:
                _LOG.warning("the outcome of event %s is recorded later: %s", self._unsettled[0][0], error)
                return
            del self._unsettled[0]

    def _send(self, event: AlertEvent) -> None:
        end = time.monotonic() + _GIVE_UP_AFTER_S
        attempt = 0
        while not self._closing.is_set():
            try:
                self._webhook.post(event)
            except WebhookRefusedError as error:
                self.trouble = None
                _LOG.warning("the webhook %s refused event %s: %s", self._webhook, event.event_id, error)
                self.given_up += 1
                self._settle(event.event_id, False)
                return
            except OSError as error:
                _LOG.info("the webhook %s did not take event %s: %s", self._webhook, event.event_id, error)
                self.trouble = error.strerror or str(error)
                pause_s = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
                attempt += 1
                if time.monotonic() + pause_s > end:
                    _LOG.warning("giving up for now: webhook %s, event %s", self._webhook, event.event_id)
                    self.given_up += 1
                    self._missed(event.event_id)
                    return
                self._closing.wait(pause_s)
            else:
                self.trouble = None
                self.delivered += 1
                self._settle(event.event_id, True)
                return
        # Closing: the event is not settled, so the next sender gets it.
