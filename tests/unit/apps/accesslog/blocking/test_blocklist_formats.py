"""Each blocklist format, read back by a strict reader of its grammar: it says nothing but what it should."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking.blocklist_changes import Delta
from penstock.apps.accesslog.blocking.blocklist_formats import (
    FORMATS,
    LONGEST_TIMEOUT_S,
    render,
    show_time,
    write_json,
)
from penstock.apps.accesslog.blocking.blocklists import Ban, drop_covered
from penstock.apps.accesslog.events.networks import Network, demand_network
from penstock.core.errors import OptionError
from tests.support.hostile_texts import HOSTILE

SECOND_US = 1_000_000
NOW_US = 1_900_000_000 * SECOND_US

#: What an entry says: a network, and its remaining seconds where the format has them.
Read = dict[ipaddress.IPv4Network | ipaddress.IPv6Network, int | None]


def make_ban(network: str, seconds: int = 600, **words: str) -> Ban:
    end_us = NOW_US + seconds * SECOND_US
    return Ban(
        demand_network("test", network),
        end_us,
        words.get("decision_id", "d1"),
        words.get("rule", "r"),
        words.get("attack", "c"),
    )


# --- strict readers ---------------------------------------------------------------------------------------


def read_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    assert re.fullmatch(r"[0-9a-f:./]+", text), text
    return ipaddress.ip_network(text, strict=True)


def read_text(content: str) -> Read:
    return {read_network(line): None for line in content.splitlines()}


def read_csv(content: str) -> Read:
    head, *rows = csv.reader(io.StringIO(content), strict=True)
    assert head == ["network", "expires_at", "class", "rule", "decision_id"]
    assert all(len(row) == 5 for row in rows)
    return {read_network(row[0]): None for row in rows}


def read_json(content: str) -> Read:
    told = json.loads(content)
    assert set(told) == {"version", "cursor", "complete", "added", "removed"}
    assert (told["complete"], told["removed"]) == (True, [])
    return {read_network(each["network"]): None for each in told["added"]}


def read_nftables(content: str) -> Read:
    lines = [line for line in content.splitlines() if not line.startswith("# ")]
    assert lines.pop(0) == "add table inet penstock"
    found: Read = {}
    for version in (4, 6):
        name = f"blocked{version}"
        kind = f"{{ type ipv{version}_addr; flags interval, timeout; }}"
        assert lines.pop(0) == f"add set inet penstock {name} {kind}"
        assert lines.pop(0) == f"flush set inet penstock {name}"
        start = f"add element inet penstock {name} {{ "
        while lines and lines[0].startswith(start):
            line = lines.pop(0)
            assert line.endswith(" }")
            for element in line[len(start) : -2].split(", "):
                whole = re.fullmatch(r"(\S+) timeout ([1-9][0-9]*)s", element)
                assert whole, element
                network = read_network(whole[1])
                assert network.version == version
                assert not any(
                    network.version == other.version and network.overlaps(other) for other in found
                )
                found[network] = int(whole[2])
    assert lines == []
    return found


def read_ipset(content: str) -> Read:
    lines = [line for line in content.splitlines() if not line.startswith("# ")]
    found: Read = {}
    for version, family in ((4, "inet"), (6, "inet6")):
        for name in (f"penstock{version}", f"penstock{version}-new"):
            made = f"create {name} hash:net family {family} maxelem 1048576 timeout 0 -exist"
            assert lines.pop(0) == made, "a set that exists is taken only with the same words"
        assert lines.pop(0) == f"flush penstock{version}-new"
        while lines[0].startswith("add "):
            whole = re.fullmatch(
                rf"add penstock{version}-new (\S+) timeout ([1-9][0-9]*) -exist", lines.pop(0)
            )
            assert whole
            network = read_network(whole[1])
            assert network.version == version
            found[network] = int(whole[2])
        assert lines.pop(0) == f"swap penstock{version} penstock{version}-new"
        assert lines.pop(0) == f"destroy penstock{version}-new"
    assert lines == []
    return found


def read_apache(content: str) -> Read:
    comment, opening, granted, *lines, closing = content.splitlines()
    assert comment.startswith("# ")
    assert (opening, granted.strip(), closing) == ("<RequireAll>", "Require all granted", "</RequireAll>")
    found: Read = {}
    for line in lines:
        assert line.startswith("    Require not ip ")
        found |= {read_network(word): None for word in line.removeprefix("    Require not ip ").split(" ")}
    return found


def read_apache_map(content: str) -> Read:
    comment, *lines = content.splitlines()
    assert comment.startswith("# ")
    assert all(line.count(" ") == 1 and line.endswith(" blocked") for line in lines)
    singles = [read_network(line.split(" ")[0]) for line in lines]
    assert all(each.num_addresses == 1 for each in singles)
    assert len(set(singles)) == len(singles)
    return dict.fromkeys(singles, None)


def read_nginx(content: str) -> Read:
    comment, *lines = content.splitlines()
    assert comment.startswith("# ")
    assert all(re.fullmatch(r"deny \S+;", line) for line in lines)
    return {read_network(line[5:-1]): None for line in lines}


def read_nginx_geo(content: str) -> Read:
    comment, opening, default, *lines, closing = content.splitlines()
    assert comment.startswith("# ")
    assert (opening, default, closing) == ("geo $penstock_blocked {", "    default 0;", "}")
    assert all(re.fullmatch(r"    \S+ 1;", line) for line in lines)
    return {read_network(line.strip()[:-3]): None for line in lines}


READERS: dict[str, Callable[[str], Read]] = {
    "text": read_text,
    "csv": read_csv,
    "json": read_json,
    "nftables": read_nftables,
    "ipset": read_ipset,
    "apache": read_apache,
    "apache-map": read_apache_map,
    "nginx": read_nginx,
    "nginx-geo": read_nginx_geo,
}
#: Few addresses, so that networks overlap.
networks = st.one_of(
    st.builds(
        lambda n, w: Network(4, 0xC0000200 + (n >> w << w), 32 - w), st.integers(0, 63), st.integers(0, 5)
    ),
    st.builds(
        lambda n, w: Network(6, (0x20010DB8 << 96) + (n >> w << w), 128 - w),
        st.integers(0, 63),
        st.integers(0, 5),
    ),
)
bans = st.builds(
    lambda network, seconds: Ban(network, NOW_US + seconds * SECOND_US, "d", "r", "c"),
    networks,
    st.integers(1, 5),
)


def test_every_format_has_a_reader_here() -> None:
    assert set(READERS) == set(FORMATS)
    assert len({each.file_name for each in FORMATS.values()}) == len(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
@given(some=st.lists(bans, max_size=12).map(drop_covered))
def test_every_format_says_who_is_blocked_and_for_how_long(name: str, some: list[Ban]) -> None:
    content = render(name, some, cursor=7, now_us=NOW_US).content.decode("ascii")
    assert content == "" or content.endswith("\n")
    ends: dict[object, int] = {}
    for ban in some:
        for number in range(ban.network.first, ban.network.last + 1):
            at = (ban.network.version, number)
            ends[at] = max(ends.get(at, 0), (ban.expires_at_us - NOW_US) // SECOND_US)
    found: dict[object, int | None] = {}
    for network, seconds in READERS[name](content).items():
        first = int(network.network_address)
        for number in range(first, first + network.num_addresses):
            at = (network.version, number)
            found[at] = max(found.get(at) or 0, seconds) if seconds is not None else None
    assert set(found) == set(ends)
    if FORMATS[name].has_timeouts:
        assert found == ends


@pytest.mark.parametrize("name", FORMATS)
def test_no_word_of_a_decision_can_leave_its_place(name: str) -> None:
    """S32: rules and ids come from files and logs; over 300 hostile ones change no entry."""
    some = [
        make_ban(f"192.0.2.{number % 250}", decision_id=text, rule=text, attack=text)
        for number, text in enumerate(HOSTILE)
    ]
    expected = {ipaddress.ip_network(str(ban.network)) for ban in some}
    content = render(name, some, cursor=7, now_us=NOW_US).content.decode("utf-8")
    assert set(READERS[name](content)) == expected
    assert not {"\x1b", "\x00", "\x07", "\u202e", "\u2028"} & set(content)
    if name not in ("csv", "json"):
        assert not any(text in content for text in HOSTILE if len(text) > 12)


def test_no_cell_of_a_csv_is_a_formula() -> None:
    """S26: a spreadsheet runs what begins with = + - or @."""
    words = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"]
    some = [make_ban("192.0.2.1", rule=word, attack=word, decision_id=word) for word in words]
    rows = list(csv.reader(io.StringIO(render("csv", some, cursor=1, now_us=NOW_US).content.decode())))[1:]
    assert len(rows) == len(words)
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for row in rows for cell in row)


@pytest.mark.parametrize("name", FORMATS)
def test_what_has_ended_is_in_no_list_and_a_list_may_be_empty(name: str) -> None:
    content = render(name, [make_ban("192.0.2.1", 0)], cursor=7, now_us=NOW_US).content.decode()
    assert READERS[name](content) == {}
    assert content == render(name, [], cursor=7, now_us=NOW_US).content.decode()


@pytest.mark.parametrize("name", ["nftables", "ipset"])
@pytest.mark.parametrize(
    ("left_us", "seconds"),
    [(1, 1), (SECOND_US, 1), (SECOND_US + 1, 2), (2**62, LONGEST_TIMEOUT_S)],
)
def test_a_timeout_is_whole_seconds_and_never_nothing(name: str, left_us: int, seconds: int) -> None:
    ban = make_ban("192.0.2.1")._replace(expires_at_us=NOW_US + left_us)
    content = render(name, [ban], cursor=7, now_us=NOW_US).content.decode()
    assert list(READERS[name](content).values()) == [seconds]


def test_a_map_of_addresses_leaves_out_and_counts_what_it_cannot_say() -> None:
    some = [make_ban("192.0.2.0/24"), make_ban("198.51.0.0/16"), make_ban("2001:db8::/64")]
    rendered = render("apache-map", some, cursor=1, now_us=NOW_US)
    assert rendered.left_out == 2
    assert len(read_apache_map(rendered.content.decode())) == 256


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"FORMAT_UNKNOWN.*nftables"):
        render("iptables", [], cursor=1, now_us=NOW_US)


def test_a_delta_in_json_tells_what_came_and_what_went() -> None:
    delta = Delta(9, (make_ban("192.0.2.1"),), (demand_network("x", "192.0.2.0/24"),), False)
    assert json.loads(write_json(delta)) == {
        "version": 1,
        "cursor": 9,
        "complete": False,
        "added": [
            {
                "network": "192.0.2.1",
                "expires_at": show_time(NOW_US + 600 * SECOND_US),
                "expires_at_us": NOW_US + 600 * SECOND_US,
                "class": "c",
                "rule": "r",
                "decision_id": "d1",
            }
        ],
        "removed": ["192.0.2.0/24"],
    }


def test_moments_far_off_are_still_moments() -> None:
    assert show_time(2**63 - 1) == "9999-12-31T23:59:59Z"
    assert show_time(-5) == "1970-01-01T00:00:00Z"
