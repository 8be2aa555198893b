"""A schema registry on this computer, for tests and demonstrations: Confluent's protocol, in memory.

It registers and returns Avro, JSON and Protobuf schemas (Protobuf ones as base64 file descriptors, also for
`?format=serialized`), supports references between them, can require a login, and can fail on demand. It does
not check compatibility.

>>> with RegistryServer() as registry:
...     registry.register("orders-value", '"string"')
1
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class RegistryServer:
    """A server that runs inside `with`. `basic_auth` is `name:password`; `tls` a server context for https.

    `requests` lists the paths asked for. If `fail_with` is set, it is the status of every answer. `lagging`
    says how many times an id is answered as unknown, as by a replica that has not learned of it yet.
    `before_answer` is called before each answer. `connections` counts the connections made. Ids start at
    `first_id`.
    """

    def __init__(
        self, *, basic_auth: str | None = None, tls: ssl.SSLContext | None = None, first_id: int = 1
    ) -> None:
        self.requests: list[str] = []
        self.fail_with: int | None = None
        self.lagging: dict[int, int] = {}
        self.before_answer: Callable[[], None] = lambda: None
        self._first_id = first_id
        self._basic_auth = basic_auth
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._tls = tls is not None
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._server.server_address[1]}"

    @property
    def connections(self) -> int:
        return self._server.connections

    def hang_up(self) -> None:
        """Close every open connection, as a server does with idle ones."""
        self._server.hang_up()

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join(timeout=10)

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: Iterable[Mapping[str, object]] = (),
    ) -> int:
        """Store a schema as the subject's newest version; return its id. Equal schemas share an id."""
        entry: dict[str, Any] = {
            "schemaType": kind, "schema": schema, "references": [dict(each) for each in references],
        }  # fmt: skip
        with self._lock:
            if entry not in self._schemas:
                self._schemas.append(entry)
            schema_id = self._schemas.index(entry) + self._first_id
            versions = self._subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
            return schema_id

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Return the answer to a GET: a status and a document."""
        self.requests.append(path)
        self.before_answer()
        if self.fail_with is not None:
            return self.fail_with, {"error_code": 50001, "message": "told to fail"}
        if self._basic_auth is not None:
            expected = base64.b64encode(self._basic_auth.encode()).decode()
            if authorization != f"Basic {expected}":
                return 401, {"error_code": 401, "message": "login needed"}
        parts = [urllib.parse.unquote(each) for each in path.partition("?")[0].strip("/").split("/")]
        with self._lock:
            if parts[:2] == ["schemas", "ids"] and len(parts) == 3:
                return self._answer_id(parts[2])
            if parts[0] == "subjects" and len(parts) == 4 and parts[2] == "versions":
                return self._answer_version(parts[1], parts[3])
        return 404, {"error_code": 404, "message": "no such resource"}

    def _answer_id(self, text: str) -> tuple[int, dict[str, Any]]:
        number = int(text) - self._first_id if text.isdecimal() else -1
        lag = self.lagging.get(number + self._first_id, 0)
        if lag:
            self.lagging[number + self._first_id] = lag - 1
        elif 0 <= number < len(self._schemas):
            return 200, dict(self._schemas[number])
        return 404, {"error_code": 40403, "message": "schema not found"}

    def _answer_version(self, subject: str, text: str) -> tuple[int, dict[str, Any]]:
        versions = self._subjects.get(subject)
        if not versions:
            return 404, {"error_code": 40401, "message": "subject not found"}
        version = len(versions) if text == "latest" else int(text) if text.isdecimal() else 0
        if not 1 <= version <= len(versions):
            return 404, {"error_code": 40402, "message": "version not found"}
        schema_id = versions[version - 1]
        return 200, {
            "subject": subject, "version": version, "id": schema_id,
            **self._schemas[schema_id - self._first_id],
        }  # fmt: skip


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections = 0
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a client that leaves in the middle of a request."""


def _handler(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10
        protocol_version = "HTTP/1.1"  # connections are kept
        disable_nagle_algorithm = True  # or the second piece of an answer waits for the client

        def do_GET(self) -> None:
            self._send(*registry.answer(self.path, self.headers.get("Authorization")))

        def do_POST(self) -> None:
            parts = self.path.strip("/").split("/")
            size = int(self.headers.get("Content-Length") or 0)
            try:
                body = json.loads(self.rfile.read(min(size, 1 << 24)))
                schema = body["schema"]
            except (ValueError, KeyError, TypeError):
                self._send(422, {"error_code": 42201, "message": "no schema"})
                return
            if len(parts) != 3 or parts[0] != "subjects" or parts[2] != "versions":
                self._send(404, {"error_code": 404, "message": "no such resource"})
                return
            subject = urllib.parse.unquote(parts[1])
            kind, references = body.get("schemaType", "AVRO"), body.get("references", ())
            self._send(200, {"id": registry.register(subject, schema, kind, references)})

        def _send(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            if status in (301, 302, 307):
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing: a library does not write to the terminal."""

    return Handler
