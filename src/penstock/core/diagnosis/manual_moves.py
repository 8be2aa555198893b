"""A move of a stream by hand, as `penstock why` reports it: who made it, when, and what it means now.

Rule: the report says only what is known. A sink's ledger knows whether a program has taken over the stream
since; no other store does, and from outside it cannot be seen whether a program runs, or since when. So the
advice covers both cases.

>>> HandMove("ann@desk", "rewind", 1_000, fences=True).describe()
'ann@desk moved the stream by hand (`rewind` at 1970-01-01 00:00:01 UTC), and no program has taken it since.'
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.prose import write_moment


@dataclass(frozen=True, slots=True)
class HandMove:
    """A move by hand: by whom, how and when; the stream is still where it was put.

    `fences` means that the move is in a sink's ledger, no program has taken over the stream since, and no
    earlier one may publish. In other stores a running program does not see the move, and it is unknown
    whether one runs.
    """

    who: str
    verb: str
    at_ms: int
    fences: bool = False

    def describe(self) -> str:
        when = write_moment(self.at_ms)
        since = "no program has taken it since" if self.fences else "it is still where that put it"
        return f"{self.who} moved the stream by hand (`{self.verb}` at {when} UTC), and {since}."

    @property
    def advice(self) -> str:
        if self.fences:
            return (
                "Start the stream: it goes on from there. A program from before the move that still runs "
                "does not know of it: it ends with WRITER_FENCED at its next batch, publishes nothing more, "
                "and must be started again."
            )
        return (
            "Whether a program runs, and since when, cannot be seen from here. If one was started before the "
            "move, it does not know of it: it has its own position in memory, and stores that over this one, "
            "or is refused if that lies behind (OFFSETS_WENT_BACK). Stop that program, see where the stream "
            "stands (`penstock offsets show`), and start it again. A program that was started later has "
            "begun there, and the move is not what holds it up."
        )
