"""The first lines of a run, gathered over its batches until a look at them has seen enough.

Rule: decisions wait until then, because a list that names a load balancer cannot be taken back. They wait for
a minute at most, because a site with few lines must be defended, too. The look then judges the lines that
there are, before anything is decided, and goes on after that.

    first = FirstLines(look)
    first.show(batch.id, lambda: read_ends(client, batch.ranges))
    first.must_wait(is_waited_for=True)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

#: How long decisions wait for the look, from the first line on.
LONGEST_HOLD_S = 60.0


class FormatLook(Protocol):
    """A look at all lines that were gathered so far; returns whether it has seen enough.

    `is_due` says that decisions wait no longer, so these lines are judged even if they are few.
    """

    def __call__(self, values: pa.Array, /, *, is_due: bool = False) -> bool: ...


class FirstLines:
    """Gathers lines for one look. Once `is_seen`, the look has seen enough and nothing more is gathered."""

    def __init__(
        self, look: FormatLook, hold_s: float = LONGEST_HOLD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_seen = False
        self._look, self._hold_s, self._clock = look, hold_s, clock
        self._samples: dict[int, pa.Array] = {}
        self._since: float | None = None
        self._is_due = False

    def show(self, batch: int, read: Callable[[], pa.Array]) -> None:
        """Show the look all gathered lines, including this batch's. A batch that is retried counts once.

        Errors of the look are raised.
        """
        if self.is_seen:
            return
        values = read()
        if not len(values):
            return
        self._samples[batch] = values
        self._ask()

    def must_wait(self, *, is_waited_for: bool) -> bool:
        """Return whether decisions must wait. `is_waited_for` says that there are lines to decide about.

        When they no longer wait, the look is asked once more. Its errors are raised.
        """
        if self.is_seen or not is_waited_for:
            return False
        if self._since is None:
            self._since = self._clock()
        if self._clock() - self._since < self._hold_s:
            return True
        if not self._is_due:
            self._is_due = True
            self._ask(is_due=True)
        return False

    def _ask(self, *, is_due: bool = False) -> None:
        gathered = list(self._samples.values())
        values = pa.concat_arrays(gathered) if gathered else pa.array([], pa.binary())
        self.is_seen = self._look(values, is_due=True) if is_due else self._look(values)
        if self.is_seen:
            self._samples.clear()
