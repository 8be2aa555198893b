"""Results and the offsets they came from, in one SQL transaction: the protocol as steps, without I/O.

Rules: rows become visible only with the offsets that they were read from, by one COMMIT; only the writer with
the stream's newest epoch may publish; a COMMIT whose answer was lost is settled by asking, never by guessing.
So after any crash the ledger says how far the results go, and reading on from there repeats nothing and
leaves out nothing.

Why steps and not calls: production drives them with a database, the model checker with a simulated one, and
the crash tests kill between them. All use the same object, so what was checked is what runs.

A failed step is answered with `StepFailedError`. The transaction then counts as dead, because some databases
roll back only one statement. `Abandon` ends it, and the next `Begin` may need a new connection.

>>> steps = publish(LedgerBatch("s", (), (), token="t"), epoch=3)
>>> next(steps), steps.send(None)
(Begin(), LockWriter(stream='s'))
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.core.errors import PenstockError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.sinks.ledger_rules import (
    Ledger,
    LedgerBatch,
    LedgerEntry,
    Stage,
    explain_old_epoch,
    find_ledger_refusal,
)

Outcome = TypeVar("Outcome")

#: How often to try a batch's COMMIT while it fails and the ledger says that it did not happen. A constraint
#: that is checked only then, or a full disk, refuses it every time.
COMMIT_ATTEMPTS = 3


# --- results and failures -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """A batch that is in the database, once. `was_in_doubt` means that the ledger had to be asked."""

    rows: int
    was_in_doubt: bool = False


class StepFailedError(Exception):
    """A failed step, caused by the database's error. Its transaction is lost, or, if a COMMIT, in doubt."""


# --- the steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a transaction, over a new connection if there is none."""


@dataclass(frozen=True, slots=True)
class LockWriter:
    """Lock the stream's writer row until the transaction ends. Answer: its epoch, 0 if just created."""

    stream: str


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Write this epoch and this owner to the writer row."""

    stream: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Read all entries of the stream, locked until the transaction ends. Answer: a `Ledger`."""

    stream: str


@dataclass(frozen=True, slots=True)
class InsertStages:
    """Move the rows of one table's stages into it. Answer: how many each stage had, in this order."""

    table: str
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Set these entries, drop those of `forgotten`, and record the batch in the history."""

    stream: str
    entries: tuple[tuple[TopicPartition, LedgerEntry], ...]
    forgotten: tuple[TopicPartition, ...] = ()
    batch: LedgerBatch | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Roll back and close the connection. Never fails: a server that cannot be reached has rolled back."""


@dataclass(frozen=True, slots=True)
class SweepStages:
    """Drop the stages of writers with earlier epochs; they can no longer publish."""

    stream: str
    epoch: int


Step: TypeAlias = (
    Begin | LockWriter | RaiseEpoch | ReadLedger | InsertStages | WriteLedger | Commit | Abandon | SweepStages
)
Steps: TypeAlias = Generator[Step, Any, Outcome]


def drive(steps: Steps[Outcome], perform: Callable[[Step], Any]) -> Outcome:
    """Perform each step, pass its answer or failure to the protocol, and return the protocol's result."""
    answer: Any = None
    failure: StepFailedError | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: Outcome = end.value
            return result
        answer = failure = None
        try:
            answer = perform(step)
        except StepFailedError as error:
            failure = error


# --- the protocol ---------------------------------------------------------------------------------------


def take_over(stream: str, owner: str) -> Steps[tuple[int, Ledger]]:
    """Become the stream's only writer, and return the epoch to publish with and the stream's ledger.

    The epoch is raised and committed before anything is swept: a writer that was only slow is then fenced at
    its next publish, and no stage that could still be published is dropped.
    """
    epoch = 0
    try:
        yield Begin()
        epoch = 1 + (yield LockWriter(stream))
        ledger: Ledger = yield ReadLedger(stream)
        yield RaiseEpoch(stream, epoch, owner)
        yield Commit()
    except StepFailedError as error:
        # This covers a COMMIT in doubt, too: an epoch that is raised without an owner does no harm.
        yield Abandon()
        what = "The stream's writer row could not be taken"
        raise _failed("START_FAILED", what, stream, error) from error
    try:
        yield SweepStages(stream, epoch)
    except StepFailedError:
        yield Abandon()  # what is left only takes space; the next start sweeps it
    return epoch, ledger


def publish(batch: LedgerBatch, epoch: int) -> Steps[Published]:
    """Make the batch durable: rows and offsets, all or nothing, once. Return how many rows it has."""
    in_doubt = False
    refused: list[StepFailedError] = []
    while True:
        try:
            yield Begin()
            found = yield LockWriter(batch.stream)
            if found > epoch:
                yield Abandon()
                raise _fenced(batch.stream, epoch, found)
            ledger: Ledger = yield ReadLedger(batch.stream)
            if found == epoch and _is_done(batch, ledger):
                yield Abandon()
                return Published(_count(batch), was_in_doubt=in_doubt)
            refusal = _find_refusal(batch, ledger, epoch, found)
            if refusal is not None:
                yield Abandon()
                raise refusal
            if len(refused) == COMMIT_ATTEMPTS:
                yield Abandon()
                what = f"The database has refused the COMMIT of the batch {COMMIT_ATTEMPTS} times"
                raise _failed("PUBLISH_FAILED", what, batch.stream, refused[-1]) from refused[-1]
            for table, stages in _by_table(batch).items():
                counts = yield InsertStages(table, stages)
                for stage, rows in zip(stages, counts, strict=True):
                    if rows != stage.rows:
                        yield Abandon()
                        raise _incomplete(stage, rows)
            yield _write(batch, epoch)
        except StepFailedError as error:
            yield Abandon()
            if in_doubt:
                raise _explain_doubt(batch.stream) from error
            what = "The batch could not be published"
            raise _failed("PUBLISH_FAILED", what, batch.stream, error) from error
        try:
            yield Commit()
        except StepFailedError as error:
            # Whether it was done is unknown. The writer row is free only when that transaction has ended, so
            # the next attempt, which locks the row, sees the outcome.
            yield Abandon()
            in_doubt = True
            refused.append(error)
        else:
            return Published(_count(batch), was_in_doubt=in_doubt)


def resolve_commit(batch: LedgerBatch, epoch: int) -> Steps[bool]:
    """Return whether a batch whose COMMIT was not answered is in the database; change nothing.

    Its own token means yes, the state that it follows means no, and anything else is an error.
    """
    try:
        yield Begin()
        found = yield LockWriter(batch.stream)
        ledger: Ledger = yield ReadLedger(batch.stream)
    except StepFailedError as error:
        yield Abandon()
        raise _explain_doubt(batch.stream) from error
    yield Abandon()
    if found > epoch:
        raise _fenced(batch.stream, epoch, found)
    if found == epoch and _is_done(batch, ledger):
        return True
    refusal = _find_refusal(batch, ledger, epoch, found)
    if refusal is not None:
        raise refusal
    return False


def _find_refusal(batch: LedgerBatch, ledger: Ledger, epoch: int, found: int) -> PenstockError | None:
    if found < epoch:
        return explain_old_epoch(batch, ledger, found, epoch)
    return find_ledger_refusal(batch, ledger)


def _by_table(batch: LedgerBatch) -> dict[str, tuple[Stage, ...]]:
    tables = dict.fromkeys(stage.table for stage in batch.stages)
    return {table: tuple(each for each in batch.stages if each.table == table) for table in tables}


def _write(batch: LedgerBatch, epoch: int) -> WriteLedger:
    return WriteLedger(
        batch.stream,
        tuple(list_entries(batch).items()),
        tuple(each.partition for each in batch.moves if each.is_forgotten),
        batch,
        epoch,
    )


def list_entries(batch: LedgerBatch) -> dict[TopicPartition, LedgerEntry]:
    """Return the stream's entries in the ledger once the batch is published."""
    return {
        move.partition: LedgerEntry(
            move.until, move.topic_id, batch.token, move.leader_epoch, move.is_gone, batch.name
        )
        for move in batch.moves
        if not move.is_forgotten
    }


def _count(batch: LedgerBatch) -> int:
    return sum(stage.rows for stage in batch.stages)


def _is_done(batch: LedgerBatch, ledger: Ledger) -> bool:
    """Return whether this attempt is in the ledger. Its token tells it from another that went as far."""
    entries = list_entries(batch)
    return bool(entries) and all(ledger.get(each) == entry for each, entry in entries.items())


# --- errors ---------------------------------------------------------------------------------------------


def _failed(condition: str, what: str, stream: str, error: StepFailedError) -> SinkError:
    cause = error.__cause__
    return SinkError(
        condition,
        f"{what} (stream {stream}); nothing of it is in the database. The cause: {cause or error}",
        hint="Start the stream again: it goes on where the ledger says.",
        facts={"stream": stream},
        retriable=cause.retriable if isinstance(cause, PenstockError) else True,
    )


def _fenced(stream: str, epoch: int, found: int) -> SinkError:
    return SinkError(
        "WRITER_FENCED",
        f"Another writer has taken over the stream {stream}: its epoch is {found}, this one's is {epoch}.",
        hint="Run one at a time. This writer has published nothing since.",
        facts={"stream": stream, "epoch": epoch, "found": found},
    )


def _explain_doubt(stream: str) -> SinkError:
    return SinkError(
        "COMMIT_IN_DOUBT",
        f"The database answered neither the COMMIT of a batch of the stream {stream} nor the check after it.",
        hint="The batch is there whole or not at all, and the ledger knows: when the database is back, write "
        "the batch again or start the stream again.",
        facts={"stream": stream},
        retriable=True,
    )


def _incomplete(stage: Stage, rows: int) -> SinkError:
    return SinkError(
        "STAGE_INCOMPLETE",
        f"Stage {stage.name} holds {rows} rows and its task wrote {stage.rows}.",
        hint="The database has restarted and emptied it; the batch is retried.",
        facts={"stage": stage.name, "rows": rows, "written": stage.rows},
        retriable=True,
    )
