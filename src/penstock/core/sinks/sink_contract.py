"""What a place for results promises when it keeps the offsets too: both become durable together, or neither.

Rules: `open` makes this program the stream's only writer and tells how far the results go; `write` either
returns after results and offsets are durable, or raises and has changed nothing that anybody can see; the
same batch written again changes nothing. So the stream starts where the sink says, whatever another store
says.

    with closing(sink.open("visits")) as writer:
        writer.write(frame, before, end)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.core.offsets.stream_position import StreamPosition


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What one batch left in the sink. `was_repeated`: it was there already, from an attempt before."""

    rows: int
    was_repeated: bool = False


class SinkWriter(Protocol):
    """One stream's only writer. For one thread."""

    @property
    def position(self) -> StreamPosition | None:
        """How far the results go; None: this stream has written nothing here yet."""

    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> BatchOutcome:
        """Make one batch durable. `results` is what the user's function gave: a frame, or one per table."""

    def close(self) -> None:
        """Give back connections. What was written stays."""


@runtime_checkable
class Sink(Protocol):
    """A place for results. Settings only, so it can be made anywhere."""

    def open(self, stream: str) -> SinkWriter:
        """Become the stream's writer; one that was only slow is fenced from here on."""
