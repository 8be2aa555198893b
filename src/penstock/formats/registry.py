"""Asking a schema registry (Confluent's protocol) for schemas, by id and by subject.

Rules: what an id means never changes, so schemas are kept for the life of the process (a bounded number);
that an id is unknown is kept for a minute only, because a producer may be about to register it. An unknown id
makes bad rows, but a registry that does not answer is an error of the task, to be tried again: its rows
are not bad. A 404 counts as "unknown" only when the registry itself says so; a proxy's 404 would turn a whole
topic into bad rows. Redirects are not followed: they would carry the password to another host.

>>> parse_urls("http://one:8081, https://two/registry/")
('http://one:8081', 'https://two/registry')
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import IO, Any

from penstock.core.client import Secret
from penstock.core.errors import DecodeError, OptionError

MAX_ANSWER_BYTES = 8 << 20
MAX_KEPT = 1000
UNKNOWN_KEPT_S = 60.0
MAX_REFERENCES = 100
_UNKNOWN_CODES = (40401, 40402, 40403)  # subject, version, schema


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach a registry; travels in work orders, so files are read where options are parsed."""

    urls: tuple[str, ...]
    basic_auth: Secret | None = None  # name:password
    bearer_token: Secret | None = None
    ca_pem: str | None = field(default=None, repr=False)
    timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema. `references` are the schemas it uses, each before those that use it, as (name, text)."""

    kind: str  # AVRO, JSON or PROTOBUF
    text: str
    references: tuple[tuple[str, str], ...] = ()
    schema_id: int | None = None


def parse_urls(text: str) -> tuple[str, ...]:
    """Addresses from a comma-separated text; a `ValueError` says what is wrong."""
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


class _Kept:
    """Schemas by (settings, id, form), and ids known to be unknown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: OrderedDict[Any, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[Any, float] = OrderedDict()

    def find(self, key: Any, now: float) -> tuple[bool, RegisteredSchema | None]:
        with self._lock:
            if key in self._schemas:
                self._schemas.move_to_end(key)
                return True, self._schemas[key]
            return self._unknown.get(key, -1.0) > now, None

    def keep(self, key: Any, schema: RegisteredSchema | None, now: float) -> None:
        with self._lock:
            if schema is not None:
                self._schemas[key] = schema
                self._unknown.pop(key, None)
            else:
                self._unknown[key] = now + UNKNOWN_KEPT_S
            for each in (self._schemas, self._unknown):
                while len(each) > MAX_KEPT:
                    each.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._schemas.clear()
            self._unknown.clear()


_kept = _Kept()


def forget_schemas() -> None:
    """Drop what this process knows of registries."""
    _kept.clear()


def find_schema(
    settings: RegistrySettings, schema_id: int, *, serialized: bool = False
) -> RegisteredSchema | None:
    """The schema with this id, None when the registry has none. `serialized`: as a file descriptor."""
    key = (settings, schema_id, serialized)
    known, schema = _kept.find(key, time.monotonic())
    if known:
        return schema
    form = "?format=serialized" if serialized else ""
    answer = _ask(settings, f"/schemas/ids/{schema_id}{form}")
    schema = None if answer is None else _read_schema(settings, answer, serialized)
    _kept.keep(key, schema, time.monotonic())
    return schema


def find_latest(settings: RegistrySettings, subject: str, *, serialized: bool = False) -> RegisteredSchema:
    """The newest schema of a subject; an `OptionError` when there is none."""
    form = "?format=serialized" if serialized else ""
    answer = _ask(settings, f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest{form}")
    if answer is None:
        raise OptionError(
            "SCHEMA_NOT_FOUND",
            f"The schema registry has no subject `{subject}`.",
            hint="Check the name (often the topic's and -value or -key), or give the schema itself.",
            facts={"subject": subject},
        )
    return _read_schema(settings, answer, serialized)


def _read_schema(settings: RegistrySettings, answer: dict[str, Any], serialized: bool) -> RegisteredSchema:
    found: dict[str, str] = {}
    _read_references(settings, answer, serialized, found)
    text = answer.get("schema")
    if not isinstance(text, str):
        raise _unreachable(settings, "its answer holds no schema", retriable=False)
    schema_id = answer.get("id")
    return RegisteredSchema(
        str(answer.get("schemaType") or "AVRO").upper(),
        text,
        tuple(found.items()),
        schema_id if isinstance(schema_id, int) else None,
    )


def _read_references(
    settings: RegistrySettings, answer: dict[str, Any], serialized: bool, found: dict[str, str]
) -> None:
    form = "?format=serialized" if serialized else ""
    for each in answer.get("references") or ():
        name, subject, version = str(each.get("name")), str(each.get("subject")), each.get("version")
        if name in found:
            continue
        if len(found) >= MAX_REFERENCES or not isinstance(version, int):
            raise _unreachable(
                settings, f"the references of a schema cannot be used (`{name}`)", retriable=False
            )
        found[name] = ""  # one that leads back to itself is not followed again
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}{form}"
        inner = _ask(settings, path)
        if inner is None or not isinstance(inner.get("schema"), str):
            raise _unreachable(settings, f"a referenced schema is not there (`{subject}`)", retriable=False)
        _read_references(settings, inner, serialized, found)
        del found[name]
        found[name] = inner["schema"]


# --- the wire -----------------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


def _ask(settings: RegistrySettings, path: str) -> dict[str, Any] | None:
    """The answer of the first address that gives one; None when it says that there is no such thing."""
    trouble = "no address was tried"
    opener = _opener(settings)
    for url in settings.urls:
        request = urllib.request.Request(url + path, headers=_headers(settings))
        try:
            with opener.open(request, timeout=settings.timeout_ms / 1000) as answer:
                return _read_json(settings, answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and _error_code(error) in _UNKNOWN_CODES:
                    return None
                if error.code in (401, 403):
                    raise DecodeError(
                        "SCHEMA_REGISTRY_REFUSED",
                        f"The schema registry {url} refuses the login (status {error.code}).",
                        hint="Check schemaRegistry.username and .password, or .token, and its rights.",
                        facts={"url": url, "status": error.code},
                    ) from None
                trouble = f"{url} answers with status {error.code}"
        except (OSError, http.client.HTTPException) as error:  # refused, timed out, TLS, cut off
            reason = getattr(error, "reason", error)
            trouble = f"{url}: {type(reason).__name__}"
    raise _unreachable(settings, trouble)


def _opener(settings: RegistrySettings) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), urllib.request.ProxyHandler({})]
    if any(url.startswith("https:") for url in settings.urls):
        try:
            context = ssl.create_default_context(cadata=settings.ca_pem)
        except (ssl.SSLError, ValueError) as error:
            raise OptionError(
                "TLS_MATERIAL_UNREADABLE",
                "The CA certificates of the schema registry are not readable PEM text.",
                hint="Give certificates between BEGIN CERTIFICATE and END CERTIFICATE lines.",
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _headers(settings: RegistrySettings) -> dict[str, str]:
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if settings.basic_auth is not None:
        encoded = base64.b64encode(settings.basic_auth.reveal().encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    elif settings.bearer_token is not None:
        headers["Authorization"] = f"Bearer {settings.bearer_token.reveal()}"
    return headers


def _read_json(settings: RegistrySettings, answer: IO[bytes]) -> dict[str, Any]:
    body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise _unreachable(settings, f"its answer exceeds {MAX_ANSWER_BYTES} bytes", retriable=False)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unreachable(settings, "its answer is not a JSON object", retriable=False)
    return found


def _error_code(answer: IO[bytes]) -> int | None:
    try:
        found = json.loads(answer.read(65_536))
    except (ValueError, OSError):
        return None
    code = found.get("error_code") if isinstance(found, dict) else None
    return code if isinstance(code, int) else None


def _unreachable(settings: RegistrySettings, trouble: str, *, retriable: bool = True) -> DecodeError:
    return DecodeError(
        "SCHEMA_REGISTRY_UNREACHABLE",
        f"The schema registry gives no usable answer ({trouble}).",
        hint="Check schemaRegistry.url and the network between the workers and the registry.",
        facts={"urls": list(settings.urls)},
        retriable=retriable,
    )
