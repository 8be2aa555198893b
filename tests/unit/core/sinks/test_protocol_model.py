"""The publishing protocol, searched: two writers, three batches, two partitions, and all possible faults.

The programs below drive `core.sinks.sql_commit_protocol` itself. The simulated database behaves as databases
promise. A transaction is invisible until its COMMIT. The writer row is locked until the transaction ends. A
COMMIT whose answer is lost may have happened, may never happen, or may still be in flight while it holds its
locks. A restart ends all transactions and empties staging. A fail-over does the same, and takes the database
back to any earlier state. Every state must have exactly the rows below the ledger's offsets, and every end
all rows. No writer may publish over the loss of rows that it was told are there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from penstock.core.errors import SinkError
from penstock.core.model import TopicPartition
from penstock.core.sinks.ledger_rules import LedgerBatch, LedgerEntry, LedgerMove, Stage, name_state
from penstock.core.sinks.sql_commit_protocol import (
    Abandon,
    Begin,
    Commit,
    InsertStages,
    LockWriter,
    RaiseEpoch,
    ReadLedger,
    StepFailedError,
    Steps,
    SweepStages,
    WriteLedger,
    publish,
    resolve_commit,
    take_over,
)
from penstock.testing.checker import Answer, Ended, Exploration, Failure, Reply, Restart, explore

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
BATCHES = 3
RETRIED = ("START_FAILED", "PUBLISH_FAILED", "COMMIT_IN_DOUBT", "STAGE_INCOMPLETE")
LOST = StepFailedError("the connection is gone")
Record = tuple[TopicPartition, int]
#: What was committed at one moment: the epoch, the ledger, the rows.
Moment = tuple[int, tuple[tuple[TopicPartition, LedgerEntry], ...], tuple[Record, ...]]


@dataclass(frozen=True)
class ReadEpoch:
    """Look at the writer row without locking it, which only a planted bug does."""


@dataclass(frozen=True)
class StageRows:
    """What the tasks of a batch do: a stage for each partition. The answer is a unique number.

    `told` has the rows that this writer was told are there.
    """

    records: tuple[Record, ...]
    epoch: int
    told: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Transaction:
    """What one connection would change."""

    epoch: int | None = None
    entries: tuple[tuple[TopicPartition, LedgerEntry], ...] = ()
    rows: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Database:
    """The simulated database. `ghost` is a COMMIT in flight; `budget` is what may still go wrong.

    `past` has earlier states of the database, as long as a fail-over can bring them back.
    """

    epoch: int = 0
    ledger: tuple[tuple[TopicPartition, LedgerEntry], ...] = ()
    rows: tuple[Record, ...] = ()
    stages: tuple[tuple[str, int, Record], ...] = ()  # name, epoch of its writer, its only row
    open: tuple[tuple[str, Transaction], ...] = ()
    holder: str = ""
    ghost: Transaction | None = None
    numbers: int = 0
    budget: tuple[tuple[str, int], ...] = field(default=(("crash", 1), ("doubt", 1), ("restart", 1)))
    trouble: str = ""
    past: tuple[Moment, ...] = ()
    has_gone_back: bool = False
    told: tuple[tuple[str, tuple[Record, ...]], ...] = ()

    # --- what can happen --------------------------------------------------------------------------------

    def perform(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        if self.ghost is not None:
            yield from self._settle_ghost(who, step)
            if isinstance(step, LockWriter):
                return  # it waits for the locks of what is in flight
        yield from self._go_on(who, step)

    def _settle_ghost(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        assert self.ghost is not None
        gone = replace(self, ghost=None, holder="" if self.holder == "ghost" else self.holder)
        for word, after in (("(late: done)", gone.apply(self.ghost)), ("(late: undone)", gone)):
            for more, world, reply in after.perform(who, step):
                yield f"{word} {more}", world, reply

    def _go_on(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        yield from self._do(who, step)
        if not isinstance(step, Abandon):
            yield from self._fail(who, step)

    def _fail(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        left = dict(self.budget)
        inside = who in dict(self.open)
        if left["crash"]:
            yield "and is killed before", self.spend("crash").forget(who), Restart()
            for word, after, _ in self._do(who, step):
                yield f"{word} and is killed after", after.spend("crash").forget(who), Restart()
        if left["restart"] and inside:
            down = replace(
                self.spend("restart"),
                open=tuple((name, LOST_TRANSACTION) for name, _ in self.open),
                stages=(),
                ghost=None,  # what was in flight has ended too
            )
            yield "while the database restarts", replace(down, holder="").drop(who), Failure(LOST)
        for number, moment in enumerate(self.past if left.get("failover") else ()):
            if inside:
                yield f"while it goes back to state {number}", self.go_back(moment).drop(who), Failure(LOST)
            elif isinstance(step, Begin | StageRows):  # nobody looks in between, so nobody notices
                before = replace(self.go_back(moment), stages=self.stages)  # some copy staging tables too
                for word, after, reply in before._do(who, step):
                    yield f"{word} after it went back to state {number}", after, reply
        mine = dict(self.open).get(who)
        if left["doubt"] and isinstance(step, Commit) and mine is not None and mine is not LOST_TRANSACTION:
            doubtful = self.spend("doubt")
            yield "answer lost, undone", doubtful.forget(who), Failure(LOST)
            yield "answer lost, done", doubtful.forget(who).apply(mine), Failure(LOST)
            held = replace(
                doubtful.drop(who), ghost=mine, holder="ghost" if self.holder == who else self.holder
            )
            yield "answer lost, on its way", held, Failure(LOST)

    def _do(self, who: str, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        mine = dict(self.open).get(who)
        if mine is LOST_TRANSACTION and not isinstance(step, Begin | Abandon):
            yield "on a lost connection", self.drop(who), Failure(LOST)
            return
        match step:
            case Begin():
                yield "", self.put(who, Transaction()), Answer()
            case Abandon():
                yield "", self.forget(who), Answer()
            case StageRows(records, epoch, told):
                number = self.numbers + 1
                stages = tuple((f"{number}-{each[0].partition}", epoch, each) for each in records)
                after = replace(self, numbers=number, stages=self.stages + stages)
                yield "", after.note_told(who, told), Answer(number)
            case SweepStages(_, epoch):
                kept = tuple(each for each in self.stages if each[1] >= epoch)
                yield "", replace(self, stages=kept), Answer()
            case LockWriter():
                if self.holder in ("", who):
                    yield "", replace(self, holder=who), Answer(self.epoch)
            case ReadEpoch():
                yield "", self, Answer(self.epoch)
            case ReadLedger():
                yield "", self, Answer(dict(self.ledger))
            case _:
                assert mine is not None, step
                yield from self._change(who, mine, step)

    def _change(self, who: str, mine: Transaction, step: Any) -> Iterable[tuple[str, Database, Reply]]:
        match step:
            case RaiseEpoch(_, epoch):
                yield "", self.put(who, replace(mine, epoch=epoch)), Answer()
            case WriteLedger(entries=entries):
                yield "", self.put(who, replace(mine, entries=entries)), Answer()
            case InsertStages(_, stages):
                found = [tuple(row for name, _, row in self.stages if name == each.name) for each in stages]
                # The stages themselves stay: only the ledger prevents them from being published again.
                rows = (*mine.rows, *(row for some in found for row in some))
                yield "", self.put(who, replace(mine, rows=rows)), Answer(tuple(map(len, found)))
            case Commit():
                lost = set(dict(self.told).get(who, ())) - set(self.rows)
                after = self.forget(who).apply(mine)
                if lost and mine.entries:
                    after = replace(after, trouble=f"{who} publishes over the loss of {sorted(lost)}")
                yield "", after, Answer()

    def end(self, who: str, ended: Ended) -> Iterable[tuple[str, Database, bool]]:
        if not ended.error or "WRITER_FENCED" in ended.error:
            yield "is over", self.forget(who), False
        elif self.has_gone_back and "[LEDGER_" in ended.error:
            yield "is told and starts again, where the ledger says", self.forget(who), True
        elif any(f"[{each}]" in ended.error for each in RETRIED):
            yield "starts again", self.forget(who), True
        else:
            yield "ends", replace(self, trouble=f"{who} ended with {ended.error}"), False

    # --- what is right ----------------------------------------------------------------------------------

    def judge(self) -> str | None:
        below = sorted((each, n) for each, entry in self.ledger for n in range(entry.offset))
        if sorted(self.rows) != below:
            return f"rows {self.rows}, offsets {self.ledger}"
        return self.trouble or None

    def judge_end(self) -> str | None:
        if self.has_gone_back:
            return None  # after a writer's last batch, its next one would report this
        if len(self.rows) != BATCHES * len(PARTITIONS):
            return f"nobody goes on, and only {len(self.rows)} rows are there"
        return None

    # --- how it changes ---------------------------------------------------------------------------------

    def spend(self, what: str) -> Database:
        return replace(self, budget=tuple((name, left - (name == what)) for name, left in self.budget))

    def put(self, who: str, transaction: Transaction) -> Database:
        return replace(
            self.drop(who), open=tuple(sorted([*self.drop(who).open, (who, transaction)], key=str))
        )

    def drop(self, who: str) -> Database:
        return replace(self, open=tuple(each for each in self.open if each[0] != who))

    def forget(self, who: str) -> Database:
        return replace(self.drop(who), holder="" if self.holder == who else self.holder)

    def note_told(self, who: str, told: tuple[Record, ...]) -> Database:
        if not self.has_gone_back and not dict(self.budget).get("failover"):
            return self  # nobody can be mistaken, and this keeps the search smaller
        return replace(self, told=tuple(sorted({**dict(self.told), who: told}.items())))

    def go_back(self, moment: Moment) -> Database:
        epoch, ledger, rows = moment
        return replace(
            self.spend("failover"),
            epoch=epoch,
            ledger=ledger,
            rows=rows,
            open=tuple((name, LOST_TRANSACTION) for name, _ in self.open),
            stages=(),
            ghost=None,
            holder="",
            past=(),
            has_gone_back=True,
        )

    def apply(self, done: Transaction) -> Database:
        ledger = {**dict(self.ledger), **dict(done.entries)}
        moment = (self.epoch, self.ledger, self.rows)
        return replace(
            self,
            past=(*self.past, moment) if dict(self.budget).get("failover") else (),
            epoch=self.epoch if done.epoch is None else done.epoch,
            ledger=tuple(sorted(ledger.items())),
            rows=tuple(sorted(self.rows + done.rows)),
        )


LOST_TRANSACTION = Transaction(epoch=-1)


# --- the writers ------------------------------------------------------------------------------------------

#: Sits between a protocol and the database; the epoch and the batch are those of a publish.
Between = Callable[[Steps[Any], int, LedgerBatch | None], Generator[Any, Any, Any]]


def unchanged(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    return (yield from steps)


def write_all(who: str, between: Between) -> Generator[Any, Any, None]:
    """Run a stream's driver: it takes over; then each batch has one record per partition, from memory."""
    epoch, ledger = yield from between(take_over("s", who), 0, None)
    positions = {each: ledger[each].offset if each in ledger else 0 for each in PARTITIONS}
    known, trail, told = set(ledger), (name_state(ledger),), ()
    while positions[PARTITIONS[0]] < BATCHES:
        moves = tuple(
            LedgerMove(each, at, at + 1, is_first=each not in known) for each, at in positions.items()
        )
        records = tuple(positions.items())
        number = yield StageRows(records, epoch, told)
        stages = tuple(Stage(f"{number}-{each.partition}", 1) for each in positions)
        batch = LedgerBatch("s", moves, stages, token=str(number), trail=trail)
        try:
            yield from between(publish(batch, epoch), epoch, batch)
        except SinkError as error:
            if error.condition != "COMMIT_IN_DOUBT":
                raise
            if not (yield from between(resolve_commit(batch, epoch), epoch, batch)):
                continue  # it is not there, so the batch is repeated from the same offsets
        positions = {each: at + 1 for each, at in positions.items()}
        known, trail, told = set(PARTITIONS), (*trail, batch.token), (*told, *records)


FAULTS = ("crash", "doubt", "failover", "restart")


def search(between: Between, *, most_states: int = 5_000_000, **faults: int) -> Exploration:
    programs = {who: partial(write_all, who, between) for who in "ab"}
    budget = tuple((kind, faults.get(kind, 0)) for kind in FAULTS)
    return explore(Database(budget=budget), programs, most_states=most_states)


@pytest.mark.parametrize(
    "faults",
    [
        ("crash",),
        ("doubt",),
        ("restart",),
        pytest.param(("failover",), marks=pytest.mark.proof),
        pytest.param(("doubt", "restart"), marks=pytest.mark.proof),
    ],
    ids="+".join,
)
def test_every_order_of_two_writers_with_a_failure_anywhere_keeps_each_row_once(
    faults: tuple[str, ...],
) -> None:
    """Writers are killed before or after any step, and a COMMIT is in doubt in each way.

    The database is restarted at any step, taken back to any earlier state, and restarted while it is asked
    about the COMMIT.
    """
    found = search(unchanged, **dict.fromkeys(faults, 1))
    assert found.violations == []
    assert found.ends > 10
    assert found.states > 10_000


# --- planted bugs -----------------------------------------------------------------------------------------


def bend(
    steps: Steps[Any],
    *,
    ask: Callable[[Any], Any] = lambda step: step,
    answer: Callable[[Any, Any], Any] = lambda step, value: value,
) -> Generator[Any, Any, Any]:
    """Drive the real protocol, change its steps, and lie about the answers."""
    reply: Any = None
    failure: StepFailedError | None = None
    while True:
        try:
            step = steps.send(reply) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        reply = failure = None
        try:
            asked = ask(step)
            if asked is not None:
                reply = answer(step, (yield asked))
        except StepFailedError as error:
            failure = error


def no_fence(steps: Steps[Any], epoch: int, batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    is_told = batch is not None
    return (
        yield from bend(
            steps, answer=lambda step, value: epoch if is_told and isinstance(step, LockWriter) else value
        )
    )


def no_comparison(steps: Steps[Any], _epoch: int, batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    def answer(step: Any, value: Any) -> Any:
        if batch is None or not isinstance(step, ReadLedger):
            return value
        return {each.partition: LedgerEntry(each.start) for each in batch.moves if not each.is_first}

    return (yield from bend(steps, answer=answer))


def no_token(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    def answer(step: Any, value: Any) -> Any:
        if not isinstance(step, ReadLedger):
            return value
        return {each: replace(entry, token="") for each, entry in value.items()}

    return (yield from bend(steps, answer=answer))


def doubt_is_success(steps: Steps[Any], _epoch: int, batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value
        try:
            reply = yield step
        except StepFailedError as error:
            if batch is not None and isinstance(step, Commit):
                return None
            return (yield from _go_on_failing(steps, error))


def _go_on_failing(steps: Steps[Any], error: StepFailedError) -> Generator[Any, Any, Any]:
    step = steps.throw(error)
    while True:
        try:
            step = steps.send((yield step))
        except StopIteration as end:
            return end.value


def no_counts(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    return (
        yield from bend(
            steps,
            answer=lambda step, value: (
                tuple(each.rows for each in step.stages) if isinstance(step, InsertStages) else value
            ),
        )
    )


def no_new_epoch(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    return (yield from bend(steps, ask=lambda step: None if isinstance(step, RaiseEpoch) else step))


def no_lock(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    return (yield from bend(steps, ask=lambda step: ReadEpoch() if isinstance(step, LockWriter) else step))


def half_the_offsets(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    def ask(step: Any) -> Any:
        return replace(step, entries=step.entries[:1]) if isinstance(step, WriteLedger) else step

    return (yield from bend(steps, ask=ask))


def two_transactions(steps: Steps[Any], _epoch: int, _batch: LedgerBatch | None) -> Generator[Any, Any, Any]:
    step = next(steps)
    while True:
        if isinstance(step, WriteLedger):
            yield Commit()
            yield Begin()
        try:
            reply = yield step
        except StepFailedError as error:
            step = steps.throw(error)
            continue
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value


def counts_without_rows(
    steps: Steps[Any], _epoch: int, batch: LedgerBatch | None
) -> Generator[Any, Any, Any]:
    """Publish one task's stage twice and not the other's, so that the sum is right."""

    def ask(step: Any) -> Any:
        if batch is not None and isinstance(step, InsertStages):
            return InsertStages(step.table, (step.stages[0], step.stages[0]))
        return step

    return (yield from bend(steps, ask=ask))


BUGS: list[tuple[Between, dict[str, int]]] = [
    (no_fence, {}),
    (no_comparison, {"doubt": 1}),
    (no_token, {"doubt": 1}),
    (doubt_is_success, {"doubt": 1}),
    (no_counts, {"restart": 1}),
    (no_new_epoch, {}),
    (no_lock, {}),
    (half_the_offsets, {}),
    (two_transactions, {}),
    (counts_without_rows, {}),
]


@pytest.mark.parametrize(("bug", "fault"), BUGS)
def test_a_planted_bug_is_found(bug: Between, fault: dict[str, int]) -> None:
    """Each bug removes one guard of the real protocol; the search shows the order of steps that needs it."""
    found = search(bug, **fault)
    assert found.violations, f"{found.states} states, nothing found"
    assert found.violations[0].trace
