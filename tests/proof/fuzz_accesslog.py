"""Throws damaged access-log lines at the kernel and compares every field with the slow reference.

Every input comes from (seed, number), so any finding can be repeated alone with `--only`. A damaged line
stands between two whole ones or behind them. The bytes of the last line end at a protected page, and so does
all memory that is written. A finding is a crash, an exception, another field, another reason, a damaged
neighbour, or a second without an answer.

    python -m tests.proof.fuzz_accesslog --inputs 1000000 --seed 7
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.apps.accesslog.parsing import line_parser
from penstock.apps.accesslog.parsing.line_parser import (
    BAD_REASONS,
    TEXT_FIELDS,
    Lines,
    make_parser,
    parse_input,
    take_texts,
)
from penstock.apps.accesslog.parsing.line_parsing_kernel import LineScratch
from penstock.kernels.byte_columns import ByteColumn
from tests.proof.recording import record
from tests.reference.accesslog_parser import parse_line
from tests.support.guard_page import GuardedMemory, guarded_array

SLOW_S = 1.0
PROXIES = ("10.0.0.0/8", "2001:db8::/32", "192.0.2.1")


# --- lines as servers write them ----------------------------------------------------------------------


def _pick(rng: random.Random, usual: tuple[bytes, ...], odd: tuple[bytes, ...]) -> bytes:
    return rng.choice(usual) if rng.random() < 0.85 else rng.choice(odd)


def _address(rng: random.Random) -> bytes:
    usual = (
        b"192.0.2.7", b"10.1.2.3", b"2001:db8::7", b"::1", b"2a00::5", b"host.example", b"::ffff:10.0.0.1",
    )  # fmt: skip
    odd = (
        b"-", b"198.51.100.4:80", b"x,y", b"[2a00::1]:80", b"256.1.1.1", b"1.2.3", b"a b", b"unix:", b":",
        b"1::2::3", b"010.0.0.1", b"1:2:3:4:5:6:7:8", b"1:2:3:4:5:6:7:8:9", b"2a00::1.2.3.4", b"1:",
        b"10.0.0.1.", b"2001:db8:0:0:0:0:0:0:0", b"1:2:3:4:5:6:7::", b"2001:db8::%eth0", b"2001:0DB8::12345",
    )  # fmt: skip
    return _pick(rng, usual, odd)


def _addresses(rng: random.Random) -> bytes:
    return b", ".join(_address(rng) for _ in range(rng.randrange(1, 5)))


def _local_time(rng: random.Random) -> bytes:
    usual = (b"10/Oct/2000:13:55:36 -0700", b"29/Feb/2024:23:59:60 +0530", b"01/jan/1970:00:00:00 +1400")
    odd = (
        b"31/Feb/2024:00:00:00 +0000", b"10/Oct/2000:13:55:36", b"10/Oct/2000:13:55:36.25 +01:00", b"-",
        b"2024-01-02T03:04:05Z", b"10/Xct/2000:13:55:36 +0000", b"10/Oct/1969:13:55:36 +0000",
        b"10/Oct/2000:24:00:00 +0000", b"10/Oct/2000:13:55:36 +1900", b"10/Oct/2000:13:55:36 +08",
        b"1700000000",
    )  # fmt: skip
    return _pick(rng, usual, odd)


def _any_time(rng: random.Random) -> bytes:
    usual = (
        b"2024-01-02T03:04:05.678+01:00", b"2024-01-02T03:04:05Z", b"1700000000.123", b"1700000000123",
        b"1700000000123456", b"1700000000123456789", b"2024/01/02 03:04:05",
    )  # fmt: skip
    return _pick(
        rng, usual, (b"12345678", b"2024-02-30T00:00:00Z", b"x", b"99999999999", b"9999-12-31T23:59:59-18:00")
    )


def _request(rng: random.Random) -> bytes:
    usual = (b"GET /a?b=c HTTP/1.1", b"POST /login HTTP/2.0", b"GET /%7C|x HTTP/3", b'GET /\\"q\\" HTTP/1.1')
    odd = (
        b"-", b"", b"GET  HTTP/1.1", b"\\x16\\x03\\x01", b"GET /a b HTTP/1.0",
        b"<SCRIPT>x</SCRIPT> / HTTP/1.1",
        b"GET /", b"PRI * HTTP/2.0", b"\x00\xff\x80", b"OPTIONS sip:nm SIP/2.0",
        b'GET /" 200 1 "x HTTP/1.1',
        b"GET /\\\\ HTTP/1.1", b"GET /\\", b'GET /" x HTTP/1.1', b"A" * 300,
    )  # fmt: skip
    return _pick(rng, usual, odd)


def _number(rng: random.Random) -> bytes:
    return _pick(
        rng, (b"0", b"512", b"-", b"0.123"), (b"12345678901234567890", b"7ms", b"x", b"1.5s", b"9" * 15)
    )


def _status(rng: random.Random) -> bytes:
    return _pick(rng, (b"200", b"404", b"500"), (b"-", b"000", b"20", b"2000", b"abc", b"200x"))


def _agent(rng: random.Random) -> bytes:
    usual = (b"Mozilla/5.0 (X11)", b"-", b'a \\"b\\" c', b"${jndi:ldap://x}", b"curl/8.5 1.25 2ms")
    return _pick(rng, usual, (b"", b'a "b" c', b"\\", b"\xc3\xa9\xff", b'x"', b"a\\"))


def _user(rng: random.Random) -> bytes:
    return _pick(rng, (b"-", b"bob"), (b"a b", b"a [b", b"x [10/Oct/2000:13:55:36 -0700]", b"", b"1.2.3.4"))


def _query(rng: random.Random) -> bytes:
    return rng.choice((b"", b"?x=1", b"-", b"y=1"))


def _head(rng: random.Random) -> bytes:
    return b'%s - %s [%s] "%s" %s %s' % (
        _address(rng), _user(rng), _local_time(rng), _request(rng), _status(rng), _number(rng),
    )  # fmt: skip


def _combined(rng: random.Random) -> bytes:
    return b'%s "%s" "%s"' % (_head(rng), _agent(rng), _agent(rng))


def _make_auto(rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    line = (_head if kind == 0 else _combined)(rng)
    if kind == 2:
        line = b'%s "%s"' % (line, _addresses(rng))
    elif kind == 3:
        line = b'%s "%s" %s "%s" %s' % (line, _addresses(rng), _number(rng), _agent(rng), _number(rng))
    elif kind == 4:
        line = rng.choice((b"v.example:443 ", b"v.example ", b"::1 ", b"x:y ")) + line
    elif kind == 5:
        line = _addresses(rng) + b", " + line
    elif kind == 6:
        return _make_json(rng)
    return line


_FIELDS: dict[bytes, Callable[[random.Random], bytes]] = {
    **dict.fromkeys((b"time", b"@timestamp", b"ts", b"msec", b"time_local"), _any_time),
    **dict.fromkeys((b"remote_addr", b"remoteIP", b"client_ip", b"ClientAddr", b"client"), _address),
    **dict.fromkeys((b"X-Forwarded-For", b"http_x_forwarded_for", b"x_real_ip"), _addresses),
    **dict.fromkeys((b"request", b"request_uri", b"uri", b"path", b"url.path", b"original"), _request),
    **dict.fromkeys((b"query", b"args", b"method", b"request_method"), _query),
    **dict.fromkeys((b"status", b"DownstreamStatus", b"status_code", b"response"), _status),
    **dict.fromkeys((b"size", b"bytes", b"duration", b"Duration", b"request_time", b"duration_ms"), _number),
    **dict.fromkeys((b"user_agent", b"http_referer", b"Host", b"user", b"other", b"T\\u0069me"), _agent),
}
_OBJECTS = (b"headers", b"http", b"response", b"log", b"url", b"request", b"user_agent", b"other", b"nginx")


def _make_json(rng: random.Random) -> bytes:
    members = [_member(rng, 0) for _ in range(rng.randrange(1, 10))]
    if rng.random() < 0.8:
        members.append(b'"time":"%s"' % _any_time(rng))
        members.append(b'"remote_addr": "%s"' % _address(rng))
    rng.shuffle(members)
    return b"{" + b",".join(members) + b"}"


def _member(rng: random.Random, depth: int) -> bytes:
    name = rng.choice(sorted(_FIELDS))
    value = b'"%s"' % _FIELDS[name](rng).replace(b'"', b'\\"')
    kind = rng.randrange(12)
    if kind < 3:
        value = rng.choice(
            (b"1", b"200", b"-5", b"0.25", b"1e-3", b"2.5E+2", b"null", b"true", b"false", b"17.5", b"0")
        )
    elif kind == 3:
        value = b"[%s, %s]" % (value, rng.choice((value, b"[1]", b'{"time":1}', b"null", b'"192.0.2.9"')))
    elif kind < 6 and depth < 3:
        name = rng.choice(_OBJECTS)
        value = b"{" + b" , ".join(_member(rng, depth + 1) for _ in range(rng.randrange(3))) + b"}"
    return b'"%s":%s' % (name, value)


def _make_wide(rng: random.Random) -> bytes:
    return b"%s %s %s %s" % (_combined(rng), _number(rng), _addresses(rng), _number(rng))


def _make_timed(rng: random.Random) -> bytes:
    return b'[%s] %s %s "GET /a?b HTTP/1.1" %s %s %s v:80' % (
        _local_time(rng), _address(rng), _address(rng), _status(rng), _number(rng), _number(rng),
    )  # fmt: skip


def _make_commas(rng: random.Random) -> bytes:
    return b'"%s","%s","%s",%s,%s' % (
        _addresses(rng), _any_time(rng), _request(rng), _status(rng), _number(rng),
    )  # fmt: skip


def _make_bars(rng: random.Random) -> bytes:
    return b"%s|%s|GET|/a|%s|%s|%s" % (_address(rng), _any_time(rng), _query(rng), _status(rng), _number(rng))


def _make_words(rng: random.Random) -> bytes:
    return b'%s %s GET "/u" "%s" %s %s, %s %s "h:1"' % (
        _address(rng), _any_time(rng), _query(rng), _status(rng), _number(rng), _number(rng), _number(rng),
    )  # fmt: skip


def _make_shaped(rng: random.Random) -> bytes:
    return b'{"t":"%s","a":"%s","r":"%s","s":%s,"u":"%s","b":%s}' % (
        _any_time(rng), _address(rng), _request(rng), _status(rng), _agent(rng), _number(rng),
    )  # fmt: skip


def _tell(text: bytes) -> Callable[[random.Random], bytes]:
    return lambda rng: text


#: What a server writes for a directive, used to make formats.
_APACHE: dict[str, Callable[[random.Random], bytes]] = {
    "%l": _tell(b"-"), "%u": _user, "%r": _request, "%m": _tell(b"GET"), "%U": _tell(b"/a"), "%q": _query,
    "%H": _tell(b"HTTP/1.1"), "%>s": _status, "%s": _status, "%b": _number, "%B": _number, "%O": _number,
    "%I": _number, "%D": _number, "%T": _number, "%{ms}T": _number, "%{us}T": _number, "%{s}T": _number,
    "%v": _tell(b"v.example:80"), "%V": _tell(b"-"), "%{Referer}i": _agent, "%{User-agent}i": _agent,
    "%{X-Forwarded-For}i": _addresses, "%{Cookie}i": _agent, "%{X}o": _agent, "%h": _address, "%a": _address,
    "%{c}a": _address, "%{msec}t": _any_time,
}  # fmt: skip
_NGINX: dict[str, Callable[[random.Random], bytes]] = {
    "$remote_user": _user, "$request": _request, "$request_method": _tell(b"GET"), "$uri": _tell(b"/a"),
    "$request_uri": _tell(b"/a?b"), "$args": _query, "$server_protocol": _tell(b"HTTP/2.0"),
    "$status": _status,
    "$body_bytes_sent": _number, "$bytes_sent": _number, "$request_time": _number,
    "$host": _tell(b"[::1]:80"),
    "$http_referer": _agent, "$http_user_agent": _agent, "$http_x_forwarded_for": _addresses,
    "$msec": _any_time,
    "$upstream_response_time": _tell(b"0.1, 0.2"), "$http_cookie": _agent, "$time_iso8601": _any_time,
}  # fmt: skip


def make_format(rng: random.Random) -> tuple[str, list[bytes]]:
    """Return a format of random fields, with a client and a time, and three lines that have it."""
    apache = rng.random() < 0.5
    fields = dict(_APACHE if apache else _NGINX)
    known = dict(rng.sample(sorted(fields.items(), key=lambda item: item[0]), rng.randrange(1, 10)))
    known |= (
        {"%h": _address, "%t": _local_time}
        if apache
        else {"$remote_addr": _address, "$time_local": _local_time}
    )
    names = list(known)
    rng.shuffle(names)
    behind = {name: rng.choice((" ", " ", " ", "|", "\t", ",", " - ", "; ")) for name in names}
    log_format, lines = "", [b"", b"", b""]
    for place, name in enumerate(names):
        open_with, close_with = rng.choice((('"', '"'), ('"', '"'), ("", "")))
        if name == "$time_local":
            open_with, close_with = "[", "]"
        close_with += behind[name] if place + 1 < len(names) else ""
        log_format += open_with + name + close_with
        for n in range(3):
            value = known[name](rng)
            value = b"[%s]" % value if name == "%t" else value
            lines[n] += open_with.encode() + value + close_with.encode()
    return log_format, lines


#: Formats, and the functions that make their lines.
FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "auto": _make_auto,
    "json": _make_json,
    "common": _head,
    "combined": _combined,
    "vhost_combined": lambda rng: b"v.example:80 " + _combined(rng),
    "nginx": lambda rng: b'%s "%s"' % (_combined(rng), _addresses(rng)),
    '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" %D %{X-Forwarded-For}i %T': _make_wide,
    '%t %{c}a %a "%m %U%q %H" %s %B %{ms}T %V': _make_timed,
    '"%{X-Forwarded-For}i","%{usec}t","%r",%>s,%O': _make_commas,
    "%a|%{msec}t|%m|%U|%q|%>s|%I": _make_bars,
    "$remote_addr $time_iso8601 $request_method "
    '"$uri" "$args" $status $upstream_response_time $request_time "$host"': _make_words,
    '{"t":"$msec","a":"$remote_addr","r":"$request","s":$status,'
    '"u":"$http_user_agent","b":$bytes_sent}': _make_shaped,
}
_FRAMES = (
    (b'"', b'"'), (b'"', b""), (b"", b"\r\n"), (b"Sep 15 16:13:46 web nginx[2869]: ", b"\n"),
    (b"<34>Oct 11 22:14:15 nginx: ", b""), (b"<165>1 2003-10-11T22:14:15Z h app 1 - - ", b""),
    (b"<165>1 2003-10-11T22:14:15Z h app 1 - [a b] ", b""), (b"2021-09-15T16:13:46.1Z web httpd: ", b""),
    (b"\xef\xbb\xbf", b""), (b" ", b" extra"), (b"<34>x ", b""), (b"Sep 15 16:13:66 web nginx: ", b""),
)  # fmt: skip


def make_line(rng: random.Random, log_format: str) -> bytes:
    """Return a line that has the format, mostly; sometimes one of another format."""
    make = FORMATS[log_format] if rng.random() < 0.95 else rng.choice(list(FORMATS.values()))
    return make(rng)


def damage(rng: random.Random, line: bytes) -> tuple[str, bytes]:
    kind = rng.choice(
        (
            "none",
            "none",
            "frame",
            "cut",
            "flip",
            "set",
            "insert",
            "remove",
            "repeat",
            "long",
            "noise",
            "short",
        )
    )
    at = rng.randrange(len(line) + 1)
    if kind == "frame":
        before, behind = rng.choice(_FRAMES)
        return kind, before + line + behind
    if kind == "cut":
        return kind, line[:at]
    if kind == "flip" and at < len(line):
        return kind, line[:at] + bytes([line[at] ^ (1 << rng.randrange(8))]) + line[at + 1 :]
    if kind in ("set", "insert"):
        new = rng.choice(
            (b'"', b"\\", b" ", b"\x00", b"[", b"]", b"-", b",", b"\n", b":", b"}", b"{", b'" ', b" [")
        )
        return kind, line[:at] + new + line[at + (kind == "set") :]
    if kind == "remove":
        return kind, line[:at] + line[at + rng.randrange(1, 4) :]
    if kind == "repeat":
        return kind, line[:at] + line[max(0, at - rng.randrange(1, 40)) :]
    if kind == "long":
        return kind, line[:at] + rng.choice((b"A", b" ", b'"', b"\\", b"[", b"1", b",")) * rng.randrange(
            500
        ) + line[at:]
    if kind == "short":
        pieces = (
            b" ",
            b":",
            b'"',
            b"[",
            b"]",
            b"{",
            b"}",
            b"\\",
            b"-",
            b"<",
            b">",
            b"1",
            b",",
            b".",
            b"x",
            b"Oct ",
            b"T",
        )
        return kind, b"".join(rng.choice(pieces) for _ in range(rng.randrange(12)))
    if kind == "noise":
        return kind, bytes(rng.randrange(256) for _ in range(rng.randrange(80)))
    return "none", line


# --- judging ------------------------------------------------------------------------------------------


def as_rows(lines: Lines, count: int) -> list[dict[str, Any] | str | None]:
    """Return the kernel's result for each value in the terms of the reference; None where there is none."""
    texts = {name: take_texts(lines, name) for name in TEXT_FIELDS}
    rows: list[dict[str, Any] | str | None] = [None] * count
    for n, row in enumerate(lines.rows.tolist()):
        rows[row] = {
            **{name: column[n].as_py() for name, column in texts.items()},
            "time": int(lines.time_us[n]),
            "status": int(lines.status[n]),
            "size": int(lines.size[n]),
            "latency": int(lines.latency_us[n]),
            "is_json": bool(lines.is_json[n]),
        }
    for row, reason in zip(lines.bad_rows.tolist(), lines.bad_reasons.tolist(), strict=True):
        rows[row] = None if rows[row] is not None else BAD_REASONS[reason]
    return rows


class Kernel:
    """The parser under test, over memory that ends at a protected page."""

    def __init__(self) -> None:
        self._memory = GuardedMemory(1 << 20)
        line_parser._idle.scratch = LineScratch._make(
            guarded_array(each.size, each.dtype).reshape(each.shape) for each in line_parser._scratch()
        )

    def parse(
        self, values: list[bytes], log_format: str, proxies: tuple[str, ...]
    ) -> list[dict[str, Any] | str | None]:
        data = self._memory.place(b"".join(values))
        ends = guarded_array(len(values) + 1, np.int32)
        ends[:] = np.cumsum([0, *(len(each) for each in values)])
        present = guarded_array(len(values), np.uint8)
        present[:] = 1
        lines = parse_input(ByteColumn(data, ends, present), make_parser(log_format, proxies), _allocate)
        return as_rows(lines, len(values))


def _allocate(shape: int | tuple[int, int], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return guarded_array(int(np.prod(shape)), kind).reshape(shape)


#: Lines of which every prefix is parsed too, because a line may be cut off anywhere.
_CUT = (
    b"<165>1 2003-10-11T22:14:15Z h app 1 - [a b] 10.0.0.1 - a [b [10/Oct/2000:13:55:36.5 +05:30] "
    b'"GET /\\" HTTP/1.1" 200 51 "-" "x" "2a00::1, 10.0.0.1:80" 0.25 7ms',
    b'<34>Oct 11 22:14:15 web nginx: v.example:80 2001:db8::1 - - [2000-10-10T13:55:36Z] "-" - - "" ""',
    b'{"a":[true,false,null,-1.5e+3,{"b":"\\""}],"log":{"ts":1700000000.5},"ip":"::1","xff":["::2"],"duration":"1ms"}',
    b"2021-09-15T16:13:46.1Z web httpd: x",
    b"x :",
    b"x: ::ffff:1.2.3.4 - - [1700000000123 x",
)


def find_cut_off(kernel: Kernel) -> list[str]:
    """Return the prefixes that are not read as the reference reads them; each ends at the protected page."""
    beginnings = [line[:size] for line in _CUT for size in range(len(line) + 1)]
    return [
        f"beginning {each!r}"
        for each in beginnings
        if kernel.parse([each], "auto", PROXIES) != [parse_line(each, "auto", PROXIES)]
    ]


def run(seed: int, inputs: int, only: int | None = None) -> dict[str, Any]:
    """Judge the inputs of one seed; return outcomes by format and mutation, and the findings."""
    kernel = Kernel()
    table: dict[str, Counter[str]] = {}
    findings: list[str] = []
    findings += find_cut_off(kernel)  # this also compiles before the clock runs
    for number in range(inputs) if only is None else [only]:
        rng = random.Random(f"{seed}/{number}")
        kind = log_format = rng.choice(tuple(FORMATS))
        proxies = rng.choice(((), PROXIES))
        place = rng.choice((1, 2))  # between two whole lines, or as the last one at the protected page
        values = [make_line(rng, log_format) for _ in range(3)]
        if rng.random() < 0.25:
            kind = "any format"
            log_format, values = make_format(rng)
        mutation, values[place] = damage(rng, values[place])
        began = time.process_time()
        found = kernel.parse(values, log_format, proxies)
        slow = time.process_time() - began > SLOW_S
        expected = [parse_line(each, log_format, proxies) for each in values]
        outcome = "good" if isinstance(expected[place], dict) else "bad"
        if slow or found != expected:
            what = "no answer within a second" if slow else f"{found!r} is not {expected!r}"
            findings.append(f"seed {seed} input {number} ({log_format}, {mutation}): {what} {values!r}")
            outcome = "FINDING"
        table.setdefault(f"{kind[:16]} {mutation}", Counter())[outcome] += 1
    return {
        "seed": seed, "inputs": inputs, "findings": findings,
        "table": {name: dict(counts) for name, counts in sorted(table.items())},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="repeat one input of the seed")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    faulthandler.enable()
    report = run(options.seed, options.inputs, options.only)
    record(
        "fuzz-accesslog",
        "damaged log lines, the kernel against the slow reference, field by field",
        repeat=f"python -m tests.proof.fuzz_accesslog --inputs {options.inputs} --seed {options.seed}",
        facts=report,
        write=options.write and options.only is None,
    )
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
