"""Who is never blocked, and what stored state looks like."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.accesslog.defence.allow_list import LOCAL, NEVER_BLOCKED, list_crawlers, make_ranges
from penstock.apps.accesslog.defence.defence_settings import (
    DECISIONS,
    DefenceSettings,
    OrdersInForce,
    identify,
    make_limits,
)
from penstock.apps.accesslog.defence.lane_state import LARGEST_CHUNK, LaneState
from penstock.core.errors import DecodeError, OptionError
from tests.reference.accesslog_fold import RULES, SECOND, START, Line, Runner, make_history, spread

GOLDEN = Path(__file__).parents[4] / "golden" / "accesslog-lane-v3"
SETTINGS = DefenceSettings(RULES, lanes=1, trust_crawlers=False, subjects_per_lane=256, groups_per_lane=256)


@given(st.lists(st.ip_addresses(), min_size=1, max_size=8), st.integers(0, 8), st.ip_addresses())
@settings(deadline=None)
def test_ranges_hold_what_their_networks_hold(addresses: list[object], cut: int, asked: object) -> None:
    networks = [ipaddress.ip_network((each, each.max_prefixlen - cut), strict=False) for each in addresses]  # type: ignore[attr-defined]
    ranges = make_ranges([str(each) for each in networks], [], crawlers=False)
    networks += [ipaddress.ip_network(str(each)) for each in (*NEVER_BLOCKED, *LOCAL)]
    firsts, lasts = ranges[0].astype(object) * 2**64 + ranges[1], ranges[2].astype(object) * 2**64 + ranges[3]
    assert all(first > last + 1 for first, last in zip(firsts[1:], lasts[:-1], strict=True))
    for address in (*addresses, asked):
        number = int(address) | (0xFFFF << 32 if address.version == 4 else 0)  # type: ignore[attr-defined, call-overload]
        held = any(first <= number <= last for first, last in zip(firsts, lasts, strict=True))
        # An IPv4 address inside IPv6 is the same client, which `ipaddress` does not say.
        if not any(getattr(each, "ipv4_mapped", None) for each in (address, *addresses)):
            assert held == any(each.version == address.version and address in each for each in networks)  # type: ignore[attr-defined]


def test_an_allow_list_with_nonsense_is_refused() -> None:
    with pytest.raises(OptionError, match="NETWORK_INVALID"):
        make_ranges(["not-an-address"], [], crawlers=False)


def test_the_list_of_crawlers_is_narrow_and_names_the_great_ones() -> None:
    names = {name for name, _ in list_crawlers()}
    assert {"googlebot", "bingbot", "yandexbot", "baiduspider", "applebot", "duckduckbot"} <= names
    assert all(network.prefix >= (14 if network.version == 4 else 32) for _, network in list_crawlers())


def test_a_crawler_is_believed_by_its_address_only() -> None:
    config = replace(SETTINGS, trust_crawlers=True)
    hard = RULES.find("hard.ten").number
    lines = [Line(n, client, "w", START + n * SECOND, (hard,), 1, 1, 1)
             for n, client in enumerate(["66.249.66.1", "198.51.100.1"])]  # fmt: skip
    runner = Runner(config, partitions=1)
    runner.feed([(0, lines)])
    assert [(row[0], row[2]) for row in runner.end()] == [
        ("198.51.100.1", "block"),
        ("66.249.66.1", "allowed"),
    ]


def test_orders_become_ranges_with_times() -> None:
    limits = make_limits(SETTINGS, OrdersInForce((("192.0.2.0/24", 5, 9),)))
    assert limits.grace_times.tolist() == [[5, 9]]
    assert limits.grace_bounds.tolist() == [[0, 0xFFFFC0000200, 0, 0xFFFFC00002FF]]


def test_an_id_tells_decisions_apart() -> None:
    one = identify("s", "a", "a", "r", "block", 0, 1)
    assert one == identify("s", "a", "a", "r", "block", 0, 1)
    assert (
        len({one, identify("s", "a", "a", "r", "block", 0, 2), identify("s", "a", "b", "r", "block", 0, 1)})
        == 3
    )


def test_pieces_of_state_are_small_and_bring_everything_back() -> None:
    config = replace(SETTINGS, subjects_per_lane=60_000)
    lines = [
        Line(n, str(ipaddress.IPv4Address(10 << 24 | n)), "w", START + n * 50, (0,), n % 99 + 1, 1, n % 7)
        for n in range(40_000)
    ]
    runner = Runner(config, partitions=1)
    runner.feed([(0, lines)])
    chunks = runner.states[0].pack()
    assert len(chunks) > 4
    assert max(map(len, chunks)) <= LARGEST_CHUNK
    again = LaneState.unpack(chunks, config)
    assert again.pending.equals(runner.states[0].pending)
    assert [len(chunk) for chunk in again.pack()] == [len(chunk) for chunk in chunks]


def make_golden_state() -> LaneState:
    """Return state with subjects and counters of all kinds, members, a path, evidence, waiting events."""
    runner = Runner(SETTINGS, partitions=2)
    for number, lines in spread(make_history(7, 250), "client", 2).items():
        runner.feed([(number, lines[:90])])
    return runner.states[0]


def tell(state: LaneState) -> object:
    """Return the content of a state, independent of where it is in memory."""
    again = LaneState.unpack(state.pack(), SETTINGS)
    rows = sorted(again.clients.rows[again.clients.slots[again.clients.slots >= 0]][:, :9].tolist())
    groups = sorted(again.groups.rows[again.groups.slots[again.groups.slots >= 0]][:, :9].tolist())
    levels = [np.sort(table.levels[:, 0]).sum() for table in (again.clients, again.groups)]
    waiting, evidence = again.pending.to_pylist(), again.evidence.to_pylist()
    known = (again.released_us, again.hosts, again.servers)
    known += (again.agent_evidence.to_pylist(), again.agents.to_pylist())
    return rows, groups, np.round(levels, 6).tolist(), waiting, evidence, known


def test_state_that_an_older_release_wrote_is_read() -> None:
    """The golden pieces were written once by version 3; change them only together with the version."""
    stored = [path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))]
    assert len(stored) >= 8
    assert tell(LaneState.unpack(stored, SETTINGS)) == tell(make_golden_state())


def test_a_piece_of_another_version_is_refused() -> None:
    chunk = make_golden_state().pack()[0].replace(b'"version": 3', b'"version": 9')
    with pytest.raises(DecodeError, match="LANE_VERSION"):
        LaneState.unpack([chunk], SETTINGS)


def test_a_lane_that_was_made_smaller_says_so() -> None:
    chunks = make_golden_state().pack()
    with pytest.raises(DecodeError, match="LANE_TOO_SMALL"):
        LaneState.unpack(
            [*chunks, *[each for each in chunks if b"clients.rows" in each] * 8],
            replace(SETTINGS, subjects_per_lane=16),
        )


def test_decisions_have_the_columns_that_others_rely_on() -> None:
    assert DECISIONS.names == [
        "decision_id", "subject", "kind", "client", "decided_at", "rule", "class", "action", "score",
        "ban_seconds", "expires_at", "level", "server", "partition", "offset", "request_index", "evidence",
    ]  # fmt: skip
