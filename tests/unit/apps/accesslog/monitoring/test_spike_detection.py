"""Spikes and drops are found within a minute, noise is left alone, and an alert opens and closes once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting import count_load, merge
from penstock.apps.accesslog.monitoring.spike_detection import AlertChange, Watch
from penstock.apps.accesslog.parsing.line_parser import make_parser
from tests.reference.accesslog_anomalies import SlowWatch
from tests.support.accesslog.accesslog_lines import Database, Line

START = 1_700_000_000
NOON = 43_200


def make_rates(seconds: int, rate: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Return a day's traffic: a slow wave, and a drift that wanders by 15 % within minutes."""
    wander = np.zeros(seconds)
    steps = random.normal(size=seconds) * 0.15 * np.sqrt(2 / 120)
    for second in range(1, seconds):
        wander[second] = wander[second - 1] * (1 - 1 / 120) + steps[second]
    wave = 1 + 0.4 * np.sin((np.arange(seconds) + NOON) * 2 * np.pi / 86_400)
    return np.asarray(rate * wave * np.exp(wander))


def draw(rates: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw requests per second: more uneven than Poisson's, as visitors ask for several things at once."""
    return np.asarray(random.poisson(random.gamma(4.0, rates / 4.0)))


def watch_series(*series: NDArray[Any], limit: int | None = None) -> list[AlertChange]:
    """Judge series of requests, or of all five facts, for one server each."""
    watch = Watch.begin()
    for number, of in enumerate(series):
        facts = of if of.ndim == 2 else np.stack([of, *[np.zeros_like(of)] * 4], axis=1)
        for second in np.flatnonzero(facts.any(axis=1)).tolist():
            watch.add(f"server{number}", START + second, facts[second])
    return watch.advance(START + (limit or len(series[0])))


def opened(changes: list[AlertChange]) -> list[AlertChange]:
    return [each for each in changes if each.closed_at is None]


@pytest.mark.parametrize("rate", [5, 20, 100, 1000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nine_of_ten_spikes_and_drops_are_found_within_a_minute_and_little_else(rate: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rates = make_rates(4 * 3600, rate, random)
    injected = []
    for number in range(15):
        begin = 1200 + number * 840 + int(random.integers(0, 120))
        is_drop = number % 3 == 2
        rates[begin : begin + int(random.integers(60, 150))] *= 0.2 if is_drop else 4.0
        injected.append((begin, "rate_drop" if is_drop else "rate_spike"))
    alerts = opened(watch_series(draw(rates, random)))
    found = [
        [each for each in alerts if each.kind == kind and 0 <= each.opened_at - START - begin <= 60]
        for begin, kind in injected
    ]
    assert all(len(each) <= 1 for each in found), "an alert opens once"
    assert sum(map(len, found)) >= 14
    assert len(alerts) - sum(map(len, found)) <= 4


def test_poisson_traffic_raises_no_alarm_in_a_day_at_any_rate() -> None:
    random = np.random.default_rng(11)
    for rate in (0.02, 0.3, 4.0, 60.0, 900.0):
        assert watch_series(random.poisson(rate, 86_400)) == []


def test_uneven_traffic_raises_few_alarms_in_a_day() -> None:
    random = np.random.default_rng(12)
    alarms = [
        len(opened(watch_series(draw(make_rates(86_400, rate, random), random)))) for rate in (2, 20, 200)
    ]
    assert max(alarms) <= 6
    assert sum(alarms) <= 10


def test_the_normal_logs_raise_no_alarm(accesslog_data: Any) -> None:
    for name in ("elastic-apache-combined", "zanbil-nginx-combined-xff"):
        log = (accesslog_data / "normal" / f"{name}.log").read_bytes().splitlines()
        assert merge([count_load(make_parser().parse(pa.array(log)))]).alerts.num_rows == 0


def test_every_alert_that_opens_closes_once_and_a_level_that_stays_becomes_normal() -> None:
    random = np.random.default_rng(3)
    rates = np.full(7200, 40.0)
    rates[1800:] = 160.0  # a campaign that never ends
    rates[5400:5500] = 1000.0
    changes = watch_series(random.poisson(rates))
    told = Counter((each.kind, each.opened_at, each.closed_at is None) for each in changes)
    assert set(told.values()) == {1}
    assert [(each.kind, each.new_level) for each in changes if each.closed_at] == [
        ("rate_spike", True),
        ("rate_spike", False),
    ]
    first, second = opened(changes)
    assert first.expected == pytest.approx(40, rel=0.1)
    assert second.expected == pytest.approx(160, rel=0.1)
    closings = [each for each in changes if each.closed_at]
    assert closings[1].peak == pytest.approx(1000, rel=0.1)
    assert 5500 <= (closings[1].closed_at or 0) - START < 5540


def test_a_server_that_falls_silent_is_told_while_others_go_on() -> None:
    random = np.random.default_rng(4)
    loud, silent = random.poisson(50.0, 2400), random.poisson(8.0, 2400)
    silent[1800:] = 0
    alerts = opened(watch_series(loud, silent))
    assert [(each.kind, each.server) for each in alerts] == [("rate_drop", "server1")]
    assert 0 < alerts[0].opened_at - START - 1800 <= 30


def test_all_servers_together_are_judged_too() -> None:
    random = np.random.default_rng(5)
    rates = np.full(2400, 4.0)
    rates[1800:1900] *= 2.0
    alerts = opened(watch_series(*(random.poisson(rates) for _ in range(12))))
    assert ("rate_spike", "*") in [(each.kind, each.server) for each in alerts]


def test_a_jump_of_errors_and_one_of_latency_are_found_and_a_spike_without_them_is_only_a_spike() -> None:
    random = np.random.default_rng(6)
    requests = random.poisson(30.0, 3600)
    share, middle = np.full(3600, 0.01), np.full(3600, 800.0)
    share[1500:1600] = 0.3
    middle[2500:2600] += 64.0  # twice as long
    errors = random.binomial(requests, share)
    sums, squares = np.zeros(3600, np.int64), np.zeros(3600, np.int64)
    for second, count in enumerate(requests.tolist()):
        buckets = np.maximum(0, random.normal(middle[second], 100.0, count)).astype(np.int64)
        sums[second], squares[second] = buckets.sum(), (buckets * buckets).sum()
    changes = watch_series(np.stack([requests, errors, requests, sums, squares], axis=1))
    alerts = opened(changes)
    assert [each.kind for each in alerts] == ["error_jump", "latency_jump"]
    assert 0 < alerts[0].opened_at - START - 1500 <= 30
    assert 0 < alerts[1].opened_at - START - 2500 <= 30
    assert alerts[1].expected == pytest.approx(96 << 11, rel=0.05)  # bucket 800 begins there, in microseconds
    assert len(changes) == 4


def test_the_watch_goes_on_where_it_stopped() -> None:
    random = np.random.default_rng(7)
    rates = np.full(4000, 20.0)
    rates[1500:1600] = 120.0
    rates[2500:2600] = 1.0
    series = random.poisson(rates)
    whole = watch_series(series)
    watch, changes = Watch.begin(), []
    for begin in range(0, 4000, 37):
        for second in range(begin, min(begin + 37, 4000)):
            if series[second]:
                watch.add("server0", START + second, (series[second], 0, 0, 0, 0))
        changes += watch.advance(START + min(begin + 37, 4000))
        watch = Watch.from_tables(watch.to_tables())
    assert changes == whole
    assert len(whole) == 4


def test_hours_without_a_line_are_skipped_with_the_same_result() -> None:
    """A site with one visitor a day must not cost the work of a day of seconds."""
    random = np.random.default_rng(8)
    burst = random.poisson(30.0, 1500)
    burst[1200:1260] *= 5
    watch = Watch.begin()
    far = 10_000_000_007
    for begin in (START, START + far):
        for second, count in enumerate(burst.tolist()):
            watch.add("a", begin + second, (count, 0, 0, 0, 0))
    changes = watch.advance(START + far + 1500)
    late = [each for each in changes if each.opened_at >= START + far]
    early = [each for each in changes if each.opened_at < START + 1500]
    # It begins twice: the second time after silence, which counts as a spike until it is normal.
    assert [each.kind for each in early][:1] == ["rate_spike"]
    assert [each.kind for each in late][:1] == ["rate_spike"]


@pytest.mark.parametrize("size", [23, 400])
def test_alerts_are_the_same_for_any_split_into_batches_and_partitions_in_step(size: int) -> None:
    random = np.random.default_rng(9)
    rates = np.full(900, 3.0)
    rates[600:660] = 40.0
    lines = [
        Line(START * 1_000_000 + second * 1_000_000 + int(at), server="ab"[int(at) % 2])
        for second, count in enumerate(random.poisson(rates).tolist())
        for at in sorted(random.integers(0, 1_000_000, count).tolist())
    ]
    results = []
    for batch in (len(lines), size):
        database = Database()
        for begin in range(0, len(lines), batch):
            some = lines[begin : begin + batch]
            database.add({0: [some[0::2]], 1: [some[1::2]]})
        results.append(database.tables["alerts"])
    assert results[0] == results[1]
    assert {row["kind"] for row in results[0].values()} == {"rate_spike"}
    assert {row["server"] for row in results[0].values()} == {"a", "b", "*"}


stretches = st.lists(
    st.tuples(
        st.integers(5, 400),  # seconds
        st.sampled_from([0.0, 0.3, 3.0, 20.0, 60.0]),  # requests/s
        st.sampled_from([0.0, 0.02, 0.5]),  # errors
        st.sampled_from([0.0, 300.0, 380.0]),  # bucket of the latency; 0: not logged
    ),
    min_size=1,
    max_size=4,
)


@given(stretches, st.integers(0, 1 << 32), st.integers(0, 59))
@example([(400, 20.0, 0.02, 300.0), (1100, 60.0, 0.5, 380.0), (400, 60.0, 0.02, 300.0)], 1, 7)
@example([(300, 3.0, 0.0, 0.0), (1300, 0.0, 0.0, 0.0), (300, 60.0, 0.0, 300.0)], 2, 0)
def test_the_loop_says_what_the_rules_say_when_they_are_worked_out_slowly(
    parts: list[tuple[int, float, float, float]], seed: int, begin: int
) -> None:
    random = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int, int]] = []
    for length, rate, share, middle in parts:
        for requests in random.poisson(rate, length).tolist():
            buckets = np.maximum(0, random.normal(middle, 20.0, requests if middle else 0)).astype(int)
            errors = int(random.binomial(requests, share))
            rows.append((requests, errors, len(buckets), int(buckets.sum()), int((buckets**2).sum())))
    first = next((at for at, row in enumerate(rows) if row[0]), len(rows))
    slow = SlowWatch(START + begin + first)
    watch = Watch.begin()
    for at, row in enumerate(rows[first:]):
        slow.judge(row)
        if row[0]:
            watch.add("server0", START + begin + first + at, row)
    told = watch.advance(START + begin + len(rows))
    assert [(each.kind, each.opened_at, each.closed_at, each.new_level) for each in told] == [
        (each.kind, each.opened_at, each.closed_at, each.new_level) for each in slow.changes
    ]
    for mine, plain in zip(told, slow.changes, strict=True):
        facts = [[each.value, each.expected, each.peak, each.score] for each in (mine, plain)]
        assert facts[0] == pytest.approx(facts[1], rel=1e-9)
