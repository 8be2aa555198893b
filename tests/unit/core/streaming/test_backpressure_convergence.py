"""Simulated streams: how soon batches reach their target duration after a change of load or speed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pytest

from penstock.core.streaming.backpressure import PaceState, Pacing
from tests.reference.pid_rate import SparkPid

TARGET_MS = 1_000
WITHIN = 0.2
AT_MOST = 6


@dataclass(frozen=True)
class Phase:
    """So many batches with this arrival rate and this possible speed, in records per second."""

    batches: int
    load: float
    speed: float


@dataclass(frozen=True)
class Batch:
    records: int
    duration_ms: float
    backlog: float  # what it left behind

    @property
    def is_on_target(self) -> bool:
        return abs(self.duration_ms - TARGET_MS) <= WITHIN * TARGET_MS


class Controller(Protocol):
    def limit(self, backlog: int) -> int: ...
    def learn(self, at_ms: int, records: int, work_ms: float, delay_ms: float, was_limited: bool) -> None: ...


class Ours:
    def __init__(self, pacing: Pacing) -> None:
        self.pacing, self.state = pacing, PaceState()

    def limit(self, backlog: int) -> int:
        budget = self.pacing.budget(self.state, {"p": backlog})
        return backlog if budget is None else budget["p"]

    def learn(self, at_ms: int, records: int, work_ms: float, delay_ms: float, was_limited: bool) -> None:
        self.state = self.pacing.observe(
            self.state, at_ms, records, work_ms, delay_ms, was_limited=was_limited
        )


class Sparks:
    """Spark's estimator alone: its lateness is unbounded, and every batch counts."""

    def __init__(self) -> None:
        self.pid = SparkPid(TARGET_MS, 1.0, 0.2, 0.0, 100.0)

    def limit(self, backlog: int) -> int:
        rate = self.pid.published
        return backlog if rate is None else min(backlog, int(rate * TARGET_MS / 1000))

    def learn(self, at_ms: int, records: int, work_ms: float, delay_ms: float, was_limited: bool) -> None:
        self.pid.compute(at_ms, records, work_ms, delay_ms)


def run(
    controller: Controller, phases: Sequence[Phase], *, overhead_ms: float, jitter: float = 0.0
) -> list[list[Batch]]:
    """Return the batches of each phase. One begins at its tick, or at once if the previous overran it."""
    chance = random.Random(7)
    history: list[list[Batch]] = []
    backlog, now_ms, due_ms = 0.0, 0.0, 0.0
    for phase in phases:
        history.append([])
        for _ in range(phase.batches):
            start_ms = max(now_ms, due_ms)
            backlog += phase.load * (start_ms - now_ms) / 1000
            records = controller.limit(int(backlog))
            speed = phase.speed * chance.uniform(1 - jitter, 1 + jitter)
            duration_ms = overhead_ms + 1000 * records / speed
            now_ms = start_ms + duration_ms
            was_limited = records < int(backlog)
            controller.learn(int(now_ms), records, duration_ms, start_ms - due_ms, was_limited)
            backlog += phase.load * duration_ms / 1000 - records
            due_ms = TARGET_MS * (start_ms // TARGET_MS + 1)  # ticks that were missed are merged
            history[-1].append(Batch(records, duration_ms, backlog))
    return history


def batches_to_settle(batches: Sequence[Batch]) -> int:
    """Return the number of batches before all that follow are on target."""
    return max((number for number, batch in enumerate(batches, 1) if not batch.is_on_target), default=0)


CONDITIONS = pytest.mark.parametrize(
    ("overhead_ms", "jitter"), [(0, 0.0), (200, 0.0), (500, 0.0), (200, 0.05)]
)
CALM = Phase(10, load=1_000, speed=8_000)


def ours() -> Ours:
    return Ours(Pacing(TARGET_MS, initial_rate=2_000))


@CONDITIONS
def test_a_tenfold_load_settles_within_six_batches_and_then_drains(overhead_ms: int, jitter: float) -> None:
    """D26: it is more than can be done; batches take their time and no more, and the rest waits in Kafka."""
    flood, ebb = replace(CALM, load=10_000, batches=20), replace(CALM, batches=60)
    before, during, after = run(ours(), [CALM, flood, ebb], overhead_ms=overhead_ms, jitter=jitter)
    assert batches_to_settle(during) <= AT_MOST
    assert max(batch.duration_ms for batch in during + after) <= TARGET_MS * (1 + WITHIN)
    assert during[-1].backlog > 10 * before[-1].backlog
    assert after[-1].backlog <= CALM.load * TARGET_MS / 1000 * 1.1
    assert after[-1].duration_ms < TARGET_MS


@CONDITIONS
def test_a_consumer_five_times_slower_settles_within_six_batches(overhead_ms: int, jitter: float) -> None:
    """D26: the batch that meets the change is too long, the next are not; they grow with the speed."""
    busy = Phase(15, load=8_000, speed=8_000)
    slow, again = replace(busy, speed=1_600), Phase(120, load=1_000, speed=8_000)
    _, during, after = run(ours(), [busy, slow, again], overhead_ms=overhead_ms, jitter=jitter)
    assert during[0].duration_ms > 2 * TARGET_MS
    assert batches_to_settle(during) <= AT_MOST
    assert after[-1].backlog <= 1_000 * TARGET_MS / 1000 * 1.1
    assert max(batch.records for batch in after) > 2 * during[-1].records


@CONDITIONS
def test_the_pace_does_not_swing(overhead_ms: int, jitter: float) -> None:
    """Once on target, a steady overload gives steady batches, without swings between long and short."""
    (batches,) = run(ours(), [Phase(60, load=20_000, speed=8_000)], overhead_ms=overhead_ms, jitter=jitter)
    settled = [batch.duration_ms for batch in batches[20:]]
    assert max(settled) - min(settled) <= TARGET_MS * (0.02 + 4 * jitter)


def test_a_quiet_time_does_not_make_the_next_burst_crawl() -> None:
    """Ten records a second for a while, then many: the speed from before the quiet time is still known."""
    busy, quiet = Phase(10, load=9_000, speed=8_000), Phase(40, load=10, speed=8_000)
    burst = replace(busy, batches=3)
    *_, quiet_batches, batches = run(ours(), [busy, quiet, burst], overhead_ms=200)
    assert quiet_batches[-1].records == 10
    assert batches[1].records > 5_000
    *_, sparks = run(Sparks(), [busy, quiet, burst], overhead_ms=200)
    assert sparks[1].records < 1_000


def test_lateness_without_bound_throws_the_rate_to_its_minimum() -> None:
    """The reason for the bound: one batch ten times too long, and the one after next has 100 records."""
    busy = Phase(15, load=80_000, speed=80_000)
    slow = replace(busy, speed=8_000)
    _, ours_batches = run(ours(), [busy, slow], overhead_ms=200)
    _, sparks_batches = run(Sparks(), [busy, slow], overhead_ms=200)
    assert (batches_to_settle(ours_batches), batches_to_settle(sparks_batches)) == (1, 6)
    assert min(batch.records for batch in sparks_batches) == 100
    assert min(batch.records for batch in ours_batches) > 5_000


def test_waiting_counted_as_processing_holds_the_rate_down_for_ever() -> None:
    """This is why the caller must measure only work: a fast consumer would look as slow as its ticks."""
    pacing = Pacing(TARGET_MS, initial_rate=500)
    honest = waiting = PaceState()
    for number in range(1, 11):
        lag = {"p": 10**6}
        for name, state in (("honest", honest), ("waiting", waiting)):
            budget = pacing.budget(state, lag)
            assert budget is not None
            work_ms = 100 + budget["p"] / 8
            told_ms = work_ms if name == "honest" else max(work_ms, TARGET_MS)
            learned = pacing.observe(state, number * TARGET_MS, budget["p"], told_ms)
            honest, waiting = (learned, waiting) if name == "honest" else (honest, learned)
    assert (honest.rate or 0) > 6_000
    assert waiting.rate == 500
