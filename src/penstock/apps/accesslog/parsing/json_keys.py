"""The keys that JSON access logs use for their fields, as a table for the kernel.

Rules: case, `_`, `-` and `@` in a key do not count: `userAgent`, `User-Agent` and `user_agent` are the same
key. A dot leads into an inner object, and a key may also contain the dot: `{"url": {"path": "/"}}` and
`{"url.path": "/"}`. If a document has several keys of one field, the one with the lowest rank counts, then
the first.

The names are those of nginx's variables, Caddy, Traefik, Envoy, the Elastic schema, Google's load balancers,
and what people write into a `LogFormat` by hand. A key that names its unit has that unit. `duration` and the
like are seconds if they have a fraction and milliseconds if not, or nanoseconds if the key begins with a
capital, as Traefik writes it.

A format may choose: with `json client=source_ip` that key is the client, and no other key is.

>>> read_choices("json client=source_ip"), read_choices("json"), read_choices("combined")
((('client', 'source_ip'),), (), None)
"""

from __future__ import annotations

import functools

import numpy as np

from penstock.apps.accesslog.parsing import json_line_kernel as k
from penstock.apps.accesslog.parsing import line_slots as s
from penstock.core.errors import OptionError
from penstock.kernels.byte_columns import Array

#: Objects that only wrap a log line: their keys count as if they stood outside of them.
WRAPPERS = ("nginx", "apache", "access", "log", "fields", "data", "httplog", "json")
_HEADERS = (
    "request.headers.",
    "headers.",
    "request_",
    "http.request.headers.",
    "http_",
    "request.header.",
    "",
)

# The names of each field, one text for each rank.
_TEXTS: dict[int, tuple[str, ...]] = {
    s.PEER: (
        "remote_addr remote_ip request.remote_ip source.ip source.address httpRequest.remoteIp ClientHost",
        "request.remote_addr ClientAddr client_addr remote_address downstream_remote_address remote_host",
        "client_ip clientip request.client_ip client.ip client.address client remote source_ip src_ip ip "
        "ip_address src address",
    ),
    s.USER: ("remote_user user.name ClientUsername", "user username user_id auth auth_user"),
    s.METHOD: (
        "request_method request.method http.request.method httpRequest.requestMethod",
        "method verb http_method",
    ),
    s.TARGET: (
        "request_uri request.uri url.original httpRequest.requestUrl",
        "uri RequestPath request_url request.url target",
        "url path url.path request.path resource",
    ),
    s.QUERY: ("query_string args url.query request.query query",),
    s.REQUEST: ("request request_line request_first_line first_line",),
    s.PROTOCOL: ("server_protocol request.proto", "protocol proto http_version http.version RequestProtocol"),
    s.VHOST: (
        "vhost virtual_host request.host RequestHost url.domain http_host authority",
        "host server_name domain",
    ),
}
_HEADER_TEXTS: dict[int, tuple[str, ...]] = {
    s.XFF: ("x_forwarded_for", "x_real_ip", "true_client_ip", "cf_connecting_ip"),
    s.AGENT: ("user_agent",),
    s.REFERRER: ("referer", "referrer"),
}
_MORE_TEXTS: dict[int, tuple[str, ...]] = {
    s.XFF: ("xff forwarded_for",),
    s.AGENT: ("user_agent.original httpRequest.userAgent", "agent ua"),
    s.REFERRER: ("http.request.referrer httpRequest.referer",),
}
_TIMES = (
    "time_iso8601 time_local msec StartUTC start_time",
    "time timestamp ts time_stamp",
    "StartLocal date datetime event_time",
)
_STATUSES = (
    "status status_code DownstreamStatus http.response.status_code httpRequest.status response.status",
    "response_code response_status http_status http_status_code response response.status_code code",
)
_SIZES = (
    "body_bytes_sent http.response.body.bytes DownstreamContentSize httpRequest.responseSize",
    "bytes_sent bytes size response_size response_bytes response_length sent_bytes response.size "
    "http.response.bytes",
)
_SECOND_NS = 1_000_000_000
_LATENCIES = {
    _SECOND_NS: "request_time duration_s duration_sec duration_seconds httpRequest.latency",
    1_000_000: "duration_ms response_time_ms latency_ms elapsed_ms request_time_ms time_taken_ms",
    1_000: "duration_us response_time_us latency_us elapsed_us request_time_us time_us",
    1: "duration_ns event.duration latency_ns",
    k.GUESS: "duration latency elapsed time_taken response_time took request_duration",
}


def plain_name(name: str) -> str:
    """Return a key in lower case, without the characters that do not count."""
    return "".join(c for c in name.lower() if c not in "_-@")


#: Fields whose key a format may choose, with their kind and slot.
FIELDS: dict[str, tuple[int, int]] = {
    "client": (k.AS_TEXT, s.PEER),
    "forwarded": (k.AS_TEXT, s.XFF),
    "user": (k.AS_TEXT, s.USER),
    "method": (k.AS_TEXT, s.METHOD),
    "target": (k.AS_TEXT, s.TARGET),
    "query": (k.AS_TEXT, s.QUERY),
    "request": (k.AS_TEXT, s.REQUEST),
    "protocol": (k.AS_TEXT, s.PROTOCOL),
    "vhost": (k.AS_TEXT, s.VHOST),
    "agent": (k.AS_TEXT, s.AGENT),
    "referrer": (k.AS_TEXT, s.REFERRER),
    "time": (k.AS_TIME, s.TIME),
    "status": (k.AS_STATUS, s.STATUS),
    "size": (k.AS_SIZE, s.SIZE),
    "latency": (k.AS_LATENCY, s.LATENCY),
}
_NAMES = {where: name for name, where in FIELDS.items()}


def name_field(kind: int, slot: int) -> str:
    """Return the name of a field, as a format may choose it."""
    return _NAMES[kind, slot]


def read_choices(log_format: str) -> tuple[tuple[str, str], ...] | None:
    """Return the fields and keys that a JSON format chooses; None if it is not a JSON format."""
    name, *words = log_format.split() or [""]
    if name != "json":
        return None
    choices = []
    for word in words:
        field, equals, key = word.partition("=")
        if field not in FIELDS or not equals or not key:
            raise OptionError(
                "LOG_FORMAT_INVALID",
                f"The log format `{log_format[:200]}` cannot be used: `{word[:80]}` does not choose a field.",
                hint=f"Write FIELD=KEY, such as json client=source_ip. Fields: {', '.join(FIELDS)}.",
                facts={"log_format": log_format},
            )
        choices.append((field, key))
    return tuple(choices)


def list_keys(choices: tuple[tuple[str, str], ...] = ()) -> dict[str, tuple[int, int, int, int]]:
    """Return (kind, slot, scale, rank) of each plain, dotted name. A chosen field has that key alone."""
    found: dict[str, tuple[int, int, int, int]] = {}

    def add(names: str, kind: int, slot: int, scale: int, rank: int) -> None:
        for name in names.split():
            found.setdefault(plain_name(name), (kind, slot, scale, rank))

    for table in (_TEXTS, _MORE_TEXTS):
        for slot, ranked in table.items():
            for rank, names in enumerate(ranked):
                add(names, k.AS_TEXT, slot, 0, rank)
    for slot, ranked in _HEADER_TEXTS.items():
        for rank, name in enumerate(ranked):
            add(" ".join(prefix + name for prefix in _HEADERS), k.AS_TEXT, slot, 0, rank)
    for kind, slot, ranked in (
        (k.AS_TIME, s.TIME, _TIMES),
        (k.AS_STATUS, s.STATUS, _STATUSES),
        (k.AS_SIZE, s.SIZE, _SIZES),
    ):
        for rank, names in enumerate(ranked):
            add(names, kind, slot, 0, rank)
    for scale, names in _LATENCIES.items():
        add(names, k.AS_LATENCY, s.LATENCY, scale, int(scale == k.GUESS))
    scales = {name: what[2] for name, what in found.items() if what[0] == k.AS_LATENCY}
    for field in dict(choices):
        found = {name: what for name, what in found.items() if what[:2] != FIELDS[field]}
    for field, key in choices:
        kind, slot = FIELDS[field]
        scale = scales.get(plain_name(key), k.GUESS) if kind == k.AS_LATENCY else 0
        found[plain_name(key)] = (kind, slot, scale, 0)
    return found


@functools.lru_cache(maxsize=64)
def make_key_table(choices: tuple[tuple[str, str], ...] = ()) -> tuple[Array, Array]:
    """Return the half-empty table that maps (object, key) to a field, and the text of all its names."""
    fields = list_keys(choices)
    nodes = {"": k.ROOT}
    entries: dict[tuple[int, str], list[int]] = {}

    def entry(parent: int, name: str) -> list[int]:
        return entries.setdefault((parent, name), [parent, 0, 0, k.NO_NODE, k.NOTHING, 0, 0, 0])

    for name in WRAPPERS:
        entry(k.ROOT, name)[k.NODE] = k.ROOT
    for path, what in fields.items():
        entry(k.ROOT, path)[k.KIND :] = what
        parent, steps = k.ROOT, path.split(".")
        for depth, step in enumerate(steps[:-1]):
            inner = ".".join(steps[: depth + 1])
            node = nodes.setdefault(inner, len(nodes))
            entry(parent, step)[k.NODE] = node
            parent = node
        entry(parent, steps[-1])[k.KIND :] = what
    capacity = 1 << (2 * len(entries)).bit_length()
    table = np.zeros((capacity, k.KEY_WIDTH), np.int64)
    text = bytearray()
    for (parent, name), row in entries.items():
        row[k.NAME_AT], row[k.NAME_SIZE] = len(text), len(name)
        text += name.encode()
        place = _hash(parent, name.encode()) & (capacity - 1)
        while table[place, k.NAME_SIZE]:
            place = (place + 1) & (capacity - 1)
        table[place] = row
    return table, np.frombuffer(text, np.uint8)


def _hash(parent: int, name: bytes) -> int:
    value = k.HASH_START + parent
    for c in name:
        value = (value ^ c) * k.HASH_FACTOR & (2**32 - 1)
    return value ^ (value >> 15)
