"""IPv6 clients: counted, blocked, allowed and released as one customer's network."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.accesslog.blocking.blocklists import make_bans, read_bans
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.evaluation.decision_scoring import (
    count_visits,
    read_decisions,
    read_labels,
    score,
)
from penstock.apps.accesslog.evaluation.log_replay import replay
from penstock.apps.accesslog.events.networks import demand_network
from penstock.apps.accesslog.events.subjects import find_client
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.cli import main
from penstock.stores.sql.connections.sql_sessions import Database
from tests.reference.accesslog_fold import RULES, SECOND, START, Line, Runner
from tests.support.accesslog.decisions_database import NOW_US, make_database
from tests.support.accesslog.decisions_database import decide as decide_for

SETTINGS = DefenceSettings(RULES, lanes=3, ban_us=20 * SECOND, trust_crawlers=False, subjects_per_lane=256)
NETWORK = "2001:db8:1:2::/64"


def make_line(number: int, client: str, *hits: str, seconds: float | None = None) -> Line:
    rules = tuple(sorted(RULES.find(each).number for each in hits))
    at = START + round((number if seconds is None else seconds) * SECOND)
    return Line(number, client, "web-1", at, rules, 1, 1, number + 1)


def decide(
    lines: list[Line], config: DefenceSettings = SETTINGS, orders: OrdersInForce | None = None
) -> list[dict[str, Any]]:
    runner = Runner(config, partitions=1)
    for line in lines:
        runner.feed([(0, [line])], orders)
    runner.end()
    return sorted(runner.rows, key=lambda row: row["offset"])


def test_who_takes_a_new_address_for_each_request_is_one_client() -> None:
    lines = [make_line(n, f"2001:db8:1:2::{n + 1:x}", seconds=n / 10) for n in range(30)]
    others = [make_line(100 + n, f"2001:db8:1:{n + 3:x}::1", seconds=4 + n / 10) for n in range(30)]
    (row,) = decide(lines + others)
    assert (row["subject"], row["client"], row["kind"]) == (NETWORK, NETWORK, "client")
    assert (row["rule"], row["offset"], row["request_index"]) == ("any.fast", 9, 10)


def test_a_list_has_the_network() -> None:
    (row,) = decide([make_line(0, "2001:db8:1:2:aaaa::7", "hard.ten")])
    columns = ("decision_id", "subject", "kind", "client", "decided_at", "expires_at", "rule", "class")
    (ban,) = make_bans([[row[name] for name in columns]], [])
    assert str(ban.network) == NETWORK


@pytest.mark.parametrize("one", ["2001:db8:1:2::", "2001:db8:1:2::5", "2001:db8:1:2:ffff:ffff:ffff:ffff"])
@pytest.mark.parametrize("how", ["allow", "trusted_proxies"])
def test_a_client_of_which_one_address_is_allowed_is_not_blocked(one: str, how: str) -> None:
    lines = [
        make_line(n, client, "hard.ten")
        for n, client in enumerate(["2001:db8:1:2::99", "2001:db8:1:1::99", "2001:db8:1:3::99"])
    ]
    told = [(row["client"], row["action"]) for row in decide(lines, replace(SETTINGS, **{how: (one,)}))]  # type: ignore[arg-type]
    assert told == [(NETWORK, "allowed"), ("2001:db8:1:1::/64", "block"), ("2001:db8:1:3::/64", "block")]


def test_neighbours_of_a_crawler_in_its_network_are_spared_with_it() -> None:
    config = replace(SETTINGS, trust_crawlers=True)
    (row,) = decide([make_line(0, "2001:4860:4801:10::77", "hard.ten")], config)
    assert row["action"] == "allowed"


@pytest.mark.parametrize("named", ["2001:db8:1:2::7", NETWORK, "2001:db8:1::/48"])
def test_letting_an_address_go_lets_its_client_go(named: str) -> None:
    orders = OrdersInForce(((named, START + 5 * SECOND, START + 60 * SECOND),))
    config = replace(SETTINGS, ban_us=600 * SECOND, most_ban_us=6000 * SECOND)
    at = [0, 3, 20, 90]
    lines = [make_line(n, f"2001:db8:1:2::{n}", "hard.ten", seconds=t) for n, t in enumerate(at)]
    told = [(row["offset"], row["action"]) for row in decide(lines, config, orders)]
    assert told == [(0, "block"), (2, "grace"), (3, "block")]


def test_letting_a_neighbour_go_lets_nobody_else_go() -> None:
    orders = OrdersInForce((("2001:db8:1:3::7", START, START + 60 * SECOND),))
    assert [
        row["action"] for row in decide([make_line(5, "2001:db8:1:2::7", "hard.ten")], orders=orders)
    ] == ["block"]


def test_an_order_about_an_address_frees_its_client_from_the_lists(tmp_path: Path) -> None:
    place = make_database(tmp_path / "results.db")
    decide_for(place, NETWORK)
    decide_for(place, "2001:db8:1:3::/64")
    assert place_order(place, "2001:db8:1:2::7", now_us=NOW_US, grace_us=SECOND).subject == NETWORK
    listed = Database(place).run(lambda session: read_bans(session, now_us=NOW_US))
    assert [str(ban.network) for ban in listed] == ["2001:db8:1:3::/64"]


@pytest.mark.parametrize("text", ["2001:db8:1::/48", "192.0.2.7", "::1", "64:ff9b::c000:207"])
def test_an_order_about_anything_else_is_about_that(text: str) -> None:
    assert str(find_client(demand_network("x", text))) == text


def test_customers_of_one_site_that_do_one_thing_are_a_distributed_scan() -> None:
    lines = [make_line(n, f"2001:db8:1:{n:x}::1", "signal.b") for n in range(4)]
    lines += [make_line(10 + n, f"2001:db8:{n + 7:x}::1", "signal.b") for n in range(4)]
    rows = decide(lines)
    assert {row["subject"] for row in rows} == {"2001:db8:1::/48"}
    assert sorted(row["client"] for row in rows) == [
        "2001:db8:1:1::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64", "2001:db8:1::/64"
    ]  # fmt: skip


def test_many_addresses_of_one_client_are_no_distributed_scan() -> None:
    lines = [make_line(n, f"2001:db8:1:2::{n:x}", "signal.b", seconds=9 * n) for n in range(6)]
    assert [row["rule"] for row in decide(lines) if row["kind"] == "net"] == []


@pytest.mark.parametrize("crowd", ["64:ff9b::c000:2{:02x}", "2001::{:x}:1", "::{:x}"])
def test_where_a_network_is_a_crowd_each_address_is_a_client(crowd: str) -> None:
    lines = [make_line(n, crowd.format(n + 1), seconds=n / 10) for n in range(30)]
    assert decide(lines) == []
    (row,) = decide([make_line(0, crowd.format(7), "hard.ten")])
    assert demand_network("x", row["client"]).is_address


def write_log(path: Path) -> None:
    def write(client: str, second: int, request: str) -> str:
        at = datetime.fromtimestamp(1_700_000_000 + second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        return f'{client} - - [{at}] "{request} HTTP/1.1" 200 12 "-" "Mozilla/5.0"\n'

    lines = [write("2001:db8:1:2::1", 0, "GET /"), write("198.51.100.7", 1, "GET /")]
    lines += [write(f"2001:db8:1:2::{n:x}", 2 + n, "POST /wp-login.php") for n in range(12)]
    lines += [write("2001:db8:1:3::1", 20, "GET /")]
    path.write_text("".join(lines))


def test_a_replay_and_its_score_know_a_client_by_any_of_its_addresses(tmp_path: Path) -> None:
    log, out, labels = tmp_path / "access.log", tmp_path / "out.csv", tmp_path / "labels.csv"
    write_log(log)
    (row,) = replay([log], DefenceSettings.default()).rows
    assert (row["client"], row["offset"], row["request_index"]) == (NETWORK, 9, 9)
    assert main(["accesslog", "replay", str(log), "--decisions", str(out)]) == 0
    with out.open(newline="") as file:
        assert [(row["client"], row["request_index"]) for row in csv.DictReader(file)] == [(NETWORK, "9")]
    labels.write_text(
        "client,label,class\n2001:db8:1:2::5,attack,brute_force\n2001:DB8:1:2::6,attack,brute_force\n"
        "2001:db8:1:3::1,benign,\n198.51.100.7,benign,\n"
    )
    made = score(read_decisions(out), read_labels(labels), count_visits([log]))
    assert (made.attackers, made.found, made.benign, made.benign_hit) == (1, 1, 2, 0)
    assert (made.attack_requests, made.blocked_requests) == (13, 4)
