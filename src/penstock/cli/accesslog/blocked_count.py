"""The number of entries that a run's blocklists have now, according to the database.

Rule: the live line keeps no count of its own. Bans end, orders undo them, an earlier run has left some, and
an address that may not be blocked is in no list, so a sum of this run's decisions would be wrong after a
minute. The number is read from the database instead, through the same gate as the lists, when there are new
decisions and every few seconds. Reading a list of a hundred thousand entries takes a second, so at most a
tenth of the time is spent on it.

    blocked = BlockedCount(settings)
    blocked(has_news=True)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.apps.accesslog.blocking.blocklists import read_bans
from penstock.core.errors import PenstockError
from penstock.stores.sql.connections.sql_sessions import Database, Session

if TYPE_CHECKING:
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings

_READ_EVERY_S = 5.0
#: The least rest after a count, as a multiple of the time that the count took.
_LEAST_REST = 9.0


class BlockedCount:
    """Counts the entries of the lists, no more often than it may. For one thread."""

    def __init__(
        self,
        settings: PipelineSettings,
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._place, self._clock, self._wall_us = settings.place, clock, wall_us
        self._gate = settings.gate
        self._known: int | None = None
        self._is_behind = True
        self._read_at, self._took_s = clock(), 0.0

    def __call__(self, *, has_news: bool = False) -> int | None:
        """Return how many entries the lists have now, or None while the database does not answer."""
        self._is_behind |= has_news
        rested_s = self._clock() - self._read_at
        if (self._is_behind or rested_s >= _READ_EVERY_S) and rested_s >= _LEAST_REST * self._took_s:
            begin = self._clock()
            try:
                self._known = Database(self._place).run(self.read)
                self._is_behind = False
            except PenstockError:  # the run itself says what is wrong with its database
                self._known = None
            self._read_at = self._clock()
            self._took_s = self._read_at - begin
        return self._known

    def read(self, session: Session) -> int:
        """Return how many entries a list written now would have."""
        return len(self._gate.apply(read_bans(session, now_us=self._wall_us())))
