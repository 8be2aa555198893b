"""What a place for results promises when it keeps the offsets too: both become durable together, or neither.

Rules: `open` makes this program the stream's only writer and tells how far the results go; `write` either
returns after results and offsets are durable, or raises and has changed nothing that anybody can see; the
same batch written again changes nothing. So the stream starts where the sink says, whatever another store
says.

What not every place can do has a plain default here: a sink and its writer inherit from these protocols.

    with closing(sink.open("visits")) as writer:
        writer.write(frame, before, end)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What one batch left in the sink. `was_repeated`: it was there already, from an attempt before."""

    rows: int
    was_repeated: bool = False


class SinkWriter(Protocol):
    """One stream's only writer. For one thread. The methods below `close` may be left as they are."""

    @property
    def position(self) -> StreamPosition | None:
        """How far the results go; None: this stream has written nothing here yet."""

    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> BatchOutcome:
        """Make one batch durable. `results` is what the user's function gave: a frame, or one per table."""

    def close(self) -> None:
        """Give back connections. What was written stays."""

    def check_shared(self, session: Any) -> None:
        """Refuse a place that the session's executors see otherwise than this program does."""
        return

    def check_writable(self) -> None:
        """Raise an error if the place takes no writes now. It is not waited for."""
        return

    def is_written(self, before: StreamPosition, end: StreamPosition) -> bool:
        """Return whether this very batch is in the results, from an attempt before that nobody answered."""
        return False

    def read_state(self, table: str) -> Any:
        """Return a table of the results as of `position`; None: this sink has none that could be read."""
        return None


class Sink(Protocol):
    """A place for results. Settings only, so it can be made anywhere. `move` may be left as it is."""

    def open(self, stream: str) -> SinkWriter:
        """Become the stream's writer; one that was only slow is fenced from here on."""

    def move(self, stream: str, plan: Callable[[StreamPosition], Change | None]) -> bool:
        """Carry out a move by hand; return False if only a writer can, or nothing of the stream is here yet.

        `plan` gets the position that results go to and returns the move, or None if there is none to make.
        """
        return False
