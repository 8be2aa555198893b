"""Decides when the offsets of an idle stream are committed again, so that its group does not lose them.

Rule: renew after a quarter of the time that the brokers keep an offset, and at least daily. If they do not
say how long they keep it, renew every six hours (a quarter of a day, which was Kafka's default before 2.0).
The age of an earlier program's commit is not known, so the first renewal is due at once. A failed renewal is
repeated after a quarter of the period. The brokers are asked for their setting when nothing has been
committed for ten seconds: a stream that commits more often needs no renewal, and never waits for that answer.

    renewal = RenewalSchedule(lambda: find_retention_ms(settings, "nightly", timeout_ms=30_000))
    if renewal.is_due(): ...
"""

from __future__ import annotations

import time
from collections.abc import Callable

_DAY_S = 86_400.0
#: The period where the brokers do not say how long they keep an offset.
BLIND_PERIOD_S = _DAY_S / 4
#: The brokers are asked after this long without a commit. They keep an offset for a minute at least, so
#: nothing is due within fifteen seconds.
ASK_AFTER_S = 10.0
_SHARE = 4


def choose_period_s(retention_ms: int | None) -> float:
    """Return the seconds from one commit to the next."""
    if retention_ms is None:
        return BLIND_PERIOD_S
    return min(_DAY_S, retention_ms / 1000 / _SHARE)


class RenewalSchedule:
    """The renewals of one group, used from one thread at a time. `ask_retention_ms` asks the brokers: once,
    and again after each renewal. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        ask_retention_ms: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        *,
        ask_after_s: float = ASK_AFTER_S,
    ) -> None:
        self._ask, self._clock, self._ask_after_s = ask_retention_ms, clock, ask_after_s
        self._period_s: float | None = None
        self._since: float | None = None
        self._pause_s: float | None = None

    def is_due(self) -> bool:
        """Return whether a renewal is due. May ask the brokers, but only once `find_wait_s` has reached 0."""
        if self.find_wait_s() > 0:
            return False
        if self._since is not None and self._pause_s is None and self._period_s is None:
            self._period_s = choose_period_s(self._ask())
        return self.find_wait_s() <= 0

    def find_wait_s(self) -> float:
        """Return the seconds until `is_due` must be called again, 0 if that is now. Asks no broker."""
        if self._since is None:
            return 0.0
        known = (each for each in (self._pause_s, self._period_s) if each is not None)
        return max(0.0, self._since + next(known, self._ask_after_s) - self._clock())

    def note_commit(self) -> None:
        """Note that the offsets were committed just now, for whatever reason."""
        self._since, self._pause_s = self._clock(), None

    def note_renewal(self) -> None:
        """Note that a renewal was committed just now: the brokers are asked for their setting again."""
        self.note_commit()
        self._period_s = None

    def note_failure(self) -> None:
        """Note that a renewal failed: the next try comes sooner than after a whole period."""
        period = BLIND_PERIOD_S if self._period_s is None else self._period_s
        self._since, self._pause_s = self._clock(), period / _SHARE
