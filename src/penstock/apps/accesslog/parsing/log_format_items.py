"""The items of a log format: texts, and fields by the names Apache and nginx give them.

Rules: an unknown directive is a field that is skipped, since Apache's modules bring their own. Only a time in
an unreadable form is refused. `%U%q` and `$uri$is_args$args` are one target, and `%v:%p` is a host.

>>> [item.name for item in read_apache('%h "%r"') if isinstance(item, LogField)]
['%h', '%r']
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.apps.accesslog.parsing import line_slots as s
from penstock.core.errors import OptionError


@dataclass(frozen=True, slots=True)
class LogText:
    """Bytes that are the same in every line."""

    text: bytes


@dataclass(frozen=True, slots=True)
class LogField:
    """A field: text, time, status or number; `rank` chooses between fields of one slot, the lowest wins."""

    kind: str
    slot: int = s.NOWHERE
    scale: int = 1
    rank: int = 0
    name: str = ""
    has_blanks: bool = False
    listed: bool = False
    has_port: bool = False


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of a time, as `strftime` writes it, before the parts are joined."""

    shape: str
    name: str


Item: TypeAlias = LogText | LogField
_Piece: TypeAlias = LogText | LogField | TimePart

_SECOND_US = 1_000_000
_APACHE = re.compile(r"%[<>!0-9,]*(?:\{([^}]*)\})?(\^?[A-Za-z]{1,2}(?<=\^..)|[A-Za-z%])")
_NGINX = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LOG_FORMAT_LINE = re.compile(
    r'\s*(?:LogFormat|CustomLog\s+\S+)\s+"((?:\\.|[^"\\])*)"(?:\s+\S+)?\s*', re.IGNORECASE
)
_NGINX_LINE = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?((?:(?:'[^']*'|\"[^\"]*\")\s*)+);?\s*")
_NGINX_PIECE = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_TIME = re.compile(
    r"(?:%d/%b/%Y:%H:%M:%S|%Y([-/])%m\1%d[T ]%H:%M:%S)(?:\.%f)?(?: ?%z|Z)?|%s(?:\.%f)?|sec|msec|usec"
)

_APACHE_FIELDS = {
    "h": LogField("text", s.PEER, rank=1),
    "a": LogField("text", s.PEER),
    "{c}a": LogField("text", s.PEER, rank=2),
    "u": LogField("text", s.USER, has_blanks=True),
    "r": LogField("text", s.REQUEST, has_blanks=True),
    "m": LogField("text", s.METHOD),
    "U": LogField("text", s.TARGET),
    "q": LogField("text", s.QUERY),
    "H": LogField("text", s.PROTOCOL),
    "v": LogField("text", s.VHOST),
    "V": LogField("text", s.VHOST, rank=1),
    "s": LogField("status", s.STATUS, rank=1),
    ">s": LogField("status", s.STATUS),
    "b": LogField("number", s.SIZE),
    "B": LogField("number", s.SIZE),
    "O": LogField("number", s.SIZE, rank=1),
    "D": LogField("number", s.LATENCY),
    "{us}T": LogField("number", s.LATENCY),
    "{ms}T": LogField("number", s.LATENCY, 1000, rank=1),
    "T": LogField("number", s.LATENCY, _SECOND_US, rank=2),
    "{s}T": LogField("number", s.LATENCY, _SECOND_US, rank=2),
}
_HEADERS = {
    "referer": LogField("text", s.REFERRER, has_blanks=True),
    "referrer": LogField("text", s.REFERRER, has_blanks=True),
    "user-agent": LogField("text", s.AGENT, has_blanks=True),
    "x-forwarded-for": LogField("text", s.XFF, listed=True),
    "x-real-ip": LogField("text", s.XFF, rank=2),
    "true-client-ip": LogField("text", s.XFF, rank=3),
    "cf-connecting-ip": LogField("text", s.XFF, rank=3),
    "host": LogField("text", s.VHOST, rank=2),
}
_NGINX_FIELDS = {
    "remote_addr": LogField("text", s.PEER),
    "realip_remote_addr": LogField("text", s.PEER, rank=2),
    "proxy_add_x_forwarded_for": LogField("text", s.XFF, rank=1, listed=True),
    "remote_user": LogField("text", s.USER, has_blanks=True),
    "request": LogField("text", s.REQUEST, has_blanks=True),
    "request_method": LogField("text", s.METHOD),
    "request_uri": LogField("text", s.TARGET),
    "uri": LogField("text", s.TARGET, rank=1),
    "document_uri": LogField("text", s.TARGET, rank=1),
    "args": LogField("text", s.QUERY),
    "query_string": LogField("text", s.QUERY),
    "server_protocol": LogField("text", s.PROTOCOL),
    "status": LogField("status", s.STATUS),
    "body_bytes_sent": LogField("number", s.SIZE),
    "bytes_sent": LogField("number", s.SIZE, rank=1),
    "request_time": LogField("number", s.LATENCY, _SECOND_US),
    "host": LogField("text", s.VHOST),
    "server_name": LogField("text", s.VHOST, rank=1),
}
_NGINX_TIMES = {"time_local": "%d/%b/%Y:%H:%M:%S %z", "time_iso8601": "%Y-%m-%dT%H:%M:%S%z", "msec": "%s.%f"}
#: Fields that are part of the one in front if nothing is between them.
_CONTINUED = ("%q", "$is_args", "$args", "$query_string")
_PORTS = ("p", "server_port", "remote_port")


def unwrap_directive(log_format: str) -> str:
    """Return the format inside `LogFormat "..." name` or `log_format name '...';`."""
    if found := _LOG_FORMAT_LINE.fullmatch(log_format):
        return found[1]
    if found := _NGINX_LINE.fullmatch(log_format):
        return "".join(single or double for single, double in _NGINX_PIECE.findall(found[1]))
    return log_format


def is_apache(log_format: str) -> bool:
    return _APACHE.search(log_format) is not None


def is_nginx(log_format: str) -> bool:
    return _NGINX.search(log_format) is not None


def read_apache(log_format: str) -> list[Item]:
    """Return the items of an Apache `LogFormat`."""
    pieces: list[_Piece] = []
    at = 0
    for found in _APACHE.finditer(log_format):
        pieces.append(LogText(_unescape(log_format[at : found.start()])))
        pieces += _read_directive(found[0], found[1], found[2])
        at = found.end()
    pieces.append(LogText(_unescape(log_format[at:])))
    return _join(pieces, log_format)


def _read_directive(name: str, argument: str | None, letter: str) -> list[_Piece]:
    if letter == "%":
        return [LogText(b"%")]
    if letter == "t":
        if argument is None:
            return [LogText(b"["), TimePart("%d/%b/%Y:%H:%M:%S %z", name), LogText(b"]")]
        shape = argument.removeprefix("begin:").removeprefix("end:")
        shape = shape.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S")
        opening, closing = shape.startswith("["), shape.endswith("]")
        shape = {"msec_frac": "%f", "usec_frac": "%f"}.get(shape, shape).removeprefix("[").removesuffix("]")
        return [LogText(b"[" * opening), TimePart(shape, name), LogText(b"]" * closing)]
    if letter in ("i", "o"):
        known = _HEADERS.get((argument or "").lower()) if letter == "i" else None
        return [replace(known or LogField("text", has_blanks=True), name=name)]
    key = letter
    if letter in "aT" and argument:
        key = f"{{{argument.lower()}}}{letter}"
    elif letter == "s" and ">" in name:
        key = ">s"
    return [replace(_APACHE_FIELDS.get(key, LogField("text")), name=name)]


def read_nginx(log_format: str) -> list[Item]:
    """Return the items of an nginx `log_format`."""
    pieces: list[_Piece] = []
    at = 0
    for found in _NGINX.finditer(log_format):
        pieces.append(LogText(_unescape(log_format[at : found.start()])))
        at = found.end()
        name = found[1] or found[2]
        if name in _NGINX_TIMES:
            pieces.append(TimePart(_NGINX_TIMES[name], f"${name}"))
            continue
        field = _NGINX_FIELDS.get(name) or _HEADERS.get(name.removeprefix("http_").replace("_", "-"))
        if field is None or (name not in _NGINX_FIELDS and not name.startswith("http_")):
            field = LogField("text", listed=name.startswith("upstream_"), has_blanks=name.startswith("http_"))
        pieces.append(replace(field, name=f"${name}"))
    pieces.append(LogText(_unescape(log_format[at:])))
    return _join(pieces, log_format)


def _unescape(text: str) -> bytes:
    """Return a configuration's text with its backslash escapes resolved: `\\"`, `\\t`, `\\\\`."""
    plain = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
    return plain.encode()


def _join(pieces: list[_Piece], log_format: str) -> list[Item]:
    """Join parts of a time into one time, a target and its query, a host and its port."""
    items: list[Item] = []
    at = 0
    pieces = [piece for piece in pieces if not (isinstance(piece, LogText) and not piece.text)]
    while at < len(pieces):
        piece = pieces[at]
        at += 1
        if isinstance(piece, TimePart):
            at = _end_of_time(pieces, at, log_format)
            items.append(LogField("time", s.TIME, name=piece.name))
        elif isinstance(piece, LogText):
            if items and isinstance(items[-1], LogText):
                items[-1] = LogText(items[-1].text + piece.text)
            elif not (piece.text == b":" and items and _is_port(pieces[at : at + 1])):
                items.append(piece)
            elif isinstance(host := items[-1], LogField) and host.slot in (s.VHOST, s.PEER):
                # The port is left out. Behind an IPv6 address without brackets, only `has_port` reveals it.
                at += 1
                items[-1] = replace(host, has_port=host.slot == s.PEER)
            else:
                items.append(piece)
        elif not (items and isinstance(items[-1], LogField) and piece.name in _CONTINUED):
            items.append(piece)
    return items


def _end_of_time(pieces: list[_Piece], at: int, log_format: str) -> int:
    """Return where the parts of a time end, as many as form one time; the first is in front of `at`."""
    first = pieces[at - 1]
    assert isinstance(first, TimePart)
    shape, ends = first.shape, [at] if _TIME.fullmatch(first.shape) else []
    while at < len(pieces):
        between, following = "", pieces[at]
        if isinstance(following, LogText) and at + 1 < len(pieces) and following.text in (b".", b" "):
            between, following = following.text.decode(), pieces[at + 1]
        if not isinstance(following, TimePart):
            break
        shape += between + following.shape
        at += 2 if between else 1
        if _TIME.fullmatch(shape):
            ends.append(at)
    if not ends:
        raise OptionError(
            "LOG_FORMAT_INVALID",
            f"The log format `{log_format[:200]}` cannot be used: its time `{first.name}` has the form "
            f"`{shape}`.",
            hint="Use `%t`, `%{%Y-%m-%dT%H:%M:%S%z}t`, `%{%d/%b/%Y:%H:%M:%S %z}t` or `%{sec}t`.",
            facts={"log_format": log_format},
        )
    return ends[-1]


def _is_port(pieces: list[_Piece]) -> bool:
    if not pieces or not isinstance(pieces[0], LogField):
        return False
    name = pieces[0].name
    return (name.startswith("$") and name[1:] in _PORTS) or (name.startswith("%") and name.endswith("p"))
