"""Commits of finished positions to a consumer group, beside the query and never in its way.

Rule: a thread commits the newest position it was offered; what it could not commit is counted and logged,
and the query goes on, for it never reads these offsets back. Why not commit where Spark tells of a finished
batch: a group coordinator that does not answer would hold up every batch by its timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.core.errors import PenstockError
from penstock.core.stream_offsets import Offsets

log = logging.getLogger(__name__)


class GroupCommits:
    """Offers are taken in order; one that is overtaken by a newer is left out."""

    def __init__(self, commit: Callable[[Offsets], None], group: str) -> None:
        self.done = 0
        self.failed = 0
        self._commit, self._group = commit, group
        self._changed = threading.Condition()
        self._offered: Offsets | None = None
        self._newest: Offsets | None = None
        self._busy = False
        self._told = ""
        self._thread = self._begin()

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="penstock-group-commits", daemon=True)
        thread.start()
        return thread

    def offer(self, offsets: Offsets) -> None:
        """Commit these soon. The same as before is not committed again."""
        with self._changed:
            if offsets and offsets != self._newest:
                self._newest = self._offered = offsets
                if not self._thread.is_alive():  # an error that nobody foresaw ended it
                    self._thread = self._begin()
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to commit; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._offered is None and not self._busy, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._offered is not None)
                offsets, self._offered, self._busy = self._offered, None, True
            done = False
            try:
                assert offsets is not None
                self._commit(offsets)
                done = True
                self._told = ""
            except PenstockError as error:
                level = logging.INFO if error.condition == self._told else logging.WARNING
                self._told = error.condition  # the same again is no news; the count tells how often
                log.log(level, "The positions were not committed to group %s: %s", self._group, error)
            finally:
                with self._changed:
                    self.done, self.failed = self.done + done, self.failed + (not done)
                    if not done and self._newest == offsets:
                        self._newest = None  # offered again, it is tried again
                    self._busy = False
                    self._changed.notify_all()
