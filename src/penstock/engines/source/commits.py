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
        threading.Thread(target=self._run, name="penstock-group-commits", daemon=True).start()

    def offer(self, offsets: Offsets) -> None:
        """Commit these soon. The same as before is not committed again."""
        with self._changed:
            if offsets and offsets != self._newest:
                self._newest = self._offered = offsets
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
            try:
                assert offsets is not None
                self._commit(offsets)
            except PenstockError as error:
                self.failed += 1
                log.warning("The positions were not committed to group %s: %s", self._group, error)
            else:
                self.done += 1
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
