"""The client of a line becomes its key: the same key for all formats, and no line without one."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.shipping.shipper import find_clients, make_records
from penstock.apps.accesslog.shipping.whole_lines import Piece
from penstock.kernels.newline_cutting import cut_lines
from tests.support.checked_kernels import check_bounds

TAIL = b' - - [01/Feb/2026:10:00:00 +0000] "GET /a?b=[1] HTTP/1.1" 200 5'


def clients_of(*lines: bytes) -> list[bytes]:
    found: list[bytes] = find_clients(pa.array(lines, pa.large_binary())).to_pylist()
    return found


@pytest.mark.parametrize(
    ("line", "client"),
    [
        (b"10.0.0.1" + TAIL, b"10.0.0.1"),
        (b"2001:db8::7" + TAIL, b"2001:0db8:0000:0000::"),
        (b"2001:db8:0:0:1:2:3:4" + TAIL, b"2001:0db8:0000:0000::"),
        (b"2001:DB8:0:ab:1::" + TAIL, b"2001:0db8:0000:00ab::"),
        (b'{"remote_addr":"2a00::7"}', b"2a00:0000:0000:0000::"),
        (b"2a00::", b"2a00:0000:0000:0000::"),
        (b"::ffff:203.0.113.7" + TAIL, b"203.0.113.7"),
        (b"::FFFF:CB00:7107" + TAIL, b"203.0.113.7"),
        (b"0:0:0:0:0:ffff:cb00:7107" + TAIL, b"203.0.113.7"),
        (b"::ffff:0.10.100.255" + TAIL, b"0.10.100.255"),
        (b'{"remote_addr":"::ffff:203.0.113.7"}', b"203.0.113.7"),
        (b"::ffff:0:0", b"0.0.0.0"),
        (b"64:ff9b::192.0.2.7" + TAIL, b"0064:ff9b:0000:0000:0000:0000:c000:0207"),
        (b"64:FF9B::C000:207" + TAIL, b"0064:ff9b:0000:0000:0000:0000:c000:0207"),
        (b"::1" + TAIL, b"0000:0000:0000:0000:0000:0000:0000:0001"),
        (b"1:2::3" + TAIL, b"1:2::3"),
        (b"fe80::1%eth0" + TAIL, b"fe80:0000:0000:0000::"),
        (b"a:b", b"a:b"),
        (b"host.example" + TAIL, b"host.example"),
        (b'"10.0.0.1' + TAIL + b'"', b"10.0.0.1"),
        (b"www.example:443 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b"10.0.0.1 - Jo [x] [01/Feb/2026:10:00:00 +0000] - 1", b"10.0.0.1"),
        (b"Feb  1 10:00:00 web1 httpd[77]: 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b"<134>Feb 21 10:00:00 web1 httpd: 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b"<134>1 2026-02-01T10:00:00Z web1 httpd 77 - - 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b'<134>1 2026-02-01T10:00:00Z web1 httpd 77 - [a b="c"] 10.0.0.1' + TAIL, b"10.0.0.1"),
        (b"2026-02-01T10:00:00.123456+00:00 web1 httpd: 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b"Feb  1 10:00:00 web1 httpd: www.example:80 10.0.0.1" + TAIL, b"10.0.0.1"),
        (b'{"time":"x", "remote_addr" : "10.0.0.1","uri":"/"}', b"10.0.0.1"),
        (b'{"note":"\\"client\\":\\"no\\"","client":"10.0.0.1"}', b"10.0.0.1"),
        (b'Feb  1 10:00:00 web1 caddy: {"client_ip":"10.0.0.1"}', b"10.0.0.1"),
        (b"10.0.0.1\r", b"10.0.0.1"),
        (b"", b""),
        (b"   ", b""),
        (b"\x16\x03\x01", b"\x16\x03\x01"),
        (b'{"no":"name"}', b'{"no":"name"}'),
        (b"<134>", b"<134>"),
        (b"x" * 600, b"x" * 255),
    ],
)
def test_the_client_is_found_in_every_format(line: bytes, client: bytes) -> None:
    assert clients_of(line) == [client]


@pytest.mark.parametrize(
    ("log_format", "line", "client"),
    [
        ('%v %h %t "%r" %>s', 'shop.example {} [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200', ""),
        ("%v|%a|%t|%r|%>s", "shop.example|{}|[01/Feb/2026:10:00:00 +0000]|GET / HTTP/1.1|200", ""),
        ('%t %v "%r" %>s %a', '[01/Feb/2026:10:00:00 +0000] shop.example "GET / HTTP/1.1" 200 {}', ""),
        ("json", '{{"vhost":"a","time":"2026-02-01T10:00:00Z","request":{{"remote_ip":"{}"}}}}', ""),
        ("auto", 'web 10.0.0.5 - - [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-" "{}"', ""),
        ("auto", 'web 10.9.9.9 - - [01/Feb/2026:10:00:00 +0000] "GET /" 200 5 "-" "-" "{}"', "10.9.9.9"),
    ],
)  # fmt: skip
def test_the_key_is_the_client_that_the_format_names(log_format: str, line: str, client: str) -> None:
    """Whatever comes before it; behind a proxy, only the client that a trusted proxy names."""
    parser = make_parser(log_format, ["10.0.0.5"])
    sent = [f"203.0.113.{n}" for n in range(50)] + ["2001:db8:1:2::7"]
    lines = pa.array([line.format(each).encode() for each in sent], pa.large_binary())
    keys = [key.decode() for key in find_clients(lines, parser).to_pylist()]
    assert keys == ([client] * 51 if client else [*sent[:-1], "2001:0db8:0001:0002::"])


def test_a_line_that_does_not_have_the_format_has_a_key_all_the_same() -> None:
    parser = make_parser('%v %h %t "%r" %>s')
    lines = [
        b"10.0.0.1" + TAIL,
        b"",
        b"nonsense here",
        b'a 10.0.0.2 [01/Feb/2026:10:00:00 +0000] "GET /" 200',
    ]
    keys = find_clients(pa.array(lines, pa.large_binary()), parser).to_pylist()
    assert keys == [b"10.0.0.1", b"", b"nonsense", b"10.0.0.2"]
    part = pa.array([b"x", *lines, b"y"], pa.large_binary()).slice(1, 4)
    assert find_clients(part, parser).to_pylist() == keys


PARTS = st.sampled_from(
    [
        *(b"10.0.0.1", b" ", b"[", b'"', b"{", b"}", b":", b"<1>", b"1 ", b"Feb  1 10:00:00 ", b"a", b"\\"),
        *(b"-", b'"client"', b'"ip":"x"', b"2026-02-01T10:00:00Z ", b"web1 ", b"\xff", b"\r", b"\t", b","),
    ]
)


@given(st.lists(st.lists(PARTS, max_size=14).map(b"".join), max_size=6))
def test_every_line_has_a_key_that_stands_in_it_and_depends_on_it_alone(lines: list[bytes]) -> None:
    together = clients_of(*lines)
    assert together == [client for line in lines for client in clients_of(line)]
    assert all(
        client in line or re.fullmatch(rb"([0-9a-f]{4}:){4}(:|([0-9a-f]{4}:){3}[0-9a-f]{4})", client)
        for client, line in zip(together, lines, strict=True)
    )


def key_of(client: bytes) -> bytes:
    """Return the client of an address in one spelling, or any other text without its port."""
    client = re.sub(rb"^([^:]+):[0-9]+$", rb"\1", client)
    try:
        address = ipaddress.IPv6Address(client.decode())
    except ValueError:
        return client
    if address in ipaddress.ip_network("1::/16"):  # counted in the same way as host names
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped).encode()
    crowds = ("::/64", "64:ff9b::/32", "2001::/32")
    is_alone = any(address in ipaddress.ip_network(each) for each in crowds)
    return address.exploded.encode() if is_alone else address.exploded[:20].encode() + b":"


IPV4 = st.ip_addresses(v=4)


@given(IPV4, IPV4.map(lambda address: f"64:ff9b::{address}"), st.ip_addresses(v=6))
def test_a_client_has_one_key_however_its_address_is_written(
    old: ipaddress.IPv4Address, translated: str, new: ipaddress.IPv6Address
) -> None:
    """It is one client to the rules, so all its lines belong in one partition."""
    mapped = ipaddress.IPv6Address(f"::ffff:{old}")
    ways = [[str(old), f"::ffff:{old}", mapped.exploded, mapped.compressed.upper()]]
    ways += [
        [str(each), each.exploded, each.compressed.upper()]
        for each in (ipaddress.IPv6Address(translated), new)
        if each not in ipaddress.ip_network("1::/16")
    ]
    for some in ways:
        assert len({clients_of(each.encode() + TAIL)[0] for each in some}) == 1, some


@given(st.from_regex(rb"[0-9a-f.:]{1,20}", fullmatch=True), st.from_regex(rb"[a-z-]{1,8}", fullmatch=True))
def test_common_lines_have_what_a_simple_pattern_finds(client: bytes, user: bytes) -> None:
    line = client + b" - " + user + b' [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5'
    found = re.match(rb"(\S+) \S+ \S+ \[", line)
    assert found is not None
    assert clients_of(line) == [key_of(found[1])]


def piece_of(text: bytes, longest: int = 100) -> Piece:
    lines, cut_rows = cut_lines(text, longest)
    return Piece("access.log", lines, cut_rows, len(text))


def test_records_carry_the_server_and_say_which_lines_are_cut() -> None:
    pieces = [piece_of(b"10.0.0.1 a\n10.0.0.2 b\n"), piece_of(b"10.0.0.3 " + b"x" * 200 + b"\n10.0.0.4 c\n")]
    records = make_records(pieces, "web1", "client")
    assert records.column("key").to_pylist() == [b"10.0.0.1", b"10.0.0.2", b"10.0.0.3", b"10.0.0.4"]
    headers = [
        [(each["key"], each["value"]) for each in row] for row in records.column("headers").to_pylist()
    ]
    plain = [("server", b"web1")]
    assert headers == [plain, plain, [*plain, ("cut", b"1")], plain]
    assert [len(value) for value in records.column("value").to_pylist()] == [10, 10, 100, 10]


@pytest.mark.parametrize(("key", "expected"), [("server", b"web1"), ("none", None)])
def test_the_key_may_be_the_server_or_none(key: str, expected: bytes | None) -> None:
    records = make_records([piece_of(b"a\nb\n")], "web1", key)  # type: ignore[arg-type]
    keys = records.column("key").to_pylist() if "key" in records.schema.names else [None, None]
    assert keys == [expected, expected]


PROGRAM = """
import random
import numpy as np
from penstock.apps.accesslog.shipping.client_key_kernel import JSON_NAMES, JSON_STARTS, cut_clients
from tests.support.guard_page import GuardedMemory, guarded_array

whole = [
    b'<134>1 2026-02-01T10:00:00Z web1 httpd 77 - [a b="c"] 10.0.0.1 - - [01/Feb/2026:10:00:00 +0000] "GET /',
    b'2001:db8:1:2::7 - - [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5',
    b'Feb  1 10:00:00 web1 httpd: www.example:80 10.0.0.1 - - [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1"',
    b'2026-02-01T10:00:00.12+00:00 web1 caddy: {"a":"b\\\\\\\\","remote_addr" : "10.0.0.1","uri":"/"}',
]
dice, memory = random.Random(5), GuardedMemory(4096)
nowhere = np.zeros(1, np.int64)
lines = [line[:size] for line in whole for size in range(len(line) + 1)]
signs = b'<>1 :[]"{}\\\\-TFeb0,'
lines += [bytes(dice.choices(signs, k=dice.randint(0, 60))) for _ in range(4000)]
for line in lines:
    data = memory.place(line)
    out, starts = guarded_array(min(max(len(line), 39), 255), np.uint8), np.zeros(2, np.int64)
    names = out, starts, JSON_NAMES, JSON_STARTS
    assert cut_clients(data, np.array([0, len(line)]), nowhere, nowhere, *names)
    assert bytes(out[: starts[1]]) in line or starts[1] in (21, 39)
    if line:
        last = np.array([len(line) - 1])
        assert cut_clients(data, np.array([0, len(line)]), last, last * 0 + 1, *names)
        assert bytes(out[: starts[1]]) == line[-1:]
        assert not cut_clients(data, np.array([0, len(line)]), last, last * 0 + 2, *names)
        assert not cut_clients(data, np.array([1, len(line)]), nowhere, last * 0 + 1, *names)
assert not cut_clients(data, np.array([0, len(line) + 1]), nowhere, nowhere, *names)
print(len(lines))
"""


@pytest.mark.parametrize("checked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_kernel_never_looks_behind_a_line(checked: bool) -> None:
    """It runs in front of a protected page, and with numba's own checks."""
    more = check_bounds() if checked else {}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **more},
        cwd=Path(__file__).parents[5],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 4000
