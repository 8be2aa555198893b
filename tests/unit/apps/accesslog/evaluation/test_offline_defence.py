"""The engine on real lines: text in, decisions out, bounded in memory, the same after any stop."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.rule_files import parse_duration
from penstock.apps.accesslog.detection.rule_set import BehaviourRule, RuleSet, default_rules
from tests.support.accesslog.fed_engine import FedEngine

SETTINGS = DefenceSettings.default()
DETECTOR = Detector(SETTINGS.ruleset)
START = 1_700_000_000


def write_line(
    client: str,
    seconds: float,
    request: str,
    *,
    status: int = 200,
    agent: str = "Mozilla/5.0",
    referrer: str = "-",
) -> bytes:
    day = np.datetime64(round(START + seconds), "s").astype(object).strftime("%d/%b/%Y:%H:%M:%S +0000")
    if not request.rpartition(" ")[2].startswith("HTTP/"):
        request += " HTTP/1.1"
    return f'{client} - - [{day}] "{request}" {status} 12 "{referrer}" "{agent}"'.encode()


def decide(
    log: list[bytes], settings: DefenceSettings = SETTINGS, detector: Detector | None = DETECTOR
) -> pa.Table:
    engine = FedEngine(settings, partitions=[0], detector=detector)
    first = engine.feed({0: pa.array(log, pa.binary())})
    return pa.concat_tables([first, engine.finish()])


def test_an_engine_resumed_after_every_batch_decides_the_same() -> None:
    log = [
        write_line(f"192.0.2.{n % 9}", n * 0.3, "POST /wp-login.php", agent=f"a{n % 4}") for n in range(300)
    ]
    log += [write_line("198.51.100.4", 90 + n, f"GET /no/{n}x", status=404) for n in range(40)]
    whole = decide(log)
    engine = FedEngine(SETTINGS, partitions=[0], detector=DETECTOR)
    made = []
    for at in range(0, len(log), 23):
        made.append(engine.feed({0: pa.array(log[at : at + 23], pa.binary())}))
        engine = FedEngine.resume(pickle.loads(pickle.dumps(engine.pack())), SETTINGS, detector=DETECTOR)
    made.append(engine.finish())
    assert whole.num_rows > 9
    key = [("decision_id", "ascending")]
    assert pa.concat_tables(made).sort_by(key).equals(whole.sort_by(key))


def test_a_quiet_log_is_folded_when_its_partitions_are_called_idle() -> None:
    engine = FedEngine(SETTINGS, partitions=[0, 1], detector=DETECTOR)
    log = [write_line("192.0.2.9", n, "POST /wp-login.php") for n in range(12)]
    assert engine.feed({0: pa.array(log, pa.binary())}).num_rows == 0
    engine.note_idle(now_us=0)
    engine.note_idle(now_us=SETTINGS.idle_after_us)
    assert engine.feed({}).column("client").to_pylist() == ["192.0.2.9"]


def test_lines_that_are_none_are_counted() -> None:
    engine = FedEngine(SETTINGS, partitions=[0], detector=DETECTOR)
    engine.feed({0: pa.array([b"nonsense", write_line("192.0.2.9", 0, "GET /")], pa.binary())})
    assert (engine.counters["lines"], engine.counters["bad"]) == (1, 1)


def test_a_client_is_blocked_under_the_name_of_its_host() -> None:
    log = [write_line("a.host.example", n, "POST /wp-login.php") for n in range(12)]
    assert set(decide(log).column("client").to_pylist()) == {"a.host.example"}


def test_a_million_clients_leave_a_bounded_state() -> None:
    settings = replace(SETTINGS, lanes=4, subjects_per_lane=4096, pending_per_lane=20_000)
    engine = FedEngine(settings, partitions=[0], detector=DETECTOR)
    most = 0
    hosts = np.arange(1_000_000)
    for at in range(0, hosts.size, 50_000):
        some = hosts[at : at + 50_000]
        log = [
            b'%d.%d.%d.%d - - [14/Nov/2023:22:%02d:%02d +0000] "GET / HTTP/1.1" 200 5'
            % (10 + (n >> 24), n >> 16 & 255, n >> 8 & 255, n & 255, n // 50_000, n // 5_000 % 10)
            for n in some.tolist()
        ]
        engine.feed({0: pa.array(log, pa.binary())})
        most = max(most, engine.counters["subjects"])
        for state in engine.lanes:
            assert state.clients.rows.shape[0] <= state.clients.slots.size + 1
            assert state.clients.heads[s.LIVE] <= 4096
            assert state.pending.num_rows <= 20_000
    assert most <= 4 * 4096
    assert engine.counters["evicted"] > 100_000
    size = sum(len(chunk) for lane in engine.pack()["lanes"] for chunk in lane)
    assert size < 8 << 20


def test_a_banned_client_is_not_forgotten_in_a_flood_of_others() -> None:
    settings = replace(SETTINGS, lanes=1, subjects_per_lane=256)
    engine = FedEngine(settings, partitions=[0], detector=DETECTOR)
    log = [write_line("192.0.2.9", 0, "POST /wp-login.php") for _ in range(12)]
    log += [write_line(f"10.0.{n >> 8}.{n & 255}", 5 + n // 500, "GET /") for n in range(5000)]
    log += [write_line("192.0.2.9", 20, "POST /wp-login.php") for _ in range(12)]
    made = pa.concat_tables([engine.feed({0: pa.array(log, pa.binary())}), engine.finish()])
    assert made.column("client").to_pylist() == ["192.0.2.9"]


ONE_LANE = replace(SETTINGS, lanes=1)  # so that all clients are known to it
LINKS = [f"/old/page-{n}-of-the-site" for n in range(40)]
VISITORS = [f"192.0.{n}.1" for n in range(1, 7)]


def vouch(client: str, at: float, links: list[str], *, page: int | None = 200) -> list[bytes]:
    """Return the lines of a client that gets a page, and then slowly asks for what is missing."""
    log = [write_line(client, at, "GET /", status=page)] if page else []
    return log + [write_line(client, at + 9 * n, f"GET {link}", status=404) for n, link in enumerate(links)]


def ask(client: str, at: float, links: list[str]) -> list[bytes]:
    """Return fast requests for all of these links: over the limit unless the links are broken ones."""
    return [write_line(client, at + n / 9, f"GET {link}", status=404) for n, link in enumerate(links)]


def blocked(log: list[bytes], settings: DefenceSettings = ONE_LANE) -> set[str]:
    return set(decide(log, settings).column("client").to_pylist())


def test_a_missing_page_that_visitors_of_two_networks_ask_for_is_a_broken_link() -> None:
    log = []
    for n, pair in enumerate(zip(VISITORS[::2], VISITORS[1::2], strict=True)):
        for k, client in enumerate(pair):
            log += vouch(client, 1200 * n + 600 * k, LINKS[7 * n : 7 * n + 7])
    log += ask("198.51.100.7", 4000, LINKS[:21])
    log += ask("198.51.100.8", 4010, [f"{link}/x" for link in LINKS[:21]])
    assert blocked(log) == {"198.51.100.8"}


@pytest.mark.parametrize(
    ("helpers", "page"),
    [
        (["192.0.2.1", "192.0.2.2"], 200),  # neighbours
        (["2001:db8:0:1::1", "2001:db8:0:2::1"], 200),
        (["192.0.2.1", "198.51.100.99"], 200),  # a neighbour of the attacker's own
        (["192.0.2.1", "203.0.113.1"], None),  # a client that never had a page
        (["192.0.2.1", "203.0.113.1"], 301),
        (["192.0.2.1", "203.0.113.1"], 404),
    ],
)
def test_helpers_from_one_network_or_without_a_page_hide_no_scan(
    helpers: list[str], page: int | None
) -> None:
    """Sixteen paths in groups of eight, which visitors with a page from two networks would hide."""
    log = []
    for n, client in enumerate(helpers):
        log += vouch(client, 600 * n, LINKS[:8], page=page)
    log += ask("198.51.100.7", 4000, LINKS[:16])
    assert blocked(log) == {"198.51.100.7"}


def test_a_pair_of_helpers_hides_a_few_paths_and_no_more() -> None:
    pair = VISITORS[:2]
    log = [line for n, client in enumerate(pair) for line in vouch(client, 1200 * n, LINKS[: s.MOST_VOUCHED])]
    few = LINKS[: s.MOST_VOUCHED] + LINKS[30:38]
    assert blocked([*log, *ask("198.51.100.7", 4000, few)]) == set()
    log = [line for n, client in enumerate(pair) for line in vouch(client, 1200 * n, LINKS[:20])]
    assert blocked([*log, *ask("198.51.100.7", 4000, LINKS[:28])]) == {"198.51.100.7"}


def browse(phones: int, *, loads: tuple[str, ...], status: int = 200) -> list[bytes]:
    """Return the lines of phones behind one address, each with its own agent, mixed within seconds."""
    log = []
    for second in range(phones):
        for n, what in enumerate(("/news", *loads)):
            at, agent = 100 + second + n // 2, f"Mozilla/5.0 (phone {second})"
            log.append((at, write_line("192.0.2.9", at, f"GET {what}", status=status, agent=agent)))
    return [line for _, line in sorted(log, key=lambda one: one[0])]


LOADS = ("/a.css", "/b.js", "/c.png", "/d.woff2")


def test_many_phones_behind_one_address_are_no_client_that_switches_its_agent() -> None:
    assert blocked(browse(40, loads=LOADS)) == set()
    assert blocked(browse(40, loads=LOADS[:1])) == set()
    assert blocked(browse(40, loads=())) == {"192.0.2.9"}  # pages alone prove nothing
    assert blocked(browse(40, loads=LOADS, status=404)) == {"192.0.2.9"}


def test_who_switches_its_agent_at_each_request_is_found_also_where_it_asks_for_assets() -> None:
    log = [
        write_line("192.0.2.9", n / 2, f"GET /{n % 7}.png", agent=f"Mozilla/5.0 (other {n})")
        for n in range(30)
    ]
    assert decide(log, ONE_LANE).column("rule").to_pylist() == ["agent-switching.many"]


def play(scenario: dict[str, Any]) -> list[bytes]:
    """Return a rule's scenario as log lines: `request` again and again, with {n} counting up."""
    every = parse_duration(scenario.get("every", "1s")) / 1e6
    agents, clients = scenario.get("agents", 1), scenario.get("clients", 1)
    net = "192.0.{k}.7" if scenario.get("spread", False) else "192.0.2.{k}"
    return [
        write_line(
            net.format(k=n % clients + 1),
            n * every,
            scenario.get("request", "GET /").replace("{n}", str(n)),
            status=scenario.get("status", 200),
            agent=f"Mozilla/5.0 v{n % agents}",
            referrer=scenario.get("referrer", "-"),
        )
        for n in range(scenario["times"])
    ]


def isolate(rule: BehaviourRule) -> RuleSet:
    """Return a rule set in which no other rule can decide before this one does."""
    rules: list[Any] = []
    for each in default_rules().rules:
        if isinstance(each, BehaviourRule):
            each = replace(each, points=each.points if each.id == rule.id else 0)
        elif rule.per == "client":
            each = replace(each, points=0)
        rules.append(each)
    return RuleSet(tuple(rules))


@pytest.mark.parametrize("rule", default_rules().behaviour, ids=lambda rule: rule.id)
def test_a_behaviour_rule_decides_its_scenarios_and_leaves_its_near_misses(rule: BehaviourRule) -> None:
    assert rule.hits
    assert rule.misses
    settings = replace(SETTINGS, ruleset=isolate(rule), lanes=2)
    for expected, scenarios in ((True, rule.hits), (False, rule.misses)):
        for scenario in scenarios:
            made = decide(play(dict(scenario)), settings, DETECTOR).column("rule").to_pylist()
            assert (rule.id in made) == expected, scenario
