"""Asks a schema registry (Confluent's protocol) for schemas, by id and by subject.

Rules: an unknown id makes bad rows (`schema_lookups` decides when one counts as unknown). A registry
that does not answer is a retriable error of the task, because the rows are not bad. A 404 counts as
"unknown" only if the registry itself says so; a proxy's 404 would turn a whole topic into bad rows.
Redirects are not followed, because they would carry the password to another host. Proxies named in the
environment are not used.

Why a connection is kept: a batch may hold thousands of different ids, and each question is one round trip. A
connection for each would take several times as long.

>>> parse_urls("http://one:8081, https://two/registry/")
('http://one:8081', 'https://two/registry')
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import urllib.parse
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from penstock.core.client.client_settings import Secret
from penstock.core.errors import DecodeError, OptionError
from penstock.core.options.secret_references import describe_os_error

MAX_ANSWER_BYTES = 8 << 20
MAX_REFERENCES = 100
_UNKNOWN_CODES = (40401, 40402, 40403)  # subject, version, schema


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The settings for a registry. They travel in work orders, so files are read where options are parsed."""

    urls: tuple[str, ...]
    basic_auth: Secret | None = None  # name:password
    bearer_token: Secret | None = None
    ca_pem: str | None = field(default=None, repr=False)
    timeout_ms: int = 10_000
    #: How long after the first question to ask again for an id that was not there.
    second_look_ms: int = 1_000
    #: How many ids of one batch of rows may be unknown before asking stops.
    max_unknown_ids: int = 10_000


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema. `references` are the schemas it uses, each before those that use it, as (name, text)."""

    kind: str  # AVRO, JSON or PROTOBUF
    text: str
    references: tuple[tuple[str, str], ...] = ()
    schema_id: int | None = None


def parse_urls(text: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated text. A `ValueError` says what was expected."""
    urls = tuple(each.strip().rstrip("/") for each in text.split(",") if each.strip())
    for each in urls:
        parts = urllib.parse.urlsplit(each)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("addresses that begin with http:// or https://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("addresses without a login; schemaRegistry.username and .password take it")
    if not urls:
        raise ValueError("at least one address")
    return urls


class Registry:
    """A client of one registry, for one thread. It keeps connections until the end of `with`."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._urls = list(settings.urls)  # the last one to answer comes first
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._tls = _make_tls(settings) if any(url.startswith("https:") for url in settings.urls) else None

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._connections.values():
            each.close()

    def find_schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema | None:
        """Return the schema with this id, None if there is none; with `serialized`, as a file descriptor."""
        answer = self._ask(f"/schemas/ids/{schema_id}{_form(serialized)}")
        return None if answer is None else self._read_schema(answer, serialized)

    def find_latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema | None:
        """Return the newest schema of a subject, None if there is none."""
        answer = self._ask(f"/subjects/{_quote(subject)}/versions/latest{_form(serialized)}")
        return None if answer is None else self._read_schema(answer, serialized)

    def _read_schema(self, answer: dict[str, Any], serialized: bool) -> RegisteredSchema:
        found: dict[str, str] = {}
        self._read_references(answer, serialized, found)
        text = answer.get("schema")
        if not isinstance(text, str):
            raise _unreachable(self._settings, "its answer holds no schema", retriable=False)
        schema_id = answer.get("id")
        return RegisteredSchema(
            str(answer.get("schemaType") or "AVRO").upper(),
            text,
            tuple(found.items()),
            schema_id if isinstance(schema_id, int) else None,
        )

    def _read_references(self, answer: dict[str, Any], serialized: bool, found: dict[str, str]) -> None:
        for each in answer.get("references") or ():
            name, subject, version = str(each.get("name")), str(each.get("subject")), each.get("version")
            if name in found:
                continue
            if len(found) >= MAX_REFERENCES or not isinstance(version, int):
                raise _unreachable(
                    self._settings, f"the references of a schema cannot be used (`{name}`)", retriable=False
                )
            found[name] = ""  # one that leads back to itself is not followed again
            inner = self._ask(f"/subjects/{_quote(subject)}/versions/{version}{_form(serialized)}")
            if inner is None or not isinstance(inner.get("schema"), str):
                raise _unreachable(self._settings, f"a referenced schema is not there (`{subject}`)")
            self._read_references(inner, serialized, found)
            del found[name]
            found[name] = inner["schema"]

    # --- the wire -------------------------------------------------------------------------------------

    def _ask(self, path: str) -> dict[str, Any] | None:
        """Return the answer of the first address that gives one; None if the registry says it is unknown."""
        trouble = "no address was tried"
        for url in list(self._urls):
            try:
                status, body = self._get(url, path)
            except (OSError, http.client.HTTPException) as error:  # refused, timed out, TLS, cut off
                trouble = f"{url}: {_tell(error)}"
                continue
            if status in (401, 403):
                raise DecodeError(
                    "SCHEMA_REGISTRY_REFUSED",
                    f"The schema registry {url} refuses the login (status {status}).",
                    hint="Check schemaRegistry.username and .password, or .token, and its rights.",
                    facts={"url": url, "status": status},
                )
            is_unknown = status == 404 and _error_code(body) in _UNKNOWN_CODES
            if not is_unknown and not 200 <= status < 300:
                trouble = f"{url} answers with status {status}"
                continue
            self._urls.remove(url)
            self._urls.insert(0, url)
            return None if is_unknown else _read_json(self._settings, body)
        raise _unreachable(self._settings, trouble)

    def _get(self, url: str, path: str) -> tuple[int, bytes]:
        connection = self._connections.get(url)
        if connection is not None and connection.sock is not None:
            # A server closes connections that have been idle for long: try a new one, but not
            # after a timeout.
            with contextlib.suppress(ConnectionError, http.client.HTTPException, ssl.SSLError):
                return self._exchange(connection, url, path)
        if connection is None:
            connection = self._connections[url] = self._make_connection(url)
        return self._exchange(connection, url, path)

    def _exchange(self, connection: http.client.HTTPConnection, url: str, path: str) -> tuple[int, bytes]:
        is_whole = False
        try:
            prefix = urllib.parse.urlsplit(url).path
            connection.request("GET", prefix + path, headers=_headers(self._settings))
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES + 1)
            is_whole = answer.isclosed()
            return answer.status, body
        finally:
            if not is_whole:
                connection.close()  # the rest of this answer must not begin the next one

    def _make_connection(self, url: str) -> http.client.HTTPConnection:
        parts, timeout_s = urllib.parse.urlsplit(url), self._settings.timeout_ms / 1000
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(parts.netloc, timeout=timeout_s)


def find_latest(settings: RegistrySettings, subject: str, *, serialized: bool = False) -> RegisteredSchema:
    """Return the newest schema of a subject; raise an `OptionError` if there is none."""
    with Registry(settings) as registry:
        found = registry.find_latest(subject, serialized=serialized)
    if found is None:
        raise OptionError(
            "SCHEMA_NOT_FOUND",
            f"The schema registry has no subject `{subject}`.",
            hint="Check the name (often the topic's and -value or -key), or give the schema itself.",
            facts={"subject": subject},
        )
    return found


def _form(serialized: bool) -> str:
    return "?format=serialized" if serialized else ""


def _quote(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _make_tls(settings: RegistrySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=settings.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise OptionError(
            "TLS_MATERIAL_UNREADABLE",
            "The CA certificates of the schema registry are not readable PEM text.",
            hint="Give certificates between BEGIN CERTIFICATE and END CERTIFICATE lines.",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _headers(settings: RegistrySettings) -> dict[str, str]:
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if settings.basic_auth is not None:
        encoded = base64.b64encode(settings.basic_auth.reveal().encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    elif settings.bearer_token is not None:
        headers["Authorization"] = f"Bearer {settings.bearer_token.reveal()}"
    return headers


def _read_json(settings: RegistrySettings, body: bytes) -> dict[str, Any]:
    if len(body) > MAX_ANSWER_BYTES:
        raise _unreachable(settings, f"its answer exceeds {MAX_ANSWER_BYTES} bytes", retriable=False)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unreachable(settings, "its answer is not a JSON object")
    return found


def _error_code(body: bytes) -> int | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    code = found.get("error_code") if isinstance(found, dict) else None
    return code if isinstance(code, int) else None


def _tell(error: OSError | http.client.HTTPException) -> str:
    """Return what went wrong with an exchange, without quoting an answer that is not HTTP."""
    return describe_os_error(error) if isinstance(error, OSError) else "its answer is cut off or is not HTTP"


def _unreachable(settings: RegistrySettings, trouble: str, *, retriable: bool = True) -> DecodeError:
    return DecodeError(
        "SCHEMA_REGISTRY_UNREACHABLE",
        f"The schema registry does not give a usable answer ({trouble}).",
        hint="Check schemaRegistry.url and the network between the workers and the registry.",
        facts={"urls": list(settings.urls)},
        retriable=retriable,
    )
