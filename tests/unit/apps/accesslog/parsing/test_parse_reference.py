"""The access-log kernel compared with the slow reference: every field of every line, and every reason."""

from __future__ import annotations

import gzip
import random
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path

import pyarrow as pa
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.apps.accesslog.parsing.line_parser import make_parser, take_texts
from penstock.apps.accesslog.parsing.line_slots import NO_FIELD
from tests.proof.fuzz_accesslog import FORMATS, PROXIES, as_rows, damage, make_format, make_line
from tests.reference.accesslog_parser import list_lacking, parse_line
from tests.reference.accesslog_values import read_address, strip_port, strip_zone

IPAddress = IPv4Address | IPv6Address


def compare(values: list[bytes | None], log_format: str, proxies: tuple[str, ...] = ()) -> None:
    lines = make_parser(log_format, proxies).parse(pa.array(values, pa.binary()))
    assert lines.rows.tolist() == sorted(lines.rows.tolist())
    assert lines.bad_rows.tolist() == sorted(lines.bad_rows.tolist())
    for value, row in zip(values, as_rows(lines, len(values)), strict=True):
        assert row == parse_line(value, log_format, proxies), (log_format, value)
    for n, number in enumerate(lines.rows.tolist()):
        lacking = {name for name, sizes in lines.lengths.items() if sizes[n] == NO_FIELD}
        assert lacking == list_lacking(values[number], log_format, proxies), (log_format, values[number])


@given(st.randoms(use_true_random=False), st.sampled_from(sorted(FORMATS)), st.sampled_from([(), PROXIES]))
@settings(max_examples=300, deadline=None)
def test_every_field_of_every_line_is_what_the_reference_reads(
    rng: random.Random, log_format: str, proxies: tuple[str, ...]
) -> None:
    values = [damage(rng, make_line(rng, log_format))[1] for _ in range(4)]
    compare([*values, None], log_format, proxies)


@given(st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_lines_of_any_format_are_what_the_reference_reads(rng: random.Random) -> None:
    log_format, lines = make_format(rng)
    compare([*lines, damage(rng, lines[0])[1]], log_format, PROXIES)


@given(st.lists(st.binary(max_size=120), min_size=1, max_size=6), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_read_as_the_reference_reads_them(values: list[bytes], log_format: str) -> None:
    compare(list(values), log_format)


@given(st.integers(0, 10**20).map(str), st.sampled_from(["", ".5", ".123456789"]))
@settings(max_examples=200, deadline=None)
@example("9700000000123456789", "")  # more than a signed number of 64 bits
@example("9223372036854775808", "")
def test_a_time_in_digits_is_read_as_the_reference_reads_it(digits: str, fraction: str) -> None:
    compare([f"192.0.2.7|{digits}{fraction}|GET|/a".encode()], "%a|%{msec}t|%m|%U")


# --- addresses ----------------------------------------------------------------------------------------

ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: address.exploded),
    st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}"),
    st.lists(st.sampled_from(["0", "1", "ab", "FFFF", "", "12345", "1.2.3.4", "256", "01"]), max_size=10).map(
        ":".join
    ),
    st.lists(st.sampled_from(["0", "1", "255", "256", "01", "", "a", "1234"]), max_size=6).map(".".join),
    st.text("0123456789abcdef:.", max_size=20),
)


def find_clients(entries: list[str], proxies: tuple[str, ...]) -> list[str]:
    """Return the client of each line whose forwarding header ends in the entry, behind a trusted proxy."""
    line = '10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "-" "203.0.113.250, {}"'
    lines = make_parser("nginx", ("10.0.0.1", *proxies)).parse(
        pa.array([line.format(each) for each in entries])
    )
    return [each.decode() for each in take_texts(lines, "client").to_pylist()]


@given(st.lists(ADDRESSES, min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_an_address_is_one_exactly_when_python_says_so(entries: list[str]) -> None:
    named = [strip_zone(strip_port(each.encode())) for each in entries]
    expected = ["10.0.0.1" if read_address(each) is None else each.decode() for each in named]
    expected = ["203.0.113.250" if each == "10.0.0.1" and name == b"10.0.0.1" else each
                for each, name in zip(expected, named, strict=True)]  # fmt: skip
    assert find_clients(entries, ()) == expected


@given(
    st.ip_addresses(), st.integers(0, 128), st.lists(st.ip_addresses(), min_size=1, max_size=20), st.randoms()
)
@settings(max_examples=100, deadline=None)
def test_a_proxy_is_trusted_exactly_when_it_is_in_a_network_that_was_named(
    base: IPAddress, bits: int, others: list[IPAddress], rng: random.Random
) -> None:
    assume(read_address(str(base).encode()) == base)  # not an IPv4 address in IPv6 notation
    network = ip_network(f"{base}/{min(bits, base.max_prefixlen)}", strict=False)
    near = [type(base)(int(base) ^ (1 << rng.randrange(base.max_prefixlen))) for _ in range(10)]
    entries = [each for each in (*others, *near, base) if read_address(str(each).encode()) == each]
    clients = find_clients([str(each) for each in entries], (str(network),))
    trusted = [each in network or str(each) == "10.0.0.1" for each in entries]
    assert [client != str(each) for client, each in zip(clients, entries, strict=True)] == [
        known and str(each) != "203.0.113.250" for known, each in zip(trusted, entries, strict=True)
    ]


# --- real logs ----------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[bytes]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.removesuffix(b"\n").split(b"\n")


def test_real_logs_are_parsed_nearly_all_and_as_the_reference_parses_them(accesslog_data: Path) -> None:
    paths = sorted([*accesslog_data.rglob("*.log"), *accesslog_data.rglob("*.txt.gz")])
    assert paths
    for path in paths:
        values = read_lines(path)
        lines = make_parser().parse(pa.array(values, pa.binary()))
        written = [value for value in values if value.strip()]
        assert len(lines) >= 0.999 * len(written), path.name
        assert len(lines) + len(lines.bad_rows) == len(values), path.name
        sample: list[bytes | None] = list(values[:: max(1, len(values) // 500)])
        compare(sample, "auto")
        compare(sample, "combined")
