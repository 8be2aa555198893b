"""What every place that keeps a stream's offsets promises, and the one rule about going back.

Rules: a store keeps one whole position per stream, all partitions in one atomic call, so that a crash never
leaves some partitions ahead of others; a stream that was never saved is `None`, which is not the same as one
that stands nowhere; offsets of a log never go back by themselves. A writer that was only slow would otherwise
undo what its successor has done, and rows would be processed twice. Whoever means it says so.

Each store passes `tests/contract/test_offset_stores.py`.

    store.save("visits", position)
    store.load("visits")
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.stream_offsets import StreamPosition

_LONGEST_NAME = 200


@runtime_checkable
class OffsetStore(Protocol):
    """Where positions survive the program. One per driver; not for two threads at once."""

    def load(self, stream: str) -> StreamPosition | None:
        """The last position that was saved; None for a stream this store has never seen."""

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        """Keep it before this returns, whole or not at all."""

    def list_streams(self) -> list[str]:
        """The names of all streams that have a position here, in order."""

    def close(self) -> None:
        """Give back connections. A closed store is not used again."""


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
