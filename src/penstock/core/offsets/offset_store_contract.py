"""What every place that keeps a stream's offsets promises, and the one rule about going back.

Rules: a store keeps one whole position per stream, all partitions in one atomic call, so that a crash never
leaves some partitions ahead of others; a stream that was never saved is `None`, which is not the same as one
that stands nowhere; offsets of a log never go back by themselves. A writer that was only slow would otherwise
undo what its successor has done, and rows would be processed twice. Whoever means it says so.

Each store passes `tests/contract/test_offset_stores.py`.

    store.save("visits", position)
    store.load("visits")

What a person changes by hand (a rewind, say) goes through `change`: it is made only where the stream still
stands where that person saw it, and the store remembers who did it.

A store inherits from `OffsetStore`, and with it a plain form of what only some can do well: save in the
background, say beforehand whether a change would be taken, keep offsets that would expire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position

_LONGEST_NAME = 200
#: The verb of a change that a program makes itself, at its start: it goes on from there. No person did that.
SEEK = "seek"
SaveCallback: TypeAlias = Callable[[StreamPosition, BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Change:
    """What somebody did to a position by hand: when, who, by which verb, and from where to where."""

    at_ms: int
    who: str
    verb: str
    before: StreamPosition | None
    after: StreamPosition


@runtime_checkable
class OffsetStore(Protocol):
    """Where positions survive the program. One per driver; not for two threads at once.

    `str` of it is its name in a sentence, such as "the folder offsets"; what is secret does not appear.
    """

    def load(self, stream: str) -> StreamPosition | None:
        """The last position that was saved; None for a stream this store has never seen."""

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        """Keep it before this returns, whole or not at all."""

    def list_streams(self) -> list[str]:
        """The names of all streams that have a position here, in order."""

    def change(self, stream: str, change: Change) -> None:
        """Put `after` where `before` stands and remember it; OFFSETS_MOVED when it stands elsewhere."""

    def list_changes(self, stream: str) -> list[Change]:
        """What was changed by hand, the oldest first."""

    def check_change(self, stream: str, change: Change) -> None:
        """Raise what `change` would raise, and change nothing."""
        refuse_moved(stream, self.load(stream), change)

    #: Whether `save_async` returns before the position is kept. Only then may a program commit in that way.
    is_async: ClassVar[bool] = False

    def save_async(self, stream: str, position: StreamPosition, callback: SaveCallback | None = None) -> None:
        """Keep it soon, in order; `callback` gets this position and the error."""
        self.save(stream, position)
        if callback is not None:
            callback(position, None)

    def flush(self, timeout_s: float) -> bool:
        """Send what `save_async` has left waiting; False when something is still not kept."""
        return True

    def renew(self, stream: str, position: StreamPosition) -> None:
        """Keep from expiring what is stored of an idle stream; `position` is what it knows to be stored."""
        return

    def close(self) -> None:
        """Give back connections. A closed store is not used again."""
        return


def check_stream_name(stream: str) -> str:
    """Names become file names, keys and paths: not empty, printable, of bounded length."""
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
    """What is said when a place has no stream of that name; it may be a slip, so the others are named."""
    text = str(where)
    return OffsetStoreError(
        "STREAM_NOT_FOUND",
        f"{text[:1].upper()}{text[1:]} has no stream {stream}.",
        hint=(f"It has: {', '.join(known[:20])}." if known else "It has none at all.")
        + (f" {suggestion}" if suggestion else ""),
        facts={"stream": stream},
    )


def refuse_going_back(stream: str, before: StreamPosition | None, after: StreamPosition) -> None:
    """An offset may only grow, unless its topic is another one than before."""
    if before is None:
        return
    for each, offset in sorted(after.offsets.items()):
        known = before.offsets.get(each)
        then, now = before.topic_ids.get(each.topic), after.topic_ids.get(each.topic)
        is_other = then is not None and now is not None and then != now
        if known is not None and offset < known and not is_other:
            raise OffsetStoreError(
                "OFFSETS_WENT_BACK",
                f"The stream {stream} stands at {known} in {each}; {offset} would take it back.",
                hint="Another program may run the same stream: run one at a time. To go back on purpose, "
                "rewind the stream.",
                facts={"stream": stream, "partition": str(each), "stored": known, "offset": offset},
            )


def goes_back(before: StreamPosition, after: StreamPosition) -> bool:
    """Whether a batch between these was planned to end before the place where the stream stood: its log was
    cut off there, by an unclean election. Told as loss already; refused by a store, it would end the stream.
    One that was gone meanwhile counts, too: a Kafka group still has the offset it was committed at.
    """
    stood = {**before.gone, **before.offsets}
    return any(offset < stood.get(each, 0) for each, offset in after.offsets.items())


def refuse_moved(stream: str, stored: StreamPosition | None, change: Change) -> None:
    """A change is made only to what its maker has seen; otherwise the stream runs, or another was first."""
    if stored == change.before:
        return
    raise OffsetStoreError(
        "OFFSETS_MOVED",
        f"The stream {stream} does not stand any more where this change begins; it was not made.",
        hint="Stop the stream, look at where it stands, and try again.",
        facts={"stream": stream},
        retriable=True,
    )


def write_change(change: Change) -> dict[str, Any]:
    """As a JSON object; the version is that of the text around it."""
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
