"""The blocklist over HTTP, for enforcers on other servers: read-only, and hard to misuse.

    GET /v1/blocklist                the whole list as JSON, with its cursor
    GET /v1/blocklist?since=CURSOR   what was added and removed since then
    GET /v1/blocklist.txt            one address or network on each line
    GET /v1/decisions/ID             why: rule, class, and the lines that caused it
    GET /v1/health                   cursor and size of the list, age of the last batch; 503 if it is stale

Rules: nothing can be changed here. An answer repeats nothing of the request. An error is JSON with a
condition. Each request has its own thread and a deadline, so a slow client delays nobody else, and the number
of threads is limited. Answers carry an ETag: a client that already has the list gets 304.

    with EnforcementApi("results.db", Gate.of()) as api:
        api.serve()
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.apps.accesslog.blocking.blocklist_changes import Listed, advance
from penstock.apps.accesslog.blocking.blocklist_formats import render, show_time, write_json
from penstock.apps.accesslog.blocking.blocklists import Ban, Gate
from penstock.apps.accesslog.blocking.decision_records import read_decision, show_moments
from penstock.apps.accesslog.blocking.enforcement_guards import (
    BoundedReader,
    HostNames,
    RateLimit,
    TokenCheck,
    check_token,
    is_loopback,
    parse_listen,
)
from penstock.apps.accesslog.stream.last_batch_time import read_last_batch
from penstock.core.errors import OptionError, PenstockError
from penstock.core.loggers import get_logger
from penstock.core.options.storage_addresses import GivenPlace, Place, as_place
from penstock.stores.sql.connections.sql_sessions import Database

log = get_logger(__name__)

DEFAULT_LISTEN = "127.0.0.1:8477"
LONGEST_LINE_BYTES = 2048
LARGEST_REQUEST_BYTES = 16_384
REQUEST_DEADLINE_S = 10.0
ANSWER_DEADLINE_S = 60.0
MOST_CONNECTIONS = 64
REQUESTS_PER_S = 50.0
#: How old a list may be when it is served. Many enforcers that ask at once cost one query.
FRESH_FOR_S = 0.5
#: A pipeline publishes a batch each second, even an empty one; after this long without any it is down.
STALE_AFTER_S = 180.0

_KEPT_ANSWERS = 64
_DRAIN_S = 1.0
_DRAIN_BYTES = 1 << 18
_ANYWHERE = ("0.0.0.0", "::")
_DECISION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SINCE = re.compile(r"since=([0-9]{1,18})")
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def refuse(status: int, condition: str, what: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an error whose text repeats nothing of the request."""
    return HttpAnswer(status, _JSON, _write({"error": condition, "what": what}), headers)


def _write(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode("ascii") + b"\n"


class _Lists:
    """The current list, which one thread at a time reads for all requests."""

    def __init__(
        self,
        place: Place,
        gate: Gate,
        clock_us: Callable[[], int],
        stale_after_s: float,
        read_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._gate, self._clock_us = place, gate, clock_us
        self._stale_after_s = stale_after_s
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._listed: Listed | None = None
        self._bans: list[Ban] = []
        self._answers: dict[str, HttpAnswer] = {}
        self._read_seconds = read_seconds
        self._batches, self._counted_s = -1, 0.0

    def answer_list(self, kind: str) -> HttpAnswer:
        with self._lock:
            listed = self._read_fresh()
            if kind not in self._answers:
                rendered = render(kind, self._bans, cursor=listed.cursor, now_us=0)
                self._answers[kind] = HttpAnswer(200, _JSON if kind == "json" else _TEXT, rendered.content)
            return self._answers[kind]

    def answer_since(self, cursor: int) -> HttpAnswer:
        with self._lock:
            listed, answers, kind = self._read_fresh(), self._answers, str(cursor)
            if kind in answers:
                return answers[kind]
        answer = HttpAnswer(200, _JSON, write_json(listed.since(cursor, self._gate)))
        with self._lock:
            if len(answers) < _KEPT_ANSWERS:
                answers[kind] = answer  # enforcers that keep up ask with the same cursor
        return answer

    def answer_health(self) -> HttpAnswer:
        """Return the health: status 503 if the list can be read, but no pipeline keeps it up to date."""
        with self._lock:
            cursor, entries = self._read_fresh().cursor, len(self._bans)
        last_ms, batches = Database(self._place).run(read_last_batch)
        now_s = self._read_seconds()
        with self._lock:
            if batches != self._batches:
                self._batches, self._counted_s = batches, now_s
            counted_s = self._counted_s
        age_s = None if last_ms is None else self._clock_us() / 1e6 - last_ms / 1e3
        if age_s is not None and age_s < 0:
            # The computer's clock was set back since. The time without a new batch shows whether the pipeline
            # is running.
            age_s = now_s - counted_s
        is_fresh = age_s is not None and age_s <= self._stale_after_s
        health = {
            "status": "ok" if is_fresh else "stale",
            "cursor": cursor,
            "entries": entries,
            "last_batch_at": None if last_ms is None else show_time(last_ms * 1000),
            "last_batch_age_s": None if age_s is None else round(age_s, 1),
        }
        return HttpAnswer(200 if is_fresh else 503, _JSON, _write(health))

    def _read_fresh(self) -> Listed:
        now_s = time.monotonic()
        if self._listed is None or now_s - self._looked_s >= FRESH_FOR_S:
            listed = advance(self._place, now_us=self._clock_us(), known=self._listed)
            if self._listed is None or listed.cursor != self._listed.cursor:
                self._bans = self._gate.apply(listed.bans)
                self._answers = {}
            self._listed, self._looked_s = listed, now_s
        return self._listed


class EnforcementApi:
    """A server on one address. `serve` answers requests; `start` does so in a new thread, until `close`."""

    def __init__(
        self,
        place: GivenPlace,
        gate: Gate,
        *,
        listen: str = DEFAULT_LISTEN,
        token: str | None = None,
        hosts: Iterable[str] = (),
        requests_per_s: float = REQUESTS_PER_S,
        stale_after_s: float = STALE_AFTER_S,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        place = as_place(place)
        host, port = parse_listen(listen)
        names = [*hosts, *((host,) if host not in _ANYWHERE else ())]
        if is_loopback(host):
            names += ["localhost", "127.0.0.1", "::1"]
        elif token is None:
            raise OptionError(
                "TOKEN_NEEDED",
                f"To listen on {host}, which others can reach, a token is needed.",
                hint="Give a file with a token (`openssl rand -hex 32`), or listen on 127.0.0.1.",
            )
        if not names:
            raise OptionError(
                "HOST_NEEDED",
                f"To listen on {host}, the host names that requests may use are needed.",
                hint="Name them: --host block.example --host 192.0.2.1.",
            )
        self._place = place
        self._lists = _Lists(place, gate, clock_us, stale_after_s)
        self.names = HostNames(names)
        self.tokens = TokenCheck(check_token(token) if token is not None else None)
        self.rate = RateLimit(requests_per_s)
        try:
            self._server = _Server(host, port, self)
        except OSError as error:
            raise OptionError(
                "LISTEN_FAILED",
                f"Cannot listen on {host} port {port}: {error.strerror}.",
                hint="Choose another port, or stop the program that listens there.",
                facts={"host": host, "port": port},
            ) from error
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    def start(self) -> None:
        self._thread = threading.Thread(target=self.serve, name="accesslog-api", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> EnforcementApi:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def answer(self, target: str) -> HttpAnswer:
        """Return the answer to a GET or HEAD request that has passed the guards."""
        path, _, query = target.partition("?")
        if path == "/v1/blocklist" and query:
            since = _SINCE.fullmatch(query)
            if since is None:
                return refuse(400, "QUERY_INVALID", "The only query allowed here is since=CURSOR.")
            return self._lists.answer_since(int(since[1]))
        if query:
            return refuse(400, "QUERY_INVALID", "No query is allowed here.")
        if path in ("/v1/blocklist", "/v1/blocklist.txt"):
            return self._lists.answer_list("text" if path.endswith(".txt") else "json")
        if path == "/v1/health":
            return self._lists.answer_health()
        wanted = path.removeprefix("/v1/decisions/")
        if wanted != path and _DECISION_ID.fullmatch(wanted):
            found = Database(self._place).run(lambda session: read_decision(session, wanted))
            if found is not None:
                return HttpAnswer(200, _JSON, _write(show_moments(found)))
            return refuse(404, "DECISION_NOT_FOUND", "There is no decision with this id.")
        return refuse(404, "NOT_FOUND", "There is nothing here.")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, api: EnforcementApi) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.api = api
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # The parent class looks up the host name of the address, which may take long and is not needed here.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            # A client that takes all connections is not worth an answer.
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.warning("A request for the blocklist was not answered.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        reader = BoundedReader(
            self.connection,
            most_bytes=LARGEST_REQUEST_BYTES,
            deadline_s=time.monotonic() + REQUEST_DEADLINE_S,
        )
        self.rfile = io.BufferedReader(reader)

    def handle(self) -> None:
        """Answer one request, then close: a connection kept open would keep a thread waiting."""
        self.close_connection = True
        self.command, self.requestline, self.request_version = "", "", self.protocol_version
        try:
            self._handle()
        except (TimeoutError, ConnectionError):
            log.debug("A client of the blocklist was too slow or went away.")

    def _handle(self) -> None:
        try:
            self.raw_requestline = self.rfile.readline(LONGEST_LINE_BYTES + 1)
        except LineTooLong:
            self.raw_requestline = b"x" * (LONGEST_LINE_BYTES + 1)
        if not self.raw_requestline:
            return
        if len(self.raw_requestline) > LONGEST_LINE_BYTES:
            self._send(refuse(414, "REQUEST_TOO_LONG", "The first line of the request is too long."))
        # If `parse_request` returns False, it has already answered through `send_error`.
        elif self.parse_request():
            self.close_connection = True
            self._send(self._answer())

    def _answer(self) -> HttpAnswer:
        api = self.server.api
        if not api.rate.admits(self.client_address[0]):
            return refuse(429, "TOO_MANY_REQUESTS", "Ask less often.", ("Retry-After", "1"))
        if self.command not in ("GET", "HEAD"):
            return refuse(
                405, "METHOD_NOT_ALLOWED", "Only GET and HEAD are answered.", ("Allow", "GET, HEAD")
            )
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not api.names.know(hosts[0]):
            return refuse(403, "HOST_NOT_ALLOWED", "This name is not known here.")
        if not api.tokens.admits(self.headers.get("Authorization")):
            return refuse(401, "TOKEN_NEEDED", "A valid token is needed.", ("WWW-Authenticate", "Bearer"))
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            return refuse(413, "BODY_NOT_TAKEN", "A request must not have a body.")
        try:
            answer = api.answer(self.path)
        except PenstockError as error:
            log.warning("The blocklist could not be read: %s", error)
            return refuse(503, error.condition, "The database could not be read.", ("Retry-After", "5"))
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
        headers = (*answer.headers, ("ETag", tag), ("Cache-Control", "no-cache"))
        known = [each.strip().removeprefix("W/") for each in self.headers.get("If-None-Match", "").split(",")]
        if answer.status == 200 and (tag in known or "*" in known):
            return HttpAnswer(304, answer.kind, b"", headers)
        return HttpAnswer(answer.status, answer.kind, answer.body, headers)

    def _send(self, answer: HttpAnswer) -> None:
        self.connection.settimeout(ANSWER_DEADLINE_S)
        # Never HTTP/0.9: an answer without headers could be mistaken for anything.
        self.request_version = self.protocol_version
        self.send_response_only(answer.status, HTTPStatus(answer.status).phrase)
        for name, value in (
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.body))),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("Vary", "Authorization"),
            ("Connection", "close"),
            *answer.headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        if answer.status >= 400:
            self._drain()

    def _drain(self) -> None:
        """Read a little of what is left: closing with unread bytes may cost the client its answer."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline_s = time.monotonic() + _DRAIN_S
        left = _DRAIN_BYTES
        while left > 0 and (remaining_s := deadline_s - time.monotonic()) > 0:
            self.connection.settimeout(remaining_s)
            received = len(self.connection.recv(min(left, 8192)))
            if not received:
                return
            left -= received

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse what the standard library refuses, without its text, which may repeat the request."""
        status = HTTPStatus(code)
        self._send(refuse(code, status.name, f"{status.phrase}."))

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: the library never prints."""
