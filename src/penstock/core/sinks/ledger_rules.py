"""A sink's ledger: its entries, what a batch does to them, and whether a batch follows the ledger's state.

Rules: every publish writes all entries of its stream, under a token of its own, so the token of the entries
names the ledger's state. A batch is published only over the state that its writer last saw. Offsets alone
would not do: a batch may move none (windows that were closed), or only those of a new partition, and a
database that has lost the batch looks the same in all others. A database goes back when a lagging replica is
promoted or a backup is restored. That is an error that names what is missing, and nothing is retried.

>>> one = TopicPartition("t", 0)
>>> name_state({one: LedgerEntry(5, token="a")}), name_state({})
('a', '')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.prose import shorten
from penstock.core.sinks.offset_digests import OffsetDigest

#: The most partitions that an error names one by one.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A stream's position in one partition: its log, and the attempt of the batch that put it there.

    `is_gone` means that the partition is missing; if it comes back, the stream goes on here.
    """

    offset: int
    topic_id: bytes | None = None
    token: str = ""
    leader_epoch: int | None = None
    is_gone: bool = False
    batch: str = ""


Ledger: TypeAlias = Mapping[TopicPartition, LedgerEntry]
#: Missing offsets of each partition: from which one (None if the partition is unknown) to which.
MissingOffsets: TypeAlias = Mapping[TopicPartition, tuple[int | None, int]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of one task that are not visible yet, their number as the task reports it, and their table.

    `digests` are of the offsets that the rows name as their origin, for audits.
    """

    name: str
    rows: int
    table: str = ""
    digests: tuple[tuple[TopicPartition, OffsetDigest], ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """One partition's part of a batch: from `start`, the ledger's required position, to `until`.

    With `is_first`, the ledger must not have the partition yet. `topic_id` is of the log that was read, and
    `known_id` is of the log that the ledger must name: they differ when the stream has passed on to a
    recreated topic. `read_from` is where reading began, if that is not `start`: the offsets between were
    lost. With `is_forgotten`, the stream no longer reads the partition, and its position is dropped.
    """

    partition: TopicPartition
    start: int
    until: int
    topic_id: bytes | None = None
    is_first: bool = False
    known_id: bytes | None = None
    read_from: int | None = None
    leader_epoch: int | None = None
    is_gone: bool = False
    is_forgotten: bool = False


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """What one transaction makes durable.

    `token` belongs to this attempt alone; `name` is the batch's own, if an engine that may repeat it gives it
    one. `trail` names the ledger states that the writer has seen, the oldest first: the batch follows only
    the last one.
    """

    stream: str
    moves: tuple[LedgerMove, ...]
    stages: tuple[Stage, ...]
    token: str
    name: str = ""
    trail: tuple[str, ...] = ("",)


# --- the state of a ledger ------------------------------------------------------------------------------


def name_state(ledger: Ledger) -> str:
    """Return the name of the ledger's state: the token of its last change, or "" if it is empty."""
    return "+".join(sorted({entry.token for entry in ledger.values()}))


def find_ledger_refusal(batch: LedgerBatch, ledger: Ledger) -> OffsetStoreError | None:
    """Return why the batch may not be published over this ledger, or None if it follows its state."""
    state, follows = name_state(ledger), batch.trail[-1]
    missing = _list_missing(batch, ledger)
    if missing or (state != follows and (state in batch.trail or not ledger)):
        return _explain_lost(batch, ledger, missing)
    for move in batch.moves:
        entry = ledger.get(move.partition)
        if entry is not None and (move.is_first or entry.offset > move.start):
            begins = f"{move.partition}: the batch begins at {move.start}"
            return explain_moved(batch.stream, f"{begins}, and the ledger stands at {entry.offset} already")
    if state != follows:
        return explain_moved(
            batch.stream, f"The ledger's last change is {state}; the batch follows {follows or 'none'}"
        )
    for move in batch.moves:
        entry = ledger.get(move.partition)
        ids = {None if entry is None else entry.topic_id, move.known_id}
        if None not in ids and len(ids) > 1:
            return _explain_topic(move)
    return None


def explain_old_epoch(batch: LedgerBatch, ledger: Ledger, found: int, epoch: int) -> OffsetStoreError:
    """Return the error for a writer row that is older than the writer, with everything that is missing."""
    missing = _list_missing(batch, ledger)
    is_last = name_state(ledger) == batch.trail[-1]
    lost = f"the take-over of this writer (its epoch was {epoch}, and it is {found} again)"
    what = f"{lost}, and no batch" if is_last else f"{lost}, and {_count_lost(batch, ledger)}"
    return explain_went_back(batch.stream, what, missing, is_named=bool(batch.name), facts={"found": found})


def list_missing(stands: Mapping[TopicPartition, int], stood: Mapping[TopicPartition, int]) -> MissingOffsets:
    """Return the offsets between a stream's present position and a later one that it had reached."""
    return {
        each: (stands.get(each), until)
        for each, until in stood.items()
        if each not in stands or stands[each] < until
    }


def _list_missing(batch: LedgerBatch, ledger: Ledger) -> MissingOffsets:
    """Return the offsets between the ledger's position and the start of the batch."""
    missing: dict[TopicPartition, tuple[int | None, int]] = {}
    for move in batch.moves:
        entry = ledger.get(move.partition)
        if entry is None and not move.is_first:
            missing[move.partition] = (None, move.start)
        elif entry is not None and entry.offset < move.start:
            missing[move.partition] = (entry.offset, move.start)
    return missing


# --- errors and descriptions ----------------------------------------------------------------------------


def explain_went_back(
    stream: str,
    lost: str,
    missing: MissingOffsets,
    *,
    is_named: bool,
    facts: Mapping[str, object] | None = None,
    place: str = "database",
    hint: str = "",
) -> OffsetStoreError:
    """Return the error for a sink that has lost what it had.

    `is_named` means that a query with a Spark checkpoint wrote it, which does not go back on its own.
    """
    back = "Restore the newest state of the database (another replica, a later backup). If there is none, "
    return OffsetStoreError(
        "LEDGER_WENT_BACK",
        f"The {place} has gone back to an earlier state. Of the stream {stream} it lacks {lost}; "
        f"{describe_missing(missing)}.",
        hint=hint
        or back
        + (
            "take the query's checkpoint back to the same batch, as docs/guides/delivery.md explains under "
            "`When the database goes back`."
            if is_named
            else "start the stream again: it goes on where the ledger says and writes what is missing again."
        ),
        facts={
            "stream": stream,
            "offsets": {str(each): list(some) for each, some in missing.items()},
            **(facts or {}),
        },
    )


def describe_missing(missing: MissingOffsets) -> str:
    """Return which offsets are missing, in words."""
    if not missing:
        return "what is lost moved no offsets"
    told = [
        f"{each} up to {until}" if start is None else f"{each} from {start} to {until}"
        for each, (start, until) in sorted(missing.items())
    ]
    return f"the offsets that are missing are {shorten(told, _SHOWN, 'partitions more')}"


def _explain_lost(batch: LedgerBatch, ledger: Ledger, missing: MissingOffsets) -> OffsetStoreError:
    lost = _find_lost(batch, ledger)
    return explain_went_back(
        batch.stream,
        _count_lost(batch, ledger),
        missing,
        is_named=bool(batch.name),
        facts={} if lost is None else {"batches": lost},
    )


def _find_lost(batch: LedgerBatch, ledger: Ledger) -> int | None:
    """Return how many batches of this writer are gone, or None if more are gone than it has published."""
    state = name_state(ledger)
    return len(batch.trail) - 1 - batch.trail.index(state) if state in batch.trail else None


def _count_lost(batch: LedgerBatch, ledger: Ledger) -> str:
    lost = _find_lost(batch, ledger)
    if lost == 0:
        return "a part of the last batch's offsets, which were changed by hand"
    count = "batches" if lost is None else "1 batch" if lost == 1 else f"{lost} batches"
    last = next((entry.batch for entry in ledger.values()), "")
    named = f" (it ends with {last or 'none'}, and this is {batch.name})" if batch.name else ""
    return f"{count} that this writer has published or found there{named}"


def explain_moved(stream: str, what: str) -> OffsetStoreError:
    """Return the error for a ledger in a state that this writer did not leave it in."""
    return OffsetStoreError(
        "LEDGER_MOVED",
        f"The ledger of the stream {stream} was changed by somebody else. {what}.",
        hint="Another program writes this stream; run one at a time.",
        facts={"stream": stream},
    )


def _explain_topic(move: LedgerMove) -> OffsetStoreError:
    return OffsetStoreError(
        "LEDGER_OF_ANOTHER_TOPIC",
        f"{move.partition}: the batch begins at {move.start}, and the ledger's position is of another topic "
        "of that name.",
        hint="The topic was recreated; accept the new one, or start the stream over.",
        facts={"partition": str(move.partition), "start": move.start},
    )
