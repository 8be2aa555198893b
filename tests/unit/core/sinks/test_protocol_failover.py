"""The publishing protocol with a database that goes back in time, and batches that offsets do not show.

One batch writes a row and moves no offset, another moves only a new partition: a ledger that has lost them is
where the next batch begins. This is searched for a stream whose ledger is its only memory, and for a query
with a checkpoint, which does not go back with the database.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from penstock.core.errors import SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.ledger_positions import find_ledger_position, plan_ledger_moves
from penstock.core.sinks.ledger_rules import Ledger, LedgerBatch, LedgerEntry, Stage, name_state
from penstock.core.sinks.numbered_batches import is_written, name_numbered_batch
from penstock.core.sinks.sql_commit_protocol import ReadLedger, Steps, publish, resolve_commit, take_over
from penstock.testing.checker import Answer, Ended, Exploration, Reply, explore
from tests.unit.core.sinks.test_protocol_model import (
    FAULTS,
    Between,
    Database,
    Record,
    StageRows,
    bend,
    unchanged,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: The rows come from what was read before, so no offset covers them.
WINDOW = (TopicPartition("windows", 0), 0)
QUERY = "q"


@dataclass(frozen=True)
class Planned:
    """One batch: where it ends, and the rows that it writes."""

    end: StreamPosition
    records: tuple[Record, ...]


PLAN = (
    Planned(StreamPosition({T0: 1}), ((T0, 0),)),
    Planned(StreamPosition({T0: 1}), (WINDOW,)),
    Planned(StreamPosition({T0: 1, T1: 1}, starts={T1: 0}), ((T1, 0),)),
    Planned(StreamPosition({T0: 2, T1: 2}), ((T0, 1), (T1, 1))),
)
#: For searches with two writers, which must not take long.
SHORT = (*PLAN[:2], Planned(StreamPosition({T0: 2}), ((T0, 1),)))


def find_before(plan: Sequence[Planned], number: int) -> StreamPosition:
    return plan[number - 1].end if number else StreamPosition({})


# --- the world --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadState:
    """What a stream with state does after it has taken over. The answer is the rows of the window."""


@dataclass(frozen=True)
class ReadCheckpoint:
    """The answer is the number of the batch that the checkpoint runs next."""


@dataclass(frozen=True)
class WriteCheckpoint:
    """The batch is done, and the checkpoint advances."""

    number: int


@dataclass(frozen=True)
class World(Database):
    """The database and, for a query, its checkpoint.

    `was_told` means that a query has ended with an error that says what the database has lost.
    """

    checkpoint: int = 0
    was_told: bool = False
    planned: tuple[tuple[Record, ...], ...] = ()

    def _do(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        match step:
            case ReadState():
                yield "", self, Answer(WINDOW in self.rows)
            case ReadCheckpoint():
                yield "", self, Answer(self.checkpoint)
            case WriteCheckpoint(number):
                yield "", replace(self, checkpoint=max(self.checkpoint, number + 1)), Answer()
            case _:
                yield from super()._do(who, step)

    def end(self, who: str, ended: Ended) -> Iterable[tuple[str, Database, bool]]:
        if self.has_gone_back and self.checkpoint and "[LEDGER_" in ended.error:
            yield "is told", replace(self.forget(who), was_told=True), False
        else:
            yield from super().end(who, ended)

    def judge(self) -> str | None:
        read = sorted(each for each in self.rows if each != WINDOW)
        below = sorted((each, n) for each, entry in self.ledger for n in range(entry.offset))
        if read != below or len(set(self.rows)) < len(self.rows):
            return f"rows {self.rows}, offsets {self.ledger}"
        last = next((entry.batch for _, entry in self.ledger), "")
        if last:
            done = self.planned[: int(last.rpartition("/")[2]) + 1]
            if sorted(self.rows) != sorted(record for each in done for record in each):
                return f"the ledger ends with batch {last}, and the rows are {self.rows}"
        return self.trouble or None

    def judge_end(self) -> str | None:
        records = sorted(record for each in self.planned for record in each)
        # A loss after the last batch is reported at the next one; two writers may each have had theirs.
        has_ended = self.checkpoint == len(self.planned) or len(self.told) > 1
        if self.was_told or has_ended or list(self.rows) == records:
            return None
        return f"nobody goes on, nobody was told, and the rows are {self.rows}"


# --- the writers ------------------------------------------------------------------------------------------


class Writer:
    """What `SqlWriter` remembers, and how it makes batches from it."""

    def __init__(self, plan: Sequence[Planned], epoch: int, ledger: Ledger, between: Between) -> None:
        self.plan, self.epoch, self.ledger, self.between = plan, epoch, ledger, between
        self.trail: tuple[str, ...] = (name_state(ledger),)
        self.told: tuple[Record, ...] = ()

    def write(self, number: int, name: str = "") -> Generator[Any, Any, None]:
        planned = self.plan[number]
        while True:
            staged = yield StageRows(planned.records, self.epoch, self.told)
            moves = plan_ledger_moves(find_before(self.plan, number), planned.end, self.ledger)
            stages = tuple(Stage(f"{staged}-{each.partition}", 1) for each, _ in planned.records)
            batch = LedgerBatch("s", moves, stages, str(staged), name, self.trail)
            try:
                yield from self.between(publish(batch, self.epoch), self.epoch, batch)
            except SinkError as error:
                if error.condition != "COMMIT_IN_DOUBT":
                    raise
                if not (yield from self.between(resolve_commit(batch, self.epoch), self.epoch, batch)):
                    continue
            break
        self.ledger = {
            each.partition: LedgerEntry(each.until, token=batch.token, batch=name) for each in batch.moves
        }
        self.trail = (*self.trail, name_state(self.ledger))
        self.told = (*self.told, *planned.records)


def write_direct(who: str, between: Between, plan: Sequence[Planned]) -> Generator[Any, Any, None]:
    """Run a direct stream: it begins where the ledger says; its state says whether the window is written."""
    epoch, ledger = yield from between(take_over("s", who), 0, None)
    has_window = yield ReadState()
    position = find_ledger_position(ledger)
    ends = [dict(each.end.offsets) for each in plan]
    number = 0 if position is None else ends.index(dict(position.offsets)) + 1
    number += number == 1 and has_window
    writer = Writer(plan, epoch, ledger, between)
    for each in range(number, len(plan)):
        yield from writer.write(each)


def write_query(who: str, between: Between, plan: Sequence[Planned]) -> Generator[Any, Any, None]:
    """Run a query with a checkpoint: a batch that is not noted there as done is run, again if necessary."""
    number = yield ReadCheckpoint()
    epoch, ledger = yield from between(take_over("s", who), 0, None)
    writer = Writer(plan, epoch, ledger, between)
    for each in range(number, len(plan)):
        if not demand_predecessor(between, writer.ledger, plan, each):
            yield from writer.write(each, name_numbered_batch(QUERY, each))
        yield WriteCheckpoint(each)


def demand_predecessor(between: Between, ledger: Ledger, plan: Sequence[Planned], number: int) -> bool:
    if between is no_predecessor:  # as it once was: any older ledger would be accepted
        return name_numbered_batch(QUERY, number) == next((entry.batch for entry in ledger.values()), "")
    return is_written(ledger, "s", QUERY, number, find_before(plan, number), plan[number].end)


def search(
    write: Any, between: Between, writers: str, plan: tuple[Planned, ...] = PLAN, **faults: int
) -> Exploration:
    programs = {who: partial(write, who, between, plan) for who in writers}
    budget = tuple((kind, faults.get(kind, 0)) for kind in FAULTS)
    world = World(budget=budget, planned=tuple(each.records for each in plan))
    return explore(world, programs, most_states=100_000_000)


#: Spark itself refuses two queries over one checkpoint.
@pytest.mark.parametrize(
    ("write", "writers", "plan", "more"),
    [
        (write_direct, "a", PLAN, {"crash": 1, "doubt": 1}),
        pytest.param(write_direct, "ab", SHORT, {}, marks=pytest.mark.proof),
        (write_query, "a", PLAN, {"crash": 1, "doubt": 1}),
    ],
    ids=["direct", "two direct ones", "query"],
)
def test_a_database_that_goes_back_at_any_step_loses_nothing_without_an_error(
    write: Any, writers: str, plan: tuple[Planned, ...], more: dict[str, int]
) -> None:
    """C13: a stream continues where the ledger is now, a query with a checkpoint ends; each is told first."""
    found = search(write, unchanged, writers, plan, failover=1, **more)
    assert found.violations == []
    assert found.ends > 3
    assert found.states > 1_000


# --- planted bugs -----------------------------------------------------------------------------------------


def offsets_only(steps: Steps[Any], _epoch: int, batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    """Compare only offsets: whatever the ledger's last change was, it counts as the expected one."""

    def answer(step: Any, value: Any) -> Any:
        if batch is None or not isinstance(step, ReadLedger):
            return value
        mine = {entry.token for entry in value.values()} == {batch.token}
        follows = batch.token if mine else batch.trail[-1]
        return {each: replace(entry, token=follows) for each, entry in value.items()}

    return (yield from bend(steps, answer=answer))


def no_predecessor(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    """Start a query over any ledger of its own that is not ahead of it."""
    return (yield from steps)


BUGS: list[tuple[Any, Between, str]] = [
    (write_direct, offsets_only, "a"),
    (write_query, offsets_only, "a"),
    (write_query, no_predecessor, "a"),
]


@pytest.mark.parametrize(("write", "bug", "writers"), BUGS)
def test_the_search_finds_the_loss_when_the_predecessor_is_not_compared(
    write: Any, bug: Between, writers: str
) -> None:
    found = search(write, bug, writers, failover=1)
    assert found.violations, f"{found.states} states, nothing found"
    told = found.violations[0]
    assert " back to state " in " ".join(told.trace)
    assert "over the loss" in told.what or "rows" in told.what
