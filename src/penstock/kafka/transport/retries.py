"""Retries what a broker refused or left unanswered, until a deadline, with growing pauses.

Rule: inside `penstock.kafka` this is the only retry loop; whoever looks at a log (`engines.reading`) asks
again with a fresh view. It warns while failures last, and its error names the last failure. Why not a loop in
each place: each had its own pauses, and none told the user why it waited.

    attempts = Attempts(deadline, "the metadata", first_pause_ms=100)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import BrokerError
from penstock.core.loggers import get_logger
from penstock.core.outages import TOLD_AFTER_S, TOLD_EVERY_S, find_patience
from penstock.kafka.transport.deadlines import Deadline

log = get_logger(__name__)
#: The least pause between two tries, whatever is set: without it a loop of failures keeps a core busy.
LEAST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 1_000


class Attempts:
    """Tries until a deadline, with growing pauses. After the deadline the loop ends: raise `given_up()` then.

    for _ in attempts:
        with attempts.forgiving():
            return ask()
    raise attempts.given_up()

    `last` is the failure to report: that of the last try that had time left.
    """

    def __init__(
        self,
        deadline: Deadline,
        waiting_for: str,
        first_pause_ms: int,
        *,
        least_pause_ms: int = LEAST_PAUSE_MS,
        longest_pause_ms: int = _LONGEST_PAUSE_MS,
    ) -> None:
        self.waiting_for = waiting_for
        self.last: BrokerError | None = None
        self._first_pause_ms = max(first_pause_ms, least_pause_ms)
        self._longest_pause_ms = longest_pause_ms
        self.begin_again(deadline)

    def begin_again(self, deadline: Deadline) -> None:
        """Start again with this deadline, because a try has made progress."""
        self.deadline = deadline
        self._pause_ms = self._first_pause_ms
        self._began_at = time.monotonic()
        self._told_at: float | None = None

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            if number:
                self.deadline.pause(self._pause_ms)
                self._pause_ms = min(self._pause_ms * 2, self._longest_pause_ms)
            if self.deadline.expired:
                return
            yield number

    @contextmanager
    def forgiving(self) -> Iterator[None]:
        """Remember a failure that may pass and go on after the block; let any other through."""
        try:
            yield
        except BrokerError as error:
            self.forgive(error)

    def forgive(self, error: BrokerError) -> None:
        """Remember a failure that may pass; raise any other."""
        if not error.retriable:
            raise error
        log.info("Will try again: %s", error)
        self._tell(error)
        # The very last failure often says only "no time left"; the one before it says why.
        if self.last is None or not self.deadline.expired:
            self.last = error

    def _tell(self, error: BrokerError) -> None:
        """Warn from time to time while failures last, so that the user can see why nothing happens.

        The first warning comes after the time of a leader election.
        """
        now = time.monotonic()
        waited_s = now - self._began_at
        due_at = self._began_at + TOLD_AFTER_S if self._told_at is None else self._told_at + TOLD_EVERY_S
        if now < due_at or self.deadline.expired:
            return
        self._told_at = now
        patience = find_patience()
        log.warning(
            "For %.0f s no success with %s; trying for %.0f s more (%s).%s The last failure was: %s",
            waited_s,
            self.waiting_for,
            self.deadline.remaining_s(),
            self.deadline.name,
            "" if patience is None else f" {patience}",
            error,
        )

    def given_up(self) -> BrokerError:
        """Return the error of a deadline that has passed, including the last failure."""
        error = self.deadline.timeout_error(self.waiting_for)
        if self.last is None:
            return error
        error = BrokerError(
            error.condition,
            f"{error.what} The last failure was: {self.last}",
            hint=error.hint if not error.retriable else "",
            facts={**error.facts, "last_condition": self.last.condition},
            retriable=error.retriable,
        )
        error.__cause__ = self.last
        return error
