"""The contract of offset stores, and the one rule about going back.

Rules: a store keeps one whole position per stream, all partitions in one atomic call, so that a crash never
leaves some partitions ahead of others. A stream that was never saved is `None`, which differs from an empty
position. Offsets of a log never go back on their own: a writer that was only slow would otherwise undo its
successor's work, and rows would be processed twice. Going back on purpose must be requested.

What a person changes by hand (a rewind, say) goes through `change`: it is made only if the stream is still
where that person saw it, and the store records who did it. A store inherits from `OffsetStore`, which has
plain defaults for what only some stores do well, and passes `tests/contract/test_offset_stores.py`.

    store.save("visits", position)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition, is_another
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position
from penstock.core.options.storage_addresses import Place

_LONGEST_NAME = 200
#: The verb of a change that a program, not a person, makes at its start; it continues from there.
SEEK = "seek"
SaveCallback: TypeAlias = Callable[[StreamPosition, BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a position by hand: when, by whom, with which verb, from where and to where."""

    at_ms: int
    who: str
    verb: str
    before: StreamPosition | None
    after: StreamPosition


@dataclass(frozen=True, slots=True)
class RowRequest:
    """What is to happen to rows besides the move.

    `written` are the only tables that the stream fills from now on, or None for all that it has filled so
    far. `ends` are the ends of the logs, as far as they are known.
    """

    delete_from: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()
    may_count_twice: bool = False
    written: frozenset[str] | None = None
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_asked(self) -> bool:
        """Return whether anything is to happen to rows."""
        return bool(self.delete_from or self.rebuild or self.may_count_twice)


#: Delete nothing.
KEEP_ROWS = RowRequest()


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move does, or would do, to rows: how many are deleted from each table, with notes for the user.

    With `is_empty`, the move changes nothing at all, so it is not made and fences no writer.
    """

    deleted: dict[str, int]
    notes: tuple[str, ...] = ()
    is_empty: bool = False


def plan_change(
    at_ms: int, who: str, verb: str, before: StreamPosition, after: StreamPosition
) -> Change | None:
    """Return the change, or None if the stream is there already."""
    return None if before == after else Change(at_ms, who, verb, before, after)


@runtime_checkable
class OffsetStore(Protocol):
    """A place where positions survive the program. One per driver; not for two threads at once.

    Its `str` is its name in a sentence, such as "the folder offsets", without secrets.
    """

    @abstractmethod
    def load(self, stream: str) -> StreamPosition | None:
        """Return the last saved position, or None for a stream that this store has never seen."""

    @abstractmethod
    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        """Store the position before returning, whole or not at all."""

    @abstractmethod
    def list_streams(self) -> list[str]:
        """Return the names of all streams that have a position here, in order."""

    @abstractmethod
    def change(self, stream: str, change: Change) -> None:
        """Replace `before` with `after` and record it; raise OFFSETS_MOVED if the stream is elsewhere."""

    @abstractmethod
    def list_changes(self, stream: str) -> list[Change]:
        """Return the changes made by hand, the oldest first."""

    def check_change(self, stream: str, change: Change) -> None:
        """Raise what `change` would raise; change nothing."""
        refuse_moved(stream, self.load(stream), change)

    #: Whether results are kept here with the offsets, so that a move may also delete rows.
    keeps_results: ClassVar[bool] = False

    def move(self, stream: str, change: Change, rows: RowRequest = KEEP_ROWS) -> Moved:
        """Make the change and return what it did to rows; `rows` is only for stores with `keeps_results`."""
        self.change(stream, change)
        return Moved({})

    def preview(self, stream: str, change: Change, rows: RowRequest = KEEP_ROWS) -> Moved:
        """Return what `move` would do, or raise what it would raise; change nothing."""
        self.check_change(stream, change)
        return Moved({})

    def list_warnings(self, stream: str) -> list[str]:
        """Return warnings for a person who is about to move the stream."""
        return []

    def load_batch(self, stream: str, batch: int) -> StreamPosition:
        """Return the position where this batch ended, which most stores do not keep."""
        raise OptionError(
            "NO_BATCHES_KEPT",
            f"Only the last position is kept in {self}, not the ends of batches.",
            hint="Only a Spark checkpoint has them; here, move by time, offset or number of records.",
            facts={"stream": stream, "batch": batch},
        )

    def suggest_place(self, stream: str | None = None) -> str:
        """Return a sentence that names a place beside this one that was probably meant, or "" if none was.

        The store looks there first, for this stream if it can tell, or for any if none is given.
        """
        return ""

    def find_file_sink(self) -> Path | None:
        """Return the folder of the file sink that owns these offsets, or None if no file sink does."""
        return None

    #: What a list of the streams here writes before each name.
    label: ClassVar[str] = ""
    #: The database whose locks a save may wait for, or None if there is none.
    place: Place | None = None
    #: Whether `save_async` returns before the position is stored. Only then may a program commit that way.
    is_async: ClassVar[bool] = False

    def save_async(self, stream: str, position: StreamPosition, callback: SaveCallback | None = None) -> None:
        """Store the position soon, in order; `callback` gets this position and the error, or None."""
        self.save(stream, position)
        if callback is not None:
            callback(position, None)

    def flush(self, timeout_s: float) -> bool:
        """Send what `save_async` has left waiting, and return False if something is still not stored."""
        return True

    def renew(self, stream: str, position: StreamPosition) -> None:
        """Keep the offsets of an idle stream from expiring; `position` is what it knows to be stored."""
        return

    def close(self) -> None:
        """Release the connections. A closed store is not used again."""
        return


def demand_offset_store(store: OffsetStore) -> OffsetStore:
    """Return the store; refuse an object that lacks a part of the contract."""
    if isinstance(store, OffsetStore):
        return store
    raise OptionError(
        "OFFSET_STORE_INVALID",
        f"A {type(store).__name__} cannot keep offsets: it lacks a part of the contract.",
        hint="Let its class inherit from `penstock.direct.OffsetStore`, which has defaults for what not "
        "every store can do.",
    )


def check_stream_name(stream: str) -> str:
    """Return the name; refuse one that cannot be a file name, key and path, such as an empty one."""
    if stream and stream.isprintable() and stream == stream.strip() and len(stream) <= _LONGEST_NAME:
        return stream
    raise OptionError(
        "STREAM_NAME_INVALID",
        f"A stream cannot be named {stream!r}.",
        hint=f"Give it a name of 1 to {_LONGEST_NAME} printable characters, without spaces at its ends.",
        facts={"stream": stream},
    )


def unknown_stream(
    where: object, stream: str, known: Sequence[str], suggestion: str = ""
) -> OffsetStoreError:
    """Return the error for a place without a stream of that name; it names the others, in case of a typo."""
    text = str(where)
    return OffsetStoreError(
        "STREAM_NOT_FOUND",
        f"{text[:1].upper()}{text[1:]} has no stream {stream}.",
        hint=(f"It has: {', '.join(known[:20])}." if known else "It has no streams at all.")
        + (f" {suggestion}" if suggestion else ""),
        facts={"stream": stream},
    )


def refuse_going_back(stream: str, before: StreamPosition | None, after: StreamPosition) -> None:
    """Refuse a position with a smaller offset, unless its topic was recreated."""
    if before is None:
        return
    for each, offset in sorted(after.offsets.items()):
        known = before.offsets.get(each)
        is_other = is_another(before.topic_ids.get(each.topic), after.topic_ids.get(each.topic))
        if known is not None and offset < known and not is_other:
            raise OffsetStoreError(
                "OFFSETS_WENT_BACK",
                f"The stream {stream} stands at {known} in {each}; {offset} would take it back.",
                hint="Another program may run the same stream: run one at a time. To go back on purpose, "
                "rewind the stream.",
                facts={"stream": stream, "partition": str(each), "stored": known, "offset": offset},
            )


def goes_back(before: StreamPosition, after: StreamPosition) -> bool:
    """Return whether a batch between these was planned to end before the stream's position.

    If so, an unclean election cut off the log there. That is reported as a loss already, and a store that
    refused it would end the stream. A partition that was gone meanwhile counts, too: a Kafka group still has
    the offset committed for it.
    """
    stood = before.stands
    return any(offset < stood.get(each, 0) for each, offset in after.offsets.items())


def refuse_moved(stream: str, stored: StreamPosition | None, change: Change) -> None:
    """Refuse a change to a position its author did not see: the stream runs, or another change was first."""
    if stored == change.before:
        return
    raise OffsetStoreError(
        "OFFSETS_MOVED",
        f"The stream {stream} is no longer where this change begins; the change was not made.",
        hint="Stop the stream, look at where it stands, and try again.",
        facts={"stream": stream},
        retriable=True,
    )


def write_change(change: Change) -> dict[str, Any]:
    """Return the change as a JSON object; its version is that of the enclosing text."""
    return {
        "atMs": change.at_ms,
        "who": change.who,
        "verb": change.verb,
        "before": None if change.before is None else write_position(change.before),
        "after": write_position(change.after),
    }


def read_change(stored: Mapping[str, Any]) -> Change:
    before = stored["before"]
    return Change(
        int(stored["atMs"]),
        str(stored["who"]),
        str(stored["verb"]),
        None if before is None else read_position(before),
        read_position(stored["after"]),
    )
