"""The fold: equal to its plain twin, and the same however a log is cut, mixed, stopped and resumed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking.blocklists import make_bans
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.events.log_clocks import finish
from tests.reference.accesslog_fold import (
    CLIENTS,
    RULES,
    SECOND,
    START,
    Line,
    Reference,
    Runner,
    client_of,
    make_history,
    spread,
)
from tests.support.checked_kernels import check_bounds

SETTINGS = DefenceSettings(
    RULES,
    lanes=3,
    score_half_life_us=40 * SECOND,
    ban_us=20 * SECOND,
    most_ban_us=300 * SECOND,
    forget_us=600 * SECOND,
    quiet_us=15 * SECOND,
    subjects_per_lane=512,
    groups_per_lane=512,
    trust_crawlers=False,
)
SEEDS = st.integers(0, 1 << 32)


def run_at_once(topic: dict[int, list[Line]], config: DefenceSettings = SETTINGS) -> list[object]:
    runner = Runner(config)
    runner.feed(topic.items())
    return list(runner.end())


def read_evidence(runner: Runner) -> dict[str, str]:
    return {row["decision_id"]: row["evidence"] for row in runner.rows}


@given(
    seed=SEEDS, size=st.integers(1, 400), jitter=st.sampled_from([0, SECOND // 2, 4 * SECOND, 90 * SECOND])
)
@settings(deadline=None)
def test_the_kernel_decides_what_its_plain_twin_decides(seed: int, size: int, jitter: int) -> None:
    topic = spread(make_history(seed, size, jitter_us=jitter), "client")
    assert run_at_once(topic) == Reference(SETTINGS).run(topic)


@given(
    seed=SEEDS,
    size=st.integers(1, 120),
    packs=st.booleans(),
    jitter=st.sampled_from([0, 5 * SECOND, 90 * SECOND]),
)
@settings(deadline=None)
def test_any_batches_in_any_mixture_stopped_and_resumed_anywhere_give_the_same_decisions(
    seed: int, size: int, packs: bool, jitter: int
) -> None:
    topic = spread(make_history(seed, size, jitter_us=jitter), "client")
    dice = random.Random(seed)
    runner = Runner(SETTINGS, packs=packs)
    left = {number: list(lines) for number, lines in topic.items()}
    while any(left.values()):
        chosen = [number for number in left if dice.random() < 0.6]
        batch = []
        for number in chosen:
            cut = dice.randint(0, min(len(left[number]), dice.choice((5, 30, 80))))
            pieces = left[number][:cut]
            half = dice.randint(0, cut)  # a range that two tasks have read
            batch += [(number, pieces[:half]), (number, pieces[half:])]
            left[number] = left[number][cut:]
        runner.feed(batch)
    at_once = Runner(SETTINGS)
    at_once.feed(topic.items())
    assert runner.end() == at_once.end()
    assert read_evidence(runner) == read_evidence(at_once)
    assert runner.counters["forced"] == 0


@given(seed=SEEDS, size=st.integers(1, 300))
@settings(deadline=None)
def test_a_topic_keyed_by_client_and_one_keyed_by_server_give_the_same_decisions(
    seed: int, size: int
) -> None:
    history = make_history(seed, size)
    assert run_at_once(spread(history, "client")) == run_at_once(spread(history, "server"))


def test_histories_make_decisions_of_every_rule() -> None:
    """Guards the three tests above: a history without decisions would prove nothing."""
    seen = {
        rule for seed in range(30) for _, rule, *_ in run_at_once(spread(make_history(seed, 300), "client"))
    }
    deciding = {
        rule.id for rule in RULES.rules if rule.points and rule.id not in ("soft.four", "window.paths")
    }
    assert deciding <= seen


def make_line(number: int, client: str, seconds: float, *hits: str, path: int = 1, agent: int = 1) -> Line:
    rules = tuple(sorted(RULES.find(each).number for each in hits))
    return Line(number, client, "web-1", START + round(seconds * SECOND), rules, path, agent, 1)


def decide(
    lines: list[Line], config: DefenceSettings = SETTINGS, orders: OrdersInForce | None = None
) -> list[tuple[str, str, int]]:
    runner = Runner(config, partitions=1)
    runner.feed([(0, lines)], orders)
    return [(client, action, number) for client, _, action, number, _, _ in runner.end()]


def test_a_late_line_is_moved_up_counted_and_never_dropped() -> None:
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(0, CLIENTS[0], 100), make_line(1, CLIENTS[0], 200)])])
    runner.feed([(0, [make_line(2, CLIENTS[1], 5, "hard.ten"), make_line(3, CLIENTS[0], 300)])])
    assert [row[3] for row in runner.end()] == [2]
    assert runner.rows[0]["decided_at"] == START + 199 * SECOND
    assert runner.counters["late"] == 1
    assert runner.counters["folded"] == 4 + 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_backlog_that_comes_at_once_is_no_flood_but_its_attacks_are_found(whole: bool) -> None:
    backlog = [make_line(n, CLIENTS[0], 30 * n, "signal.a", path=n + 1, agent=n % 5) for n in range(1, 100)]
    backlog += [make_line(n, f"192.0.2.{n}", 30, "signal.b") for n in range(100, 110)]
    lines = [make_line(0, CLIENTS[3], 3600), *backlog, make_line(200, CLIENTS[4], 40, "hard.ten")]
    runner = Runner(SETTINGS, partitions=1)
    for batch in [lines] if whole else [[line] for line in lines]:
        runner.feed([(0, batch)])
    assert [row[:4] for row in runner.end()] == [(client_of(CLIENTS[4]), "hard.ten", "block", 200)]
    assert runner.counters["late"] == len(lines) - 1


def test_bans_double_up_to_a_cap_and_are_forgotten_step_by_step() -> None:
    times = [0, 30, 80, 170, 340, 660, 1000, 4000, 40_000]
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(n, CLIENTS[0], at, "hard.ten") for n, at in enumerate(times)])])
    runner.end()
    told = [
        (row["level"], row["ban_seconds"]) for row in sorted(runner.rows, key=lambda row: row["decided_at"])
    ]
    assert told == [(1, 20), (2, 40), (3, 80), (4, 160), (5, 300), (6, 300), (7, 300), (4, 160), (1, 20)]


def test_while_a_ban_runs_nothing_is_decided_again() -> None:
    lines = [make_line(n, CLIENTS[0], n, "hard.ten") for n in range(9)]
    assert decide(lines) == [(CLIENTS[0], "block", 0)]


def test_what_else_a_blocked_client_does_is_told_once_for_each_class() -> None:
    lines = [make_line(n, CLIENTS[0], n * 0.1, "hard.ten", "signal.a", path=n + 1) for n in range(30)]
    runner = Runner(replace(SETTINGS, ban_us=100 * SECOND), partitions=1)
    runner.feed([(0, lines)])
    runner.end()
    told = [(row["rule"], row["class"], row["level"]) for row in runner.rows if row["action"] == "block"]
    assert told == [("hard.ten", "xss", 1), ("paths.many", "probing", 1), ("any.fast", "flood", 1)]
    assert len({row["expires_at"] for row in runner.rows if row["action"] == "block"}) == 1


def test_what_is_allowed_is_written_down_and_not_blocked() -> None:
    lines = [make_line(0, "192.0.2.1", 0, "hard.ten"), make_line(1, "198.51.100.9", 1, "hard.ten")]
    config = replace(SETTINGS, allow=("192.0.2.0/24",), trusted_proxies=("203.0.113.77",))
    assert decide(lines, config) == [("192.0.2.1", "allowed", 0), ("198.51.100.9", "block", 1)]


@pytest.mark.parametrize(
    "client",
    ["127.0.0.1", "127.255.0.9", "::1", "fe80::1", "169.254.169.254", "0.0.0.0", "240.0.0.1", "ff02::1"],
)
def test_what_is_in_no_list_is_decided_upon_as_allowed(client: str) -> None:
    lines = [
        make_line(n, each, n, "hard.ten") for n, each in enumerate([client, "203.0.113.1", "198.51.100.9"])
    ]
    told = decide(lines, replace(SETTINGS, allow=()))
    assert sorted(row[1:] for row in told) == [("allowed", 0), ("block", 1), ("block", 2)]
    assert not make_bans([("d", client_of(client), "client", client_of(client), 1, 2, "r", "c")], [])


@pytest.mark.parametrize("proxy", ["203.0.113.77", "2001:db8::1"])
def test_a_trusted_proxy_is_never_blocked_by_any_rule(proxy: str) -> None:
    config = replace(SETTINGS, trusted_proxies=(proxy,))
    for seed in range(6):
        history = [
            replace(line, client=proxy if line.number % 2 else line.client)
            for line in make_history(seed, 300)
        ]
        actions = {(row[0], row[2]) for row in run_at_once(spread(history, "client"), config)}  # type: ignore[index]
        assert (client_of(proxy), "block") not in actions
        assert any(client != client_of(proxy) for client, _ in actions)


def test_a_client_in_its_time_of_grace_is_not_blocked_and_its_ban_is_over() -> None:
    orders = OrdersInForce((("192.0.2.1", START + 5 * SECOND, START + 60 * SECOND),))
    config = replace(SETTINGS, ban_us=600 * SECOND, most_ban_us=6000 * SECOND)
    runner = Runner(config, partitions=1)
    runner.feed([(0, [make_line(0, "192.0.2.1", 0, "hard.ten"), make_line(1, "192.0.2.1", 3)])])
    runner.feed(
        [(0, [make_line(2, "192.0.2.1", 20, "hard.ten"), make_line(3, "192.0.2.1", 90, "hard.ten")])], orders
    )
    assert [(row[2], row[3]) for row in sorted(runner.end(), key=lambda row: row[3])] == [
        ("block", 0),
        ("grace", 2),
        ("block", 3),
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_a_ban_is_over_when_grace_begins_also_within_a_batch(whole: bool) -> None:
    orders = OrdersInForce((("192.0.2.1", START + 5 * SECOND, START + 60 * SECOND),))
    runner = Runner(replace(SETTINGS, ban_us=600 * SECOND, most_ban_us=6000 * SECOND), partitions=1)
    lines = [make_line(n, "192.0.2.1", at, "hard.ten") for n, at in enumerate((0, 3, 20, 90))]
    for batch in [lines] if whole else [[line] for line in [*lines, make_line(9, CLIENTS[3], 200)]]:
        runner.feed([(0, batch)], orders)
    runner.feed([(0, [make_line(10, CLIENTS[3], 300)])], orders)
    told = sorted((row[3], row[2], row[4]) for row in runner.end())
    assert told == [(0, "block", 1), (2, "grace", 1), (3, "block", 2)]


def test_a_ban_is_over_for_a_client_that_came_back_when_its_grace_had_ended() -> None:
    """Only batches in which the client was silent know the order."""
    orders = OrdersInForce((("192.0.2.1", START + 5 * SECOND, START + 60 * SECOND),))
    runner = Runner(replace(SETTINGS, ban_us=600 * SECOND, most_ban_us=6000 * SECOND), partitions=1)
    runner.feed([(0, [make_line(0, "192.0.2.1", 0, "hard.ten"), make_line(1, CLIENTS[3], 4)])])
    runner.feed([(0, [make_line(2, CLIENTS[3], 50)])], orders)
    runner.feed([(0, [make_line(3, "192.0.2.1", 90, "hard.ten")])])
    assert sorted((row[3], row[2], row[4]) for row in runner.end()) == [(0, "block", 1), (3, "block", 2)]


def test_a_rule_in_simulation_blocks_nobody() -> None:
    assert decide([make_line(0, CLIENTS[0], 0, "mock.ten")]) == [(CLIENTS[0], "simulate", 0)]


def test_a_network_names_those_who_took_part_and_new_ones_while_it_is_hot() -> None:
    lines = [make_line(n, f"192.0.2.{n + 1}", n, "signal.b") for n in range(4)]
    lines.append(make_line(4, "198.51.100.9", 5, "signal.b"))
    named = decide(lines)
    assert named == [(f"192.0.2.{n + 1}", "block", max(n, 2)) for n in range(4)]


def test_a_network_that_is_caught_may_prolong_the_ban_of_a_client_that_took_part() -> None:
    runner = Runner(SETTINGS, partitions=1)
    lines = [make_line(0, "192.0.2.1", 0, "hard.ten", "signal.b")]
    lines += [make_line(n, f"192.0.2.{n + 1}", 5 * n, "signal.b") for n in (1, 2)]
    runner.feed([(0, lines)])
    runner.end()
    bans = {row["rule"]: row for row in runner.rows if row["client"] == "192.0.2.1"}
    assert {rule: row["ban_seconds"] for rule, row in bans.items()} == {"hard.ten": 20, "net.clients": 20}
    assert bans["net.clients"]["expires_at"] - bans["hard.ten"]["expires_at"] == 10 * SECOND


def test_a_group_rule_in_simulation_changes_nothing_that_is_enforced() -> None:
    watched = replace(RULES.find("net.clients"), mode="simulate", number=len(RULES.rules), id="net.watched")
    sooner = replace(watched, limit=1)
    lines = [make_line(n, f"192.0.2.{n % 6 + 1}", n, "signal.b") for n in range(40)]
    told = []
    for rules in (RULES.rules, (*RULES.rules, watched), (*RULES.rules, sooner)):
        runner = Runner(replace(SETTINGS, ruleset=type(RULES)(rules)), partitions=1)
        runner.feed([(0, lines)])
        told.append(runner.end())
    enforced = [[row for row in rows if row[1] != "net.watched"] for rows in told]
    assert enforced[0] == enforced[1] == enforced[2]
    assert {row[1] for row in enforced[0]} == {"net.clients"}
    simulated = [[row[0] for row in rows if row[1] == "net.watched"] for rows in told[1:]]
    assert all(set(named) == {line.client for line in lines} for named in simulated)
    assert all(len(named) <= 2 * 6 for named in simulated)  # two periods of twenty seconds


def test_decisions_carry_the_lines_that_caused_them() -> None:
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(n, CLIENTS[0], n, "soft.four") for n in range(3)])])
    runner.end()
    (row,) = [row for row in runner.rows if row["rule"] == "soft.four"]
    assert '"offset": 0' in row["evidence"]
    assert '"offset": 2' in row["evidence"]
    assert (row["offset"], row["request_index"], row["server"]) == (2, 3, "web-1")


def test_the_same_decision_has_the_same_id_in_any_batches() -> None:
    lines = [make_line(n, CLIENTS[n % 3], n, "hard.ten") for n in range(9)]
    whole, cut = Runner(SETTINGS, partitions=1), Runner(SETTINGS, partitions=1)
    whole.feed([(0, lines)])
    for line in lines:
        cut.feed([(0, [line])])
    for runner in (whole, cut):
        runner.end()
    assert {row["decision_id"] for row in whole.rows} == {row["decision_id"] for row in cut.rows}
    assert len({row["decision_id"] for row in whole.rows}) == 3


def test_a_client_that_was_quiet_is_forgotten_in_one_batch_as_in_many() -> None:
    config = replace(SETTINGS, score_half_life_us=SECOND)
    lines = [
        make_line(0, CLIENTS[0], 0, "soft.four"),
        *(make_line(n, CLIENTS[1], 400 * n) for n in range(1, 5)),
    ]
    runner = Runner(config, partitions=1)
    for line in lines:
        runner.feed([(0, [line])])
    runner.end()
    assert sum(state.subjects for state in runner.states) <= 1


def test_waiting_events_are_bounded_where_one_partition_lags() -> None:
    config = replace(SETTINGS, pending_per_lane=50, lanes=1)
    runner = Runner(config, partitions=2)
    for n in range(40):
        runner.feed([(0, [make_line(n * 10 + k, CLIENTS[k % 5], n * 10 + k) for k in range(10)])])
        assert runner.states[0].pending.num_rows <= 50
    runner.feed([(1, [make_line(1000, CLIENTS[0], 1, "hard.ten")])])
    assert (CLIENTS[0], "hard.ten", "block", 1000) in [row[:4] for row in runner.end()]
    assert runner.counters["forced"] > 0
    assert runner.counters["late"] >= 1


def test_waiting_events_are_bounded_where_all_stand_at_one_time() -> None:
    runner = Runner(replace(SETTINGS, pending_per_lane=100, lanes=1), partitions=2)
    runner.feed([(0, [make_line(n, CLIENTS[n % 5], 7) for n in range(1000)])])
    assert runner.states[0].pending.num_rows <= 100
    assert runner.counters["forced"] >= 900


def test_names_of_servers_are_kept_only_while_their_lines_wait() -> None:
    runner = Runner(replace(SETTINGS, lanes=1), partitions=1)
    for n in range(50):
        runner.feed([(0, [replace(make_line(n, CLIENTS[0], 10 * n), server=f"web-{n}")])])
    assert set(runner.states[0].servers.values()) == {"web-49"}


def test_state_of_another_rule_set_keeps_what_is_still_there() -> None:
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(n, CLIENTS[0], n, "signal.a", path=n) for n in range(4)])])
    fewer = type(RULES)(tuple(replace(rule, number=n) for n, rule in enumerate(RULES.rules[1:])))
    changed = replace(SETTINGS, ruleset=fewer)
    packed = [state.pack() for state in runner.states]
    again = [LaneState.unpack(chunks, changed) for chunks in packed]
    assert sum(state.subjects for state in again) == sum(state.subjects for state in runner.states)
    assert sum(state.pending.num_rows for state in again) == sum(
        state.pending.num_rows for state in runner.states
    )


def test_a_line_that_comes_when_all_were_idle_is_folded_at_once() -> None:
    runner = Runner(SETTINGS, partitions=2)
    runner.feed([(0, [make_line(0, CLIENTS[0], 100)])])
    runner.clocks = finish(runner.clocks)
    runner.feed([])
    runner.feed([(1, [make_line(1, CLIENTS[1], 5, "hard.ten")])])
    assert [row["client"] for row in runner.rows] == [CLIENTS[1]]
    assert sum(state.pending.num_rows for state in runner.states) == 0


CHECKED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("folding", sys.argv[1])
folding = importlib.util.module_from_spec(spec)
spec.loader.exec_module(folding)
for seed in range(12):
    topic = folding.spread(folding.make_history(seed, 300, jitter_us=seed * 300_000), "client")
    small = folding.replace(folding.SETTINGS, subjects_per_lane=16, groups_per_lane=16)
    assert folding.run_at_once(topic) == folding.Reference(folding.SETTINGS).run(topic)
    folding.run_at_once(topic, small)
"""


@pytest.mark.slow
def test_the_kernel_stays_within_its_arrays() -> None:
    """Each array access is checked, including when there are more subjects than places."""
    outcome = subprocess.run(
        [sys.executable, "-c", CHECKED, __file__],
        cwd=Path(__file__).parents[5],
        env={**os.environ, **check_bounds(), "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert outcome.returncode == 0, outcome.stderr
