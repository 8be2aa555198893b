"""Who is blocked at a given moment: what counts, has ended or was undone, and what may never be in a list."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking.blocklists import (
    Ban,
    Gate,
    Spared,
    drop_covered,
    make_bans,
    make_disjoint,
    read_bans,
)
from penstock.apps.accesslog.blocking.decision_records import COLUMNS
from penstock.apps.accesslog.defence.allow_list import list_crawlers
from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.events.networks import Network, NetworkSet, demand_network, parse_network
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.support.accesslog.decisions_database import NOW_US, SECOND_US, decide
from tests.support.hostile_texts import HOSTILE


def network(text: str) -> Network:
    return demand_network("test", text)


def blocked(place: Place, now_us: int = NOW_US) -> list[str]:
    return [str(ban.network) for ban in Database(place).run(lambda s: read_bans(s, now_us=now_us))]


# --- networks ---------------------------------------------------------------------------------------------

# Few addresses, so that networks overlap.
addresses = st.one_of(
    st.integers(0, 63).map(lambda n: (4, 0xC0000200 + n)),
    st.integers(0, 63).map(lambda n: (6, (0x20010DB8 << 96) + n)),
)


def make_network(address: tuple[int, int], width: int) -> Network:
    version, number = address
    bits = 32 if version == 4 else 128
    return Network(version, number >> width << width, bits - width)


networks = st.builds(make_network, addresses, st.integers(0, 5))


def members(*some: Network) -> set[tuple[int, int]]:
    return {(each.version, number) for each in some for number in range(each.first, each.last + 1)}


@given(st.one_of(st.ip_addresses(), st.from_type(ipaddress.IPv4Network), st.from_type(ipaddress.IPv6Network)))
def test_every_address_and_network_is_read_as_the_standard_library_reads_it(given_network: object) -> None:
    expected = ipaddress.ip_network(str(given_network))
    mapped = expected.version == 6 and expected.network_address in ipaddress.ip_network("::ffff:0:0/96")
    found = parse_network(str(given_network))
    assert found is not None
    if mapped and expected.prefixlen >= 96:
        assert found.version == 4
    else:
        assert ipaddress.ip_network(str(found)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("192.0.2.7/24", "192.0.2.0/24"),
        ("2001:0DB8:0:0::7", "2001:db8::7"),
    ],
)
def test_one_client_has_one_name(text: str, expected: str) -> None:
    assert str(network(text)) == expected


@given(networks, st.lists(networks, max_size=6))
def test_what_is_left_of_a_network_is_what_the_others_do_not_have(
    whole: Network, holes: list[Network]
) -> None:
    found = NetworkSet(holes)
    left = found.subtract_from(whole)
    assert members(*left) == members(whole) - members(*holes)
    assert sum(each.size for each in left) == len(members(*left)), "no address is in two of them"
    assert found.covers(whole) == any(each.contains(whole) for each in holes)
    assert found.touches(whole) == any(each.overlaps(whole) for each in holes)


# --- bans -------------------------------------------------------------------------------------------------

bans = st.builds(lambda n, ends: Ban(n, ends, f"{n}/{ends}", "r", "c"), networks, st.integers(1, 6))


def end_of_each(some: list[Ban]) -> dict[tuple[int, int], int]:
    """Return how long each address is blocked, which is all that a list means."""
    ends: dict[tuple[int, int], int] = {}
    for ban in some:
        for member in members(ban.network):
            ends[member] = max(ends.get(member, 0), ban.expires_at_us)
    return ends


@given(st.lists(bans, max_size=12))
def test_lists_without_covered_and_without_overlapping_entries_mean_the_same(some: list[Ban]) -> None:
    short = drop_covered(some)
    apart = make_disjoint(short)
    assert end_of_each(short) == end_of_each(some)
    assert end_of_each(apart) == end_of_each(some)
    assert sum(ban.network.size for ban in apart) == len(end_of_each(apart))
    assert len({ban.network for ban in short}) == len(short)


def test_only_enforced_decisions_whose_time_runs_count(place: Place) -> None:
    decide(place, "192.0.2.1")
    decide(place, "192.0.2.2", action="simulate")
    decide(place, "192.0.2.3", action="allowed")
    decide(place, "192.0.2.4", action="grace")
    decide(place, "192.0.2.5", seconds=0)
    decide(place, "198.51.100.0/24")
    decide(place, "agent+GET+/x", kind="print", client="203.0.113.9")
    assert blocked(place) == ["192.0.2.1", "198.51.100.0/24", "203.0.113.9"]
    assert blocked(place, NOW_US + 600 * SECOND_US - 1) == blocked(place)
    assert blocked(place, NOW_US + 600 * SECOND_US) == []


def test_of_a_counted_network_only_those_who_took_part_are_listed(place: Place) -> None:
    decide(place, "192.0.2.0/24", client="192.0.2.7")
    decide(place, "192.0.2.0/24", client="192.0.2.200")
    decide(place, "2001:db8::/48", client="2001:db8:0:1::/64")
    decide(place, "bad.example", kind="net", client="bad.example")
    assert blocked(place) == ["192.0.2.7", "192.0.2.200", "2001:db8:0:1::/64"]


def test_the_longest_of_several_bans_counts(place: Place) -> None:
    decide(place, "192.0.2.1", seconds=600)
    last = decide(place, "192.0.2.1", seconds=1200)
    decide(place, "192.0.2.1", seconds=60)
    [ban] = Database(place).run(lambda s: read_bans(s, now_us=NOW_US))
    assert (ban.decision_id, ban.expires_at_us) == (last, NOW_US + 1200 * SECOND_US)


@pytest.mark.parametrize(
    "subject", ["127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "ff02::1", "::"]
)
def test_addresses_that_nobody_may_block_are_in_no_list(place: Place, subject: str) -> None:
    decide(place, subject)
    assert blocked(place) == []


@pytest.mark.parametrize("subject", ["0.0.0.0/0", "10.0.0.0/8", "::/0", "2001:db8::/47"])
def test_a_network_too_wide_to_be_one_attacker_is_in_no_list(place: Place, subject: str) -> None:
    decide(place, subject)
    assert blocked(place) == []


@pytest.mark.usefixtures("place")
def test_no_hostile_subject_becomes_an_entry() -> None:
    """S32: what is not an address becomes no entry, whatever else it is."""
    assert len(HOSTILE) >= 300
    rows = [
        (f"d{number}", text, kind, text, NOW_US - 1, NOW_US + SECOND_US, "r", "c")
        for number, text in enumerate(HOSTILE)
        for kind in ("client", "net", "print")
    ]
    assert make_bans(rows, []) == []


def test_an_order_lets_a_client_go_and_keeps_the_rest_of_its_network(place: Place) -> None:
    decide(place, "192.0.2.1")
    decide(place, "198.51.100.0/30")
    place_order(place, "192.0.2.1", now_us=NOW_US, grace_us=0)
    place_order(place, "198.51.100.1", now_us=NOW_US, grace_us=0)
    assert blocked(place) == ["198.51.100.0", "198.51.100.2/31"]


def test_an_order_undoes_what_is_decided_in_its_grace_time_and_nothing_later(place: Place) -> None:
    place_order(place, "192.0.2.0/24", now_us=NOW_US, grace_us=10 * SECOND_US)
    decide(place, "192.0.2.1", decided_at=NOW_US + 10 * SECOND_US - 1)
    assert blocked(place) == []
    decide(place, "192.0.2.1", decided_at=NOW_US + 10 * SECOND_US)
    assert blocked(place) == ["192.0.2.1"]


@pytest.mark.parametrize(
    "subject", ["10.0.0.5", "172.16.0.1", "192.168.7.0/24", "100.64.0.1", "fd00::/64", "fec0::/64"]
)
def test_a_private_network_is_in_no_list_unless_that_is_asked_for(place: Place, subject: str) -> None:
    """Even a network that was decided upon before such addresses were spared."""
    decide(place, subject)
    bans = Database(place).run(lambda s: read_bans(s, now_us=NOW_US))
    assert Gate.of().apply(bans) == []
    assert [str(ban.network) for ban in Gate.of(block_private=True).apply(bans)] == [subject]


def test_the_last_gate_cuts_out_allowed_networks_and_trusted_proxies() -> None:
    rows = [
        (f"d{text}", text, "net", text, NOW_US - 1, NOW_US + SECOND_US, "r", "c")
        for text in ("192.0.2.1", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/64")
    ]
    gate = Gate.of(
        allow=["192.0.2.0/24", "2001:db8::/48"], trusted_proxies=["198.51.100.128", "203.0.112.0/23"]
    )
    listed = gate.apply(make_bans(rows, []))
    assert {ban.network.version for ban in listed} == {4}
    assert NetworkSet(ban.network for ban in listed).touches(network("198.51.100.128")) is False
    assert sum(ban.network.size for ban in listed) == 255


def test_the_gate_cuts_to_the_very_address_at_both_ends_of_what_is_allowed() -> None:
    gate = Gate.of(
        allow=["192.0.2.8/30", "192.0.2.9", "192.0.2.64", "2001:db8::8/126", "2001:db8::40"],
        trust_crawlers=False,
    )
    allowed = {8, 9, 10, 11, 64}
    for whole in (network("192.0.2.0/24"), network("2001:db8::/120")):
        for prefix in range(whole.prefix, whole.bits + 1):
            size = 1 << (whole.bits - prefix)
            for start in range(0, 256, size):
                ban = Ban(Network(whole.version, whole.first + start, prefix), 5, "d", "r", "c")
                left = members(*(each.network for each in gate.apply([ban])))
                expected = {whole.first + each for each in range(start, start + size) if each not in allowed}
                assert left == {(whole.version, each) for each in expected}


def test_a_crawler_in_a_blocked_network_is_cut_out_of_it_unless_it_is_distrusted() -> None:
    crawler = next(each for _, each in list_crawlers() if each.version == 4 and each.prefix > 20)
    around = crawler._replace(prefix=20, first=crawler.first >> 12 << 12)
    ban = Ban(around, NOW_US + 1, "d", "r", "c")
    assert Gate.of(trust_crawlers=False).apply([ban]) == [ban]
    listed = Gate.of().apply([ban])
    assert listed
    assert not NetworkSet(each.network for each in listed).touches(crawler)


def test_the_columns_of_a_decision_are_those_that_the_defence_writes() -> None:
    assert tuple(DECISIONS.names) == COLUMNS


def test_an_allow_list_with_something_else_in_it_is_refused() -> None:
    with pytest.raises(OptionError, match="NETWORK_INVALID"):
        Gate.of(allow=["example.com"])
    with pytest.raises(OptionError, match="NETWORK_INVALID"):
        Gate.of(trusted_proxies=["proxy.example"])


@given(st.lists(bans, max_size=8), st.lists(networks, max_size=3), st.lists(networks, max_size=3))
def test_nothing_that_is_spared_or_allowed_is_in_a_list(
    some: list[Ban], spared: list[Network], allowed: list[Network]
) -> None:
    rows = [
        (ban.decision_id, str(ban.network), "client", "", 5, NOW_US + ban.expires_at_us, "r", "c")
        for ban in some
    ]
    orders = [Spared(each, 6) for each in spared] + [Spared(network("0.0.0.0/0"), 5)]
    listed = Gate.of(allow=map(str, allowed)).apply(make_bans(rows, orders))
    expected = members(*(ban.network for ban in some)) - members(*spared) - members(*allowed)
    assert set(end_of_each(listed)) == expected


def test_a_database_without_decisions_is_told_as_such(tmp_path: Path) -> None:
    place = parse_place(str(tmp_path / "other.db"))
    Database(place).run(lambda session: session.execute("CREATE TABLE t (n INTEGER)"), writes=True)
    with pytest.raises(OffsetStoreError, match="DECISIONS_NOT_FOUND"):
        blocked(place)
