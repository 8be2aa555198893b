"""A slow parser of access-log lines in plain Python, which the kernel must agree with, field by field.

It is written from the rules alone, with regular expressions, `datetime` and `ipaddress`, one line at a time.
It supports Apache and nginx format strings as far as tests use them. A line becomes a dictionary of its
fields, or a text that says why it is bad.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from penstock.apps.accesslog.parsing import line_slots as slots
from tests.reference.accesslog_json_parser import read_json
from tests.reference.accesslog_values import (
    MONTHS,
    Bad,
    Line,
    read_address,
    read_time,
    strip_port,
    strip_zone,
)

STATUS = re.compile(rb"(\d{3})(?!\d)|(-)(?= |\Z)")
MEASURE = re.compile(rb"(\d+)(?:\.(\d+))?|-")
WHOLE_REQUEST = re.compile(rb"([A-Za-z0-9._-]+) (.+) ([A-Z]+/\d[^ ]*)", re.DOTALL)
SHORT_REQUEST = re.compile(rb"([A-Za-z0-9._-]+) (/.*)", re.DOTALL)
CLIENT = re.compile(rb"[0-9A-Za-z.:\-_%]{1,255}")


# --- text formats -------------------------------------------------------------------------------------

#: What a directive is: the name of the field, its kind or scale, and its rank. The lowest rank wins.
DIRECTIVES: dict[str, tuple[str, str, int]] = {
    "%a": ("peer", "text", 0), "%h": ("peer", "text", 1), "%{c}a": ("peer", "text", 2),
    "%u": ("user", "rest", 0), "%r": ("request", "rest", 0), "%m": ("method", "text", 0),
    "%U": ("target", "text", 0), "%q": ("query", "text", 0), "%H": ("protocol", "text", 0),
    "%v": ("vhost", "text", 0), "%V": ("vhost", "text", 1), "%>s": ("status", "status", 0),
    "%s": ("status", "status", 1), "%b": ("size", "1", 0), "%B": ("size", "1", 0), "%O": ("size", "1", 1),
    "%D": ("latency", "1", 0), "%{us}T": ("latency", "1", 0), "%{ms}T": ("latency", "1000", 1),
    "%T": ("latency", "1000000", 2), "%{s}T": ("latency", "1000000", 2),
    "%{Referer}i": ("referrer", "rest", 0), "%{User-Agent}i": ("agent", "rest", 0),
    "%{User-agent}i": ("agent", "rest", 0), "%{X-Forwarded-For}i": ("xff", "list", 0),
    "%{Host}i": ("vhost", "text", 2), "%{sec}t": ("time", "time", 0), "%{msec}t": ("time", "time", 0),
    "%{usec}t": ("time", "time", 0), "$remote_addr": ("peer", "text", 0), "$remote_user": ("user", "rest", 0),
    "$time_local": ("time", "time", 0), "$time_iso8601": ("time", "time", 0), "$msec": ("time", "time", 0),
    "$request": ("request", "rest", 0), "$request_method": ("method", "text", 0),
    "$request_uri": ("target", "text", 0), "$uri": ("target", "text", 1), "$args": ("query", "text", 0),
    "$server_protocol": ("protocol", "text", 0), "$status": ("status", "status", 0),
    "$body_bytes_sent": ("size", "1", 0), "$bytes_sent": ("size", "1", 1),
    "$request_time": ("latency", "1000000", 0), "$http_referer": ("referrer", "rest", 0),
    "$http_user_agent": ("agent", "rest", 0), "$http_x_forwarded_for": ("xff", "list", 0),
    "$host": ("vhost", "text", 0), "$upstream_response_time": ("", "list", 0),
}  # fmt: skip
TAIL = '"%r" %>s %b "%{Referer}i" "%{User-Agent}i" "%{X-Forwarded-For}i"'
NAMED = {
    "common": '%h %l %u %t "%r" %>s %b',
    "combined": '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"',
    "vhost_combined": '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
    "nginx": '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
    '"$http_user_agent" "$http_x_forwarded_for"',
}
Step = tuple[str, str, bytes, bool]  # field, kind, text behind, whether a quote stands in front


def read_format(log_format: str) -> tuple[bytes, list[Step]]:
    """Return the text in front, and each field with the text behind it."""
    log_format = (
        log_format.replace("%t", "[$time_local]")
        .replace("%v:%p", "%v")
        .replace("%U%q", "%U")
        .replace("$uri$is_args$args", "$uri")
    )
    pieces = re.split(r"(%[<>]?(?:\{[^}]*\})?[A-Za-z]|\$\w+)", log_format.replace("%%", "\0"))
    texts = [each.replace("\0", "%").encode() for each in pieces[::2]]
    fields = [DIRECTIVES.get(each, ("", "text", 0)) for each in pieces[1::2]]
    chosen = {}
    for place, (name, _, rank) in enumerate(fields):
        if name and (name not in chosen or rank < fields[chosen[name]][2]):
            chosen[name] = place
    steps = []
    for place, (name, kind, _) in enumerate(fields):
        if name and chosen[name] != place:
            name, kind = "", kind if kind in ("rest", "list") else "text"
        steps.append((name, kind, texts[place + 1], texts[place].endswith(b'"')))
    return texts[0], steps


def read_steps(line: bytes, front: bytes, steps: list[Step]) -> tuple[Line, int]:
    """Return the fields of one line and where reading ended."""
    names = [step[0] for step in steps]
    must = {"time", "status", "request", "method", "target", "peer" if "peer" in names else "xff"}
    last = max(place for place, name in enumerate(names) if name in must)
    if not line.startswith(front):
        raise Bad(slots.CUT_OFF if len(line) < len(front) else slots.NOT_THE_FORMAT)
    found: Line = {}
    at, place = len(front), 0
    while place < len(steps):
        name, kind, behind, after_quote = steps[place]
        free = place > last
        following = steps[place + 1] if place + 1 < len(steps) else ("", "", b"", False)
        if kind in ("text", "rest", "list"):
            ended = find_end(line, at, steps[place], following, free)
            if ended is None:
                if not free:
                    reason = {"time": slots.BAD_TIME, "status": slots.NO_REQUEST}.get(
                        following[1], slots.CUT_OFF
                    )
                    raise Bad(reason)
                close = len(line) if after_quote else (line + b" ").index(b" ", at)
                found[name] = line[at:close]
                return found, close
            found[name] = line[at : ended[0]]
            at = ended[1]
            if not ended[2]:
                return found, at
            place += 1
            continue
        stop = None
        if kind == "time":
            if (time := read_time(line, at)) is None:
                raise Bad(slots.BAD_TIME)
            found[name], stop = time
        elif kind == "status":
            if (status := STATUS.match(line, at)) is None:
                raise Bad(slots.NOT_THE_FORMAT)
            found[name], stop = int(status[1] or 0), status.end()
        else:
            if (measure := read_measure(line, at, int(kind))) is None:
                if free:
                    return found, at
                raise Bad(slots.NOT_THE_FORMAT)
            if measure[0] is not None:
                found[name] = measure[0]
            stop = measure[1]
        if not line.startswith(behind, stop):
            if free or (place + 1 > last and line[stop : stop + 1] in (b"", b" ")):
                return found, stop
            raise Bad(slots.CUT_OFF if stop + len(behind) > len(line) else slots.NOT_THE_FORMAT)
        at = stop + len(behind)
        place += 1
    return found, at


def find_end(line: bytes, at: int, step: Step, following: Step, free: bool) -> tuple[int, int, bool] | None:
    """Return (end of the field, where to continue, whether to continue at all)."""
    _, kind, behind, quoted = step
    if not behind:
        close = len(line) if kind == "rest" else (line + b" ").index(b" ", at)
        return close, close, True
    for escaped in (True, False) if quoted and not free else (quoted,):
        for stop in find_stops(line, at, behind[:1], escaped):
            if kind == "list" and not quoted and stop > at and line[stop - 1 : stop] == b",":
                continue
            if line.startswith(behind, stop):
                after = stop + len(behind)
                if following[1] == "time":
                    time = read_time(line, after)
                    if time is None or not line.startswith(following[2], time[1]):
                        continue
                if following[1] == "status" and STATUS.match(line, after) is None:
                    continue
                return stop, after, True
            if quoted and free and line[stop + 1 : stop + 2] in (b"", b" "):
                return stop, stop + 1, False
    return None


def find_stops(line: bytes, at: int, wanted: bytes, escaped: bool) -> Iterator[int]:
    pattern = rb"(?:\\.|[^\\])" if escaped else rb"."
    for found in re.compile(pattern, re.DOTALL).finditer(line, at):
        if found[0] == wanted:
            yield found.start()


def read_measure(line: bytes, at: int, scale: int) -> tuple[int | None, int] | None:
    found = MEASURE.match(line, at)
    if found is None:
        return None
    if found[1] is None:
        return None, found.end()
    if len(found[1]) > 15 or int(found[1]) > 2**62 // scale:
        return None
    places = len(str(scale)) - 1
    fraction = (found[2] or b"") + b"0" * 7
    rounded = int(b"0" + fraction[:places]) + (fraction[places : places + 1] >= b"5")
    return int(found[1]) * scale + rounded, found.end()


# --- what is around a line ----------------------------------------------------------------------------


def skip_syslog(line: bytes) -> bytes:
    rest = line
    if found := re.match(rb"<\d{1,4}>", line):
        rest = line[found.end() :]
        if rest[:2] == b"1 " and len(rest) > 2:
            newer = re.match(rb"1 (?:[^ ]* ){5}(?:- |(?:\[[^\]]*\])* )", rest)
            return rest[newer.end() :] if newer else line
    if old := re.match(rb"(...) .. (.{8}) ", rest, re.DOTALL):
        clock = re.fullmatch(rb"(\d\d):(\d\d):(\d\d)", old[2])
        if old[1].lower() not in MONTHS or clock is None:
            return line
        if int(clock[1]) > 23 or int(clock[2]) > 59 or int(clock[3]) > 60:
            return line
        rest = rest[16:]
    elif re.match(rb"....-..-..T.{9}", rest, re.DOTALL):
        time = read_time(rest, 0)
        if time is None or rest[time[1] : time[1] + 1] != b" ":
            return line
        rest = rest[time[1] + 1 :]
    elif rest is line:
        return line
    words = re.match(rb"([^ ]*) (?:([^ ]*:) )?", rest)
    if words is None:
        return line
    if words[1].endswith(b":"):
        return rest[len(words[1]) + 1 :]
    return rest[words.end() :]


def choose_format(line: bytes) -> str:
    first, blank, others = line.partition(b" ")
    if not blank:
        return f"%h %l %u %t {TAIL}"
    if first.endswith(b","):
        return f"%{{X-Forwarded-For}}i %l %u %t {TAIL}"
    second = others.partition(b" ")[0]
    if read_address(strip_zone(first)) is None and (second != b"-" or b" " not in others):  # noqa: SIM102
        if read_address(strip_zone(second)) is not None or strip_port(first) != first:
            return f"%v:%p %h %l %u %t {TAIL}"
    return f"%h %l %u %t {TAIL}"


def read_tail(line: bytes, at: int) -> int | None:
    for word in re.findall(rb'"[^"]*(?:"|\Z)|[^ "][^ ]*', line[at:]):
        found = re.fullmatch(rb"(\d+(?:\.\d+)?)(s|ms|us|\xc2\xb5s)?", word)
        if found and (b"." in found[1] or found[2]):
            scale = {None: 1_000_000, b"s": 1_000_000, b"ms": 1000}.get(found[2], 1)
            measure = read_measure(found[1], 0, scale)
            if measure is not None:
                return measure[0]
    return None


# --- the whole ----------------------------------------------------------------------------------------


def parse_line(value: bytes | None, log_format: str = "auto", proxies: tuple[str, ...] = ()) -> Line | str:
    """Return the fields of a line, or the reason why it is bad."""
    try:
        line = _parse(value, log_format, proxies)
    except Bad as bad:
        return str(bad)
    del line["lacking"]
    return line


def list_lacking(value: bytes | None, log_format: str = "auto", proxies: tuple[str, ...] = ()) -> set[str]:
    """Return the texts that are absent because the log has no such field, not those that are `-`."""
    found: set[str] = _parse(value, log_format, proxies)["lacking"]
    return found


def _parse(value: bytes | None, log_format: str, proxies: tuple[str, ...]) -> Line:
    if value is None:
        raise Bad(slots.NULL)
    line = value.rstrip(b"\r\n")
    if not line:
        raise Bad(slots.EMPTY)
    if len(line) > 3:
        line = line.removeprefix(b"\xef\xbb\xbf")
    auto = log_format in ("auto", "json")
    text = NAMED.get(log_format, log_format)
    front, steps = (b"", []) if auto else read_format(text)
    if (auto or not front.startswith(b'"')) and line[:1] == b'"' and len(line) > 1:
        line = line[1:].removesuffix(b'"')
    if auto or steps[0][1] != "time":
        line = skip_syslog(line)
    is_json = log_format == "json" or (log_format == "auto" and line.lstrip(b" \t").startswith(b"{"))
    if is_json:
        found = read_json(line.lstrip(b" \t"))
    else:
        if auto:
            front, steps = read_format(choose_format(line))
        found, stop = read_steps(line, front, steps)
        latency = read_tail(line, stop) if auto else None
        if latency is not None:
            found["latency"] = latency
        found["named"] = set(found) if auto else {name for name, *_ in steps}
    return {**_finish(found, proxies), "is_json": is_json or (not auto and text.lstrip().startswith("{"))}


def _finish(found: Line, proxies: tuple[str, ...]) -> Line:
    line: Line = {name: found.get(name) for name in slots.TEXT_FIELDS}
    request = found.get("request")
    if request is not None:
        whole, short = WHOLE_REQUEST.fullmatch(request), SHORT_REQUEST.fullmatch(request)
        if whole:
            line["method"], line["target"], line["protocol"] = whole.groups()
        elif short and line["method"] is None and line["target"] is None:
            line["method"], line["target"] = short.groups()
        elif line["target"] is None:
            line["target"] = request
    query = found.get("query")
    if query and query != b"-" and line["target"] is not None and b"?" not in line["target"]:
        line["target"] += (b"" if query.startswith(b"?") else b"?") + query
    for name in ("user", "method", "protocol", "referrer", "agent", "vhost"):
        if line[name] == b"-":
            line[name] = None
    if line["vhost"]:
        line["vhost"] = strip_port(line["vhost"])
    peer = b""
    if line["peer"] is not None:
        peer = strip_port(line["peer"])
        if not CLIENT.fullmatch(peer) or peer == b"-":
            raise Bad(slots.NO_CLIENT)
        peer = line["peer"] = strip_zone(peer)
    line["client"] = line["peer"]
    forwarded = found.get("xff")
    if forwarded is not None and forwarded != b"-" and (line["peer"] is None or is_trusted(peer, proxies)):
        line["client"] = find_forwarded(forwarded, proxies) or line["peer"]
    if line["client"] is None:
        raise Bad(slots.NO_CLIENT)
    named = found["named"] | ({"method", "target", "protocol"} if request is not None else set())
    return {
        **line,
        "lacking": {name for name in slots.TEXT_FIELDS if line[name] is None and name not in named},
        "time": found["time"],
        "status": found.get("status", 0),
        "size": found.get("size", 0),
        "latency": found.get("latency", -1),
    }


def is_trusted(text: bytes, proxies: tuple[str, ...]) -> bool:
    address = read_address(text)
    return address is not None and any(
        address in ipaddress.ip_network(each, strict=False) for each in proxies
    )


def find_forwarded(text: bytes, proxies: tuple[str, ...]) -> bytes | None:
    entry = b""
    for each in reversed(text.split(b",")):
        entry = strip_zone(strip_port(each.strip(b' "')))
        if read_address(entry) is None:
            return None
        if not is_trusted(entry, proxies):
            return entry
    return entry
