"""Results and the offsets they came from, in one SQL transaction: the protocol as steps, without I/O.

Rules: rows become visible only with the offsets that they were read from, by one COMMIT; only the writer with
the stream's newest epoch may publish; a COMMIT whose answer was lost is settled by asking, never by guessing.
So after any crash the ledger says how far the results go, and reading on from there repeats and leaves out
nothing.

Why steps and not calls: production drives them with a database, the model checker with a simulated one, and
the crash tests kill between them. It is the same object, so what was checked is what runs.

A step that fails is answered with `StepFailedError`; the transaction is then dead, whatever the database
says: some roll back one statement only. `Abandon` ends it, and the next `Begin` may need a new connection.

>>> steps = publish(Batch("s", (), (), token="t"), epoch=3)
>>> next(steps), steps.send(None)
(Begin(), LockWriter(stream='s'))
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.model import TopicPartition

Result = TypeVar("Result")


# --- the nouns ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a stream stands in one partition, and which attempt put it there."""

    offset: int
    topic_id: bytes | None = None
    token: str = ""


Ledger: TypeAlias = Mapping[TopicPartition, Entry]


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of one task that nobody sees yet, and how many the task says there are."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's part of a batch: `[start, until)`. `is_first`: the ledger must not know it yet."""

    partition: TopicPartition
    start: int
    until: int
    topic_id: bytes | None = None
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction makes durable. `token` is of this attempt alone."""

    stream: str
    moves: tuple[Move, ...]
    stages: tuple[Stage, ...]
    token: str


@dataclass(frozen=True, slots=True)
class Published:
    """The batch is in the database, once. `was_in_doubt`: that took a second look."""

    rows: int
    was_in_doubt: bool = False


class StepFailedError(Exception):
    """A step did not go well; what the database said is the cause. Nothing of its transaction is kept,
    except that of a COMMIT nobody knows it."""


# --- the steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a transaction, over a new connection if there is none."""


@dataclass(frozen=True, slots=True)
class LockWriter:
    """Hold the stream's writer row until the transaction ends. Answer: its epoch, 0 if it was just made."""

    stream: str


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Write the writer row: this epoch, this owner."""

    stream: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """All entries of the stream, locked until the transaction ends. Answer: a `Ledger`."""

    stream: str


@dataclass(frozen=True, slots=True)
class InsertStage:
    """Move a stage's rows into the results. Answer: how many there were."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Set these entries."""

    stream: str
    entries: tuple[tuple[TopicPartition, Entry], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """End the transaction well."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Roll back and close the connection. Never fails: whoever cannot be reached has rolled back."""


@dataclass(frozen=True, slots=True)
class SweepStages:
    """Drop the stages of writers before this epoch; they can publish no more."""

    stream: str
    epoch: int


Step: TypeAlias = (
    Begin | LockWriter | RaiseEpoch | ReadLedger | InsertStage | WriteLedger | Commit | Abandon | SweepStages
)
Steps: TypeAlias = Generator[Step, Any, Result]


def drive(steps: Steps[Result], perform: Callable[[Step], Any]) -> Result:
    """Perform each step and hand its answer, or its failure, to the protocol."""
    answer: Any = None
    failure: StepFailedError | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = failure = None
        try:
            answer = perform(step)
        except StepFailedError as error:
            failure = error


# --- the protocol ---------------------------------------------------------------------------------------


def take_over(stream: str, owner: str) -> Steps[tuple[int, Ledger]]:
    """Become the stream's only writer: the epoch to publish with, and where the stream stands.

    The epoch is raised and committed before anything is swept: a writer that was only slow then finds itself
    fenced at its next publish, and no stage that could still be published is dropped.
    """
    epoch = 0
    try:
        yield Begin()
        epoch = 1 + (yield LockWriter(stream))
        ledger: Ledger = yield ReadLedger(stream)
        yield RaiseEpoch(stream, epoch, owner)
        yield Commit()
    except StepFailedError as error:
        # Also a COMMIT in doubt: an epoch that was raised for nobody harms nobody.
        yield Abandon()
        raise _failed("START_FAILED", "The stream's writer row could not be taken", stream) from error
    try:
        yield SweepStages(stream, epoch)
    except StepFailedError:
        yield Abandon()  # what is left behind only takes room; the next start sweeps it
    return epoch, ledger


def publish(batch: Batch, epoch: int) -> Steps[Published]:
    """Make the batch durable: rows and offsets, all or nothing, once."""
    in_doubt = False
    while True:
        try:
            yield Begin()
            found = yield LockWriter(batch.stream)
            if found != epoch:
                yield Abandon()
                raise _fenced(batch.stream, epoch, found)
            ledger: Ledger = yield ReadLedger(batch.stream)
            if _is_done(batch, ledger):
                yield Abandon()
                return Published(_count(batch), was_in_doubt=in_doubt)
            refusal = _compare(batch, ledger)
            if refusal is not None:
                yield Abandon()
                raise refusal
            for stage in batch.stages:
                rows = yield InsertStage(stage)
                if rows != stage.rows:
                    yield Abandon()
                    raise _incomplete(stage, rows)
            ends = tuple((each.partition, _end(each, batch)) for each in batch.moves)
            yield WriteLedger(batch.stream, ends)
        except StepFailedError as error:
            yield Abandon()
            raise _failed("PUBLISH_FAILED", "The batch could not be published", batch.stream) from error
        try:
            yield Commit()
        except StepFailedError:
            # Done or not? The writer row is free only when that transaction has ended, so who holds it knows.
            yield Abandon()
            in_doubt = True
        else:
            return Published(_count(batch), was_in_doubt=in_doubt)


def _end(move: Move, batch: Batch) -> Entry:
    return Entry(move.until, move.topic_id, batch.token)


def _count(batch: Batch) -> int:
    return sum(stage.rows for stage in batch.stages)


def _is_done(batch: Batch, ledger: Ledger) -> bool:
    """This very attempt is in the ledger. Its token tells it from another one that went equally far."""
    return bool(batch.moves) and all(ledger.get(each.partition) == _end(each, batch) for each in batch.moves)


def _compare(batch: Batch, ledger: Ledger) -> OffsetStoreError | None:
    """The ledger must stand exactly where the batch begins."""
    for move in batch.moves:
        entry = ledger.get(move.partition)
        if entry is None:
            if move.is_first:
                continue
            return _elsewhere("LEDGER_WENT_BACK", move, "knows nothing of it any more")
        if move.is_first:
            return _elsewhere("LEDGER_MOVED", move, f"stands at {entry.offset} already")
        if entry.offset > move.start:
            return _elsewhere("LEDGER_MOVED", move, f"stands at {entry.offset} already")
        if entry.offset < move.start:
            return _elsewhere("LEDGER_WENT_BACK", move, f"stands at {entry.offset} again")
        if entry.topic_id != move.topic_id and entry.topic_id is not None:
            return _elsewhere("LEDGER_OF_ANOTHER_TOPIC", move, "is about another topic of that name")
    return None


# --- what is told ---------------------------------------------------------------------------------------


def _failed(condition: str, what: str, stream: str) -> SinkError:
    return SinkError(
        condition,
        f"{what} (stream {stream}); nothing of it is in the database.",
        hint="The cause is below; started again, the stream goes on where the ledger says.",
        facts={"stream": stream},
        retriable=True,
    )


def _fenced(stream: str, epoch: int, found: int) -> SinkError:
    return SinkError(
        "WRITER_FENCED",
        f"Another writer has taken over the stream {stream}: its epoch is {found}, this one's is {epoch}.",
        hint="Run one at a time; nothing of this one was published after that.",
        facts={"stream": stream, "epoch": epoch, "found": found},
    )


def _incomplete(stage: Stage, rows: int) -> SinkError:
    return SinkError(
        "STAGE_INCOMPLETE",
        f"Stage {stage.name} holds {rows} rows and its task wrote {stage.rows}.",
        hint="The database has restarted and emptied it; the batch is done again.",
        facts={"stage": stage.name, "rows": rows, "written": stage.rows},
        retriable=True,
    )


def _elsewhere(condition: str, move: Move, what: str) -> OffsetStoreError:
    hints = {
        "LEDGER_MOVED": "Another program writes this stream; run one at a time.",
        "LEDGER_WENT_BACK": "The database was restored to an earlier state. Decide what the results are "
        "worth, then start the stream again: it goes on where the ledger says.",
        "LEDGER_OF_ANOTHER_TOPIC": "The topic was recreated; accept the new one, or start the stream anew.",
    }
    return OffsetStoreError(
        condition,
        f"{move.partition}: the batch begins at {move.start}, and the ledger {what}.",
        hint=hints[condition],
        facts={"partition": str(move.partition), "start": move.start},
    )
