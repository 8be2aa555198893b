"""Access-log lines into columns: formats, hostile lines, proxies, and counts that add up."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.apps.accesslog.parsing.line_parser import (
    BAD_REASONS,
    TEXT_FIELDS,
    Lines,
    Parser,
    make_parser,
    take_texts,
)
from penstock.core.errors import OptionError

TIME = b"10/Oct/2000:13:55:36 -0700"
TIME_US = 971211336000000
COMMON = b'192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 512'
COMBINED = COMMON + b' "http://example.org/" "curl/8.5"'
FIELDS = {
    "client": b"192.0.2.7",
    "peer": b"192.0.2.7",
    "method": b"GET",
    "target": b"/a?b=c",
    "protocol": b"HTTP/1.1",
    "time": TIME_US,
    "status": 200,
    "size": 512,
}
BROWSER = {**FIELDS, "referrer": b"http://example.org/", "agent": b"curl/8.5"}


def read(line: bytes, log_format: str = "auto", proxies: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of one line, which must be good."""
    lines = make_parser(log_format, proxies).parse(pa.array([line]))
    assert lines.bad_rows.tolist() == [], BAD_REASONS[lines.bad_reasons[0]]
    texts = {name: take_texts(lines, name)[0].as_py() for name in TEXT_FIELDS}
    row = {name: text for name, text in texts.items() if text is not None}
    row |= {"time": int(lines.time_us[0]), "status": int(lines.status[0]), "size": int(lines.size[0])}
    if lines.latency_us[0] >= 0:
        row["latency"] = int(lines.latency_us[0])
    return row


def refuse(line: bytes | None, log_format: str = "auto") -> str:
    """Return why one line is bad."""
    lines = make_parser(log_format).parse(pa.array([line], pa.binary()))
    assert (len(lines), lines.bad_rows.tolist()) == (0, [0])
    return BAD_REASONS[lines.bad_reasons[0]]


# --- formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_format", ["auto", "common", "combined", "nginx"])
def test_a_common_line_is_read_by_every_format_that_begins_as_it_does(log_format: str) -> None:
    assert read(COMMON, log_format) == FIELDS


@pytest.mark.parametrize("log_format", ["auto", "combined", "nginx"])
def test_a_combined_line_has_its_referrer_and_agent(log_format: str) -> None:
    assert read(COMBINED, log_format) == BROWSER


@pytest.mark.parametrize("log_format", ["auto", "vhost_combined"])
def test_a_virtual_host_stands_in_front_of_the_client(log_format: str) -> None:
    assert read(b"shop.example:443 " + COMBINED, log_format) == {**BROWSER, "vhost": b"shop.example"}


def test_a_virtual_host_without_a_port_is_told_by_the_address_behind_it() -> None:
    assert read(b"shop.example " + COMBINED) == {**BROWSER, "vhost": b"shop.example"}
    assert read(COMMON.replace(b" - - ", b" ident - ")) == FIELDS


@pytest.mark.parametrize(
    ("tail", "latency"),
    [
        (b" 0.250", 250_000),
        (b' "-" 1.5', 1_500_000),
        (b' 7 "r@file" "http://10.0.0.2:80" 12ms', 12_000),
        (b" 0.0000015", 2),
        (b" 0.00000149", 1),
        (b" 65.0135ms", 65_014),
    ],
)
def test_a_latency_that_says_its_unit_is_found_behind_the_fields_that_are_known(
    tail: bytes, latency: int
) -> None:
    assert read(COMBINED + tail) == {**BROWSER, "latency": latency}


def test_a_whole_number_at_the_end_may_be_anything_and_is_no_latency() -> None:
    assert read(COMBINED + b" 12345") == BROWSER


@pytest.mark.parametrize(
    ("directive", "text", "latency"),
    [("%D", b"1234", 1234), ("%T", b"2", 2_000_000), ("%{ms}T", b"7", 7000), ("%{us}T", b"8", 8),
     ("%{s}T", b"3", 3_000_000), ("%{ms}T", b"0.9996", 1000), ("%D", b"8.5", 9),
     ("%D", b"-", None), ("%D", b"12345678901234567", None)],
)  # fmt: skip
def test_a_latency_has_the_unit_of_its_directive(directive: str, text: bytes, latency: int | None) -> None:
    row = read(COMBINED + b" " + text, '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i" ' + directive)
    assert row == (BROWSER if latency is None else {**BROWSER, "latency": latency})


@pytest.mark.parametrize(
    ("log_format", "line", "expected"),
    [
        (r"%a %{c}a \"%m %U%q %H\" %s %B %{%s}t %V %I %O",
         b'192.0.2.7 10.0.0.1 "GET /a?b=c HTTP/1.1" 200 512 971211336 v.example 3 4',
         {**FIELDS, "vhost": b"v.example"}),
        ("%{%Y-%m-%dT%H:%M:%S}t.%{msec_frac}t%{%z}t %h %m %U %q %H %>s %b",
         b"2000-10-10T13:55:36.000-0700 192.0.2.7 GET /a ?b=c HTTP/1.1 200 512", FIELDS),
        ('%h %{%Y-%m-%d %H:%M:%S}t %{%z}t %{sec}t "%r" %>s %b',
         b'192.0.2.7 2000-10-10 13:55:36 -0700 971211336 "GET /a?b=c HTTP/1.1" 200 512', FIELDS),
        ("%h\t%t\t%r\t%>s\t%b", b"192.0.2.7\t[%s]\tGET /a?b=c HTTP/1.1\t200\t512" % TIME, FIELDS),
        ("100%% %h %{[%d/%b/%Y:%T %z]}t %400,501{User-agent}i %!200r|%>s|%b",
         b"100%% 192.0.2.7 [%s] x GET /a?b=c HTTP/1.1|200|512" % TIME, {**FIELDS, "agent": b"x"}),
        ('%h %l %u %t "%r" %>s %b "%{Cookie}i" "%{X-Id}o"', COMMON + b' "c=1" "2"', FIELDS),
        ("$remote_addr [$time_local] $host:$server_port \"$request\" $status $body_bytes_sent $request_time",
         b'192.0.2.7 [%s] v.example:80 "GET /a?b=c HTTP/1.1" 200 512 0.003' % TIME,
         {**FIELDS, "vhost": b"v.example", "latency": 3000}),
        ("${msec} $remote_addr $request_method $uri$is_args$args $server_protocol $status $bytes_sent",
         b"971211336.000 192.0.2.7 GET /a?b=c HTTP/1.1 200 512", FIELDS),
        ('{"at":"$time_iso8601","from":"$remote_addr","line":"$request","code":$status,"sent":$bytes_sent}',
         b'{"at":"2000-10-10T20:55:36+00:00","from":"192.0.2.7","line":"GET /a?b=c HTTP/1.1",'
         b'"code":200,"sent":512}', FIELDS),
    ],
)  # fmt: skip
def test_any_format_string_of_apache_or_nginx_is_understood(
    log_format: str, line: bytes, expected: dict[str, Any]
) -> None:
    assert read(line, log_format) == expected


@pytest.mark.parametrize(
    "log_format",
    [
        r'LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-agent}i\"" combined',
        r'CustomLog logs/access_log "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-agent}i\""',
        """log_format main '$remote_addr - $remote_user [$time_local] "$request" '
            '$status $body_bytes_sent "$http_referer" "$http_user_agent"';""",
    ],
)
def test_a_format_may_be_given_as_the_whole_line_of_a_configuration(log_format: str) -> None:
    assert read(COMBINED, log_format) == BROWSER


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (b"2001:db8::1:4711", b"2001:db8::1"),
        (b"[2001:db8::1]:4711", b"2001:db8::1"),
        (b"192.0.2.7:4711", b"192.0.2.7"),
        (b"192.0.2.7", b"192.0.2.7"),
        (b"::", b"::"),
    ],
)
def test_the_port_of_a_client_is_left_out_where_the_format_has_one(peer: bytes, client: bytes) -> None:
    assert read(COMMON.replace(b"192.0.2.7", peer), '%a:%{remote}p %l %u %t "%r" %>s %b')["client"] == client


@pytest.mark.parametrize(
    ("log_format", "why"),
    [
        ("%h%l %t", "nothing shows where `%h` ends"),
        ("%t %r", "it has no client"),
        ("%h %r", "it has no time"),
        ("%h %{%c}t", "has the form `%c`"),
        ("combine", "no format has this name"),
        ("", "no format has this name"),
    ],
)
def test_a_format_that_cannot_be_read_is_refused_with_the_place(log_format: str, why: str) -> None:
    with pytest.raises(OptionError, match=r"\[LOG_FORMAT_INVALID\]") as caught:
        make_parser(log_format)
    assert why in str(caught.value)


def test_a_trusted_proxy_that_is_no_network_is_refused() -> None:
    with pytest.raises(OptionError, match=r"\[OPTION_INVALID\].*`10.0.0.0/33`"):
        make_parser(trusted_proxies=["10.0.0.0/33"])


# --- JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b'{"time_iso8601":"2000-10-10T13:55:36-07:00","remote_addr":"192.0.2.7",'
        b'"request":"GET /a?b=c HTTP/1.1","status":"200","body_bytes_sent":"512","http_referer":"http://example.org/",'
        b'"http_user_agent":"curl/8.5"}',
        b'{"time":"[10/Oct/2000:13:55:36 -0700]","remoteIP":"192.0.2.7","request":"/a","query":"?b=c",'
        b'"method":"GET","protocol":"HTTP/1.1","status":"200","bytes":512,"userAgent":"curl/8.5",'
        b'"referer":"http://example.org/"}',
        b'{"level":"info","ts":971211336.0,"request":{"remote_ip":"192.0.2.7","proto":"HTTP/1.1",'
        b'"method":"GET",'
        b'"uri":"/a?b=c","headers":{"User-Agent":["curl/8.5"],"Referer":["http://example.org/"]}},'
        b'"size":512,"status":200}',
        b'{"ClientAddr":"192.0.2.7:4711","StartUTC":"2000-10-10T20:55:36Z","RequestMethod":"GET",'
        b'"RequestPath":"/a?b=c","RequestProtocol":"HTTP/1.1","DownstreamStatus":200,"DownstreamContentSize":512,'
        b'"request_User-Agent":"curl/8.5","request_Referer":"http://example.org/"}',
        b'{"@timestamp":971211336000,"source":{"ip":"192.0.2.7"},"http":{"request":{"method":"GET","referrer":'
        b'"http://example.org/"},"response":{"status_code":200,"body":{"bytes":512}},"version":"HTTP/1.1"},'
        b'"url":{"original":"/a?b=c"},"user_agent.original":"curl/8.5"}',
        b'Oct 10 20:55:36 web nginx: {"log":{"ts":"971211336","client":"[192.0.2.7]:80","verb":"GET",'
        b'"path":"/a?b=c","http_version":"HTTP/1.1","code":200,"response_size":512.0,"agent":"curl/8.5",'
        b'"referrer":"http://example.org/"}}',
    ],
)
def test_json_lines_are_read_by_the_names_that_servers_use(line: bytes) -> None:
    row = read(line)
    assert row == BROWSER
    assert read(line, "json") == row


@pytest.mark.parametrize(
    ("member", "latency"),
    [
        (b'"request_time":0.25', 250_000), (b'"duration":0.000929675', 930), (b'"duration":9.5e-05', 95),
        (b'"duration":12', 12_000), (b'"Duration":3493280', 3493), (b'"latency":"0.02s"', 20_000),
        (b'"duration":"1.5ms"', 1500), (b'"response_time_ms":"7"', 7000), (b'"event.duration":5000', 5),
        (b'"duration_ms":65.014', 65_014), (b'"duration_us":0.6', 1), (b'"Duration":1499', 1),
        (b'"duration":"0.0015ms"', 2),
        (b'"duration":"5 apples"', None), (b'"duration":-1', None), (b'"duration":null', None),
    ],
)  # fmt: skip
def test_a_latency_in_json_has_the_unit_its_key_or_its_look_says(member: bytes, latency: int | None) -> None:
    row = read(b'{"time":971211336,"client_ip":"192.0.2.7",%s}' % member)
    assert row.get("latency") == latency


def test_texts_of_json_keep_their_escapes_and_say_so() -> None:
    line = b'{"ts":971211336,"ip":"192.0.2.7","request":"GET /\\"\\u0041\\x22 HTTP/1.1","status":200}'
    lines = make_parser().parse(pa.array([line, COMMON]))
    assert take_texts(lines, "target").to_pylist() == [b'/\\"\\u0041\\x22', b"/a?b=c"]
    assert lines.is_json.tolist() == [True, False]


@pytest.mark.parametrize(
    "line",
    [b"{", b"{}x", b'{"a":1,}', b'{"a"}', b'{"a":tru}', b'{"a":[1}', b'{"a":"', b'{"a":"\\', b'{"a":01}',
     b"[1]", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}"],
)  # fmt: skip
def test_a_line_that_is_not_one_object_is_bad(line: bytes) -> None:
    assert refuse(line, "json") == "the line is not one JSON object"


def test_an_object_without_a_time_or_a_client_is_bad() -> None:
    assert refuse(b'{"ip":"192.0.2.7"}') == "the time is missing or invalid"
    assert refuse(b'{"ts":971211336}') == "there is no client: neither an address nor a host name"


# --- hostile lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        (b"\\x16\\x03\\x01", {"target": b"\\x16\\x03\\x01"}),
        (b"\x16\x03\x01\x00\xff", {"target": b"\x16\x03\x01\x00\xff"}),
        (b"-", {"target": b"-"}),
        (b"", {"target": b""}),
        (b"\\n", {"target": b"\\n"}),
        (b"GET  HTTP/1.1", {"target": b"GET  HTTP/1.1"}),
        (b"<SCRIPT>x</SCRIPT> / HTTP/1.1", {"target": b"<SCRIPT>x</SCRIPT> / HTTP/1.1"}),
        (b"PRI * HTTP/2.0", {"method": b"PRI", "target": b"*", "protocol": b"HTTP/2.0"}),
        (b"GET /", {"method": b"GET", "target": b"/"}),
        (b"GET /a b HTTP/1.1", {"method": b"GET", "target": b"/a b", "protocol": b"HTTP/1.1"}),
        (b'GET /\\" HTTP/1.1', {"method": b"GET", "target": b'/\\"', "protocol": b"HTTP/1.1"}),
        (b'GET /"x HTTP/1.1', {"method": b"GET", "target": b'/"x', "protocol": b"HTTP/1.1"}),
        (b'GET /" x HTTP/1.1', {"method": b"GET", "target": b'/" x', "protocol": b"HTTP/1.1"}),
        (b"GET /a\\", {"method": b"GET", "target": b"/a\\"}),
        (b"GET /a HTTP/1.1\\", {"method": b"GET", "target": b"/a", "protocol": b"HTTP/1.1\\"}),
        (b"CONNECT a.example:25 HTTP/1.1",
         {"method": b"CONNECT", "target": b"a.example:25", "protocol": b"HTTP/1.1"}),
    ],
)  # fmt: skip
def test_an_odd_request_is_parsed_and_its_text_is_the_target(
    request_text: bytes, expected: dict[str, bytes]
) -> None:
    row = read(b'192.0.2.7 - - [%s] "%s" 400 226 "-" "-"' % (TIME, request_text))
    rest = {"client": b"192.0.2.7", "peer": b"192.0.2.7", "time": TIME_US, "status": 400, "size": 226}
    assert row == {**rest, **expected}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (b'"', b'"'), (b'"', b""), (b"", b"\r\n"), (b"\xef\xbb\xbf", b"\n"),
        (b"Sep 15 16:13:46 web-1.internal nginx[2869]: ", b""), (b"Jul  8 11:07:07 httpd: ", b""),
        (b"<134>Sep 15 16:13:46 web httpd: ", b""), (b"2021-09-15T16:13:46.5+00:00 web httpd[7]: ", b""),
        (b"<165>1 2003-10-11T22:14:15.003Z web httpd 1 ID47 - ", b""),
        (b'<165>1 2003-10-11T22:14:15.003Z web httpd 1 ID47 [x@1 a="b"] ', b""),
    ],
)  # fmt: skip
def test_what_stands_around_a_line_is_left_out(before: bytes, behind: bytes) -> None:
    assert read(before + COMBINED + behind) == BROWSER
    assert read(before + COMBINED + behind, "combined") == BROWSER


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (COMMON.replace(b" 200 512", b" - -"), {"status": 0, "size": 0}),
        (COMMON[: -len(b" 512")], {"size": 0}),
        (COMBINED.removesuffix(b'"'), {"referrer": b"http://example.org/", "agent": b"curl/8.5"}),
        (COMMON + b' "http://exa', {"referrer": b"http://exa"}),
        (COMMON.replace(b"- - [", b"- a [b] c ["), {"user": b"a [b] c"}),
        (COMMON.replace(b"- - [", b"- x [%s] [" % TIME), {"user": b"x [%s]" % TIME}),
        (COMMON.replace(b"192.0.2.7", b"2001:db8::1"), {"client": b"2001:db8::1", "peer": b"2001:db8::1"}),
        (COMMON.replace(b"192.0.2.7", b"a_b.example"), {"client": b"a_b.example", "peer": b"a_b.example"}),
        (COMMON + b' "\xff\xc3" "\x00"', {"referrer": b"\xff\xc3", "agent": b"\x00"}),
        (COMMON + b' "-" "a \\"b\\" c" "-" extra 7', {"agent": b'a \\"b\\" c'}),
    ],
)
def test_a_line_that_is_cut_off_or_has_more_is_parsed_as_far_as_it_goes(
    line: bytes, more: dict[str, Any]
) -> None:
    assert read(line) == {**FIELDS, **more}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, "the value is null"),
        (b"", "the line is empty"),
        (b"\r\n", "the line is empty"),
        (b"nonsense", "the line ends too early"),
        (b"\x00" * 50, "the line ends too early"),
        (b"- - - [%s] x" % TIME, "the time is missing or invalid"),
        (COMMON.replace(b"10/Oct", b"31/Feb"), "the time is missing or invalid"),
        (COMMON.replace(b"13:55", b"24:55"), "the time is missing or invalid"),
        (COMMON.replace(b"-0700", b"-9900"), "the time is missing or invalid"),
        (COMMON.replace(b'" 200', b" 200"), "the request has no closing quote with a status behind it"),
        (COMMON.replace(b" 200 ", b" 20x "), "the request has no closing quote with a status behind it"),
        (COMMON.replace(b"192.0.2.7", b"-"), "there is no client: neither an address nor a host name"),
        (COMMON.replace(b"192.0.2.7", b"<b>"), "there is no client: neither an address nor a host name"),
    ],
)
def test_a_line_without_what_it_must_have_is_bad_with_a_reason(line: bytes | None, why: str) -> None:
    assert refuse(line) == why


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (b"29/Feb/2024:00:00:00 +0000", "2024-02-29T00:00:00"),
        (b"31/dec/1999:23:59:60 +0000", "2000-01-01T00:00:00"),
        (b"01/Jan/2024:00:00:00 +1400", "2023-12-31T10:00:00"),
        (b"01/Jan/2024:00:00:00 -0930", "2024-01-01T09:30:00"),
        (b"01/Jan/2024:00:00:00.25", "2024-01-01T00:00:00.25"),
        (b"2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00"),
        (b"2024-01-01 00:00:00", "2024-01-01T00:00:00"),
        (b"1704067200.5", "2024-01-01T00:00:00.5"),
        (b"1704067200500", "2024-01-01T00:00:00.5"),
        (b"1704067200500000", "2024-01-01T00:00:00.5"),
        (b"1704067200500000000", "2024-01-01T00:00:00.5"),
    ],
)
def test_a_time_is_read_with_its_zone(time: bytes, expected: str) -> None:
    row = read(COMMON.replace(TIME, time))
    assert np.datetime64(row["time"], "us") == np.datetime64(expected, "us")


def test_a_line_of_a_megabyte_is_read_like_any_other() -> None:
    target = b"/" + b"a" * (1 << 20)
    agent = b"\\" * (1 << 20)
    line = b'192.0.2.7 - - [%s] "GET %s HTTP/1.1" 200 512 "http://example.org/" "%s"' % (TIME, target, agent)
    assert read(line) == {**BROWSER, "target": target, "agent": agent}


# --- clients behind proxies ---------------------------------------------------------------------------

PROXIES = ("10.0.0.0/8", "2001:db8::/32", "192.0.2.7")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        (b"10.0.0.1", b"198.51.100.1", b"198.51.100.1"),
        (b"10.0.0.1", b"203.0.113.9, 198.51.100.1", b"198.51.100.1"),
        (b"10.0.0.1", b"203.0.113.9, 198.51.100.1, 10.7.7.7,192.0.2.7", b"198.51.100.1"),
        (b"10.0.0.1", b"nonsense, 198.51.100.1", b"198.51.100.1"),
        (b"10.0.0.1", b"198.51.100.1, nonsense", b"10.0.0.1"),
        (b"10.0.0.1", b"198.51.100.1, unknown, 10.0.0.2", b"10.0.0.1"),
        (b"10.0.0.1", b"10.0.0.5, 10.0.0.2", b"10.0.0.5"),
        (b"10.0.0.1", b"-", b"10.0.0.1"),
        (b"10.0.0.1", b"", b"10.0.0.1"),
        (b"10.0.0.1", b"198.51.100.1:4711", b"198.51.100.1"),
        (b"10.0.0.1", b"[2a00::1]:443, [2001:db8::2]", b"2a00::1"),
        (b"::ffff:10.0.0.1", b"2a00::1", b"2a00::1"),
        (b"2001:db8::5", b"198.51.100.1", b"198.51.100.1"),
        (b"198.51.100.9", b"203.0.113.9", b"198.51.100.9"),
        (b"proxy.example", b"203.0.113.9", b"proxy.example"),
    ],
)
def test_the_client_is_the_right_most_address_that_is_not_trusted(
    peer: bytes, forwarded: bytes, client: bytes
) -> None:
    line = COMBINED.replace(b"192.0.2.7", peer) + b' "%s"' % forwarded
    row = read(line, proxies=PROXIES)
    assert (row["client"], row["peer"]) == (client, peer)
    assert read(line)["client"] == peer  # nobody is trusted without being named
    document = b'{"ts":971211336,"remote_addr":"%s","headers":{"X-Forwarded-For":["%s"]}}' % (peer, forwarded)
    assert read(document, proxies=PROXIES)["client"] == client


def test_headers_that_were_sent_twice_are_one_list() -> None:
    headers = b'{"X-Forwarded-For":["203.0.113.9", "198.51.100.1"]}'
    line = b'{"ts":971211336,"remote_addr":"10.0.0.1","headers":%s}' % headers
    assert read(line, proxies=PROXIES)["client"] == b"198.51.100.1"


def test_a_log_that_has_the_list_instead_of_a_peer_is_believed_at_its_right_end() -> None:
    row = read(b"203.0.113.9, " + COMBINED)
    assert (row["client"], row.get("peer")) == (b"192.0.2.7", None)
    row = read(b"203.0.113.9, 198.51.100.1, " + COMBINED, proxies=PROXIES)
    assert row["client"] == b"198.51.100.1"


# --- fields that are not there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "log_format", "lacking", "empty"),
    [
        (COMMON, "auto", {"referrer", "agent", "vhost"}, {"user"}),
        (COMMON, "common", {"referrer", "agent", "vhost"}, {"user"}),
        (COMMON + b' "-" "-"', "auto", {"vhost"}, {"user", "referrer", "agent"}),
        (COMMON + b' "-" "-"', "combined", {"vhost"}, {"user", "referrer", "agent"}),
        (COMMON, "combined", {"vhost"}, {"user", "referrer", "agent"}),  # cut off: the log has them
        (b'192.0.2.7 - - [%s] "-" 408 -' % TIME, "common", {"referrer", "agent", "vhost"},
         {"user", "method", "protocol"}),
        (b"192.0.2.7 [%s] GET /a 200" % TIME, "%h %t %m %U %>s",
         {"user", "protocol", "referrer", "agent", "vhost"}, set()),
        (b'{"ts":971211336,"ip":"::1","uri":"/","user_agent":"","referer":null,"method":"-"}', "auto",
         {"user", "protocol", "vhost"}, {"agent", "referrer", "method"}),
    ],
)  # fmt: skip
def test_a_field_that_the_log_does_not_have_is_told_from_one_that_is_empty(
    line: bytes, log_format: str, lacking: set[str], empty: set[str]
) -> None:
    lines = make_parser(log_format).parse(pa.array([line]))
    assert {name for name in TEXT_FIELDS if lines.lengths[name][0] == -2} == lacking
    assert {name for name in TEXT_FIELDS if lines.lengths[name][0] == -1} == empty
    for name in lacking | empty:
        assert take_texts(lines, name).to_pylist() == [None]


# --- columns ------------------------------------------------------------------------------------------

MIXED = [COMMON, None, b"", b"shop.example:80 " + COMBINED, b"nonsense", b'{"ts":971211336,"ip":"::1"}']


def check_mixed(lines: Lines) -> None:
    assert (lines.rows.tolist(), lines.bad_rows.tolist()) == ([0, 3, 5], [1, 2, 4])
    assert len(lines) == 3
    assert take_texts(lines, "client").to_pylist() == [b"192.0.2.7", b"192.0.2.7", b"::1"]
    assert take_texts(lines, "agent").to_pylist() == [None, b"curl/8.5", None]
    for name in TEXT_FIELDS:
        take_texts(lines, name).validate(full=True)
        assert (lines.starts[name].dtype, lines.lengths[name].dtype) == (np.int32, np.int32)
    kinds = [
        each.dtype for each in (lines.time_us, lines.status, lines.size, lines.latency_us, lines.is_json)
    ]
    assert kinds == [np.int64, np.int16, np.int64, np.int64, np.bool_]


def test_rows_are_parsed_or_bad_and_add_up_whatever_the_column_is() -> None:
    values = pa.array(MIXED, pa.binary())
    parser = make_parser()
    check_mixed(parser.parse(values))
    check_mixed(parser.parse(pa.array([None, b"x", *MIXED, b"y"], pa.binary())[2:-1]))
    check_mixed(parser.parse(pa.chunked_array([values[:2], values[2:4], values[4:]])))
    check_mixed(parser.parse(values.cast(pa.large_binary())))
    check_mixed(parser.parse(values.cast(pa.string())))
    for empty in (values[:0], pa.chunked_array([], pa.binary()), pa.array([], pa.string())):
        lines = parser.parse(empty)
        assert (len(lines), len(lines.bad_rows)) == (0, 0)
        assert take_texts(lines, "client").to_pylist() == []


def test_bytes_are_not_copied_and_live_as_long_as_the_lines_that_point_at_them() -> None:
    values = pa.array([COMMON] * 1000, pa.binary())
    address = values.buffers()[2].address
    data = make_parser().parse(values).data
    assert data.ctypes.data == address
    del values
    gc.collect()
    reused = [bytes(len(COMMON) * 1000) for _ in range(50)]
    assert data[: len(COMMON)].tobytes() == COMMON, len(reused)


def test_a_parser_travels_and_parses_where_it_arrives() -> None:
    parser = make_parser('%h %t "%r" %>s', ["10.0.0.0/8"])
    assert pickle.loads(pickle.dumps(parser)) == parser == Parser('%h %t "%r" %>s', ("10.0.0.0/8",))
    assert len(pickle.dumps(parser)) < 300


def test_a_target_and_its_query_in_two_fields_are_one_target() -> None:
    line = b'192.0.2.7 [%s] GET "/a" "%s" 200'
    log_format = '$remote_addr [$time_local] $request_method "$uri" "$args" $status'
    values = [line % (TIME, query) for query in (b"b=c", b"-", b"", b"?x", b"d=" + b"e" * 100)]
    lines = make_parser(log_format).parse(pa.array([values[0], b"nonsense", *values[1:]]))
    targets = [b"/a?b=c", b"/a", b"/a", b"/a?x", b"/a?d=" + b"e" * 100]
    assert take_texts(lines, "target").to_pylist() == targets
    assert take_texts(lines, "client").to_pylist() == [b"192.0.2.7"] * 5
