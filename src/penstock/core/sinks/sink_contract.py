"""The contract of a sink that also keeps the offsets: both become durable together, or neither.

Rules: `open` makes this program the stream's only writer and returns how far the results go. `write` either
returns after results and offsets are durable, or raises and has changed nothing visible. Writing the same
batch again changes nothing. So the stream starts where the sink says, whatever another store says.

Abilities that not every sink has get a plain default here: a sink and its writer inherit from these
protocols.

    with closing(sink.open("visits")) as writer:
        writer.write(frame, before, end)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.core.errors import OptionError
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of writing one batch. `was_repeated` means that an earlier attempt had written it."""

    rows: int
    was_repeated: bool = False


@runtime_checkable
class SinkWriter(Protocol):
    """The only writer of a stream, for one thread. The methods below `close` have defaults."""

    @property
    @abstractmethod
    def position(self) -> StreamPosition | None:
        """Return how far the results go, or None if this stream has written nothing here yet."""

    @abstractmethod
    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> BatchOutcome:
        """Make one batch durable. `results` is what the user's function gave: a frame, or one per table."""

    @abstractmethod
    def close(self) -> None:
        """Release the connections. What was written stays."""

    def check_shared(self, session: Any) -> None:
        """Refuse a place that the session's executors see differently from this program."""
        return

    def check_writable(self) -> None:
        """Raise an error at once if the place takes no writes now."""
        return

    def is_written(self, before: StreamPosition, end: StreamPosition) -> bool:
        """Return whether this batch is in the results already, from an attempt that got no answer."""
        return False

    def read_state(self, table: str) -> Any:
        """Return a table of the results as of `position`, or None if this sink has no readable table."""
        return None


@runtime_checkable
class Sink(Protocol):
    """A place for results. It holds only settings, so it can be created anywhere. `move` has a default."""

    @abstractmethod
    def open(self, stream: str) -> SinkWriter:
        """Become the stream's writer and return it; an earlier writer that was only slow is now fenced."""

    def move(self, stream: str, plan: Callable[[StreamPosition], Change | None]) -> bool:
        """Make a move by hand; return False if only a writer can, or the stream has nothing here yet.

        `plan` gets the position that results go to and returns the move, or None if there is none.
        """
        return False


def demand_contract(place: Any, contract: type[Sink] | type[SinkWriter]) -> None:
    """Refuse a sink, or a sink's writer, that lacks a part of its contract."""
    if not isinstance(place, contract):
        raise OptionError(
            "SINK_INVALID",
            f"A {type(place).__name__} is not a {contract.__name__}: it lacks a part of the contract.",
            hint=f"Let its class inherit from `penstock.sinks.{contract.__name__}`, which has defaults "
            "for what not every place can do.",
        )
