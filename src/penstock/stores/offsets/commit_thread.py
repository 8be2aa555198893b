"""Commits to a consumer group in a thread of its own, without delaying the stream.

Rules: one thread commits, in order. Positions offered while it is busy are merged into one commit, so a slow
coordinator never gets outdated ones. A commit that failed is counted and logged, and is sent again with the
next one. A callback gets the position it was offered with, not the newest one, and the error. The last commit
of an idle stream is renewed by the same thread before it expires. Why not commit at the end of a batch: a
coordinator that does not answer would delay every batch by its timeout.

    commits = CommitThread(commit, "nightly")
    commits.offer(position, lambda position, error: ...)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeAlias, TypeVar

from penstock.core.errors import OffsetStoreError, PenstockError
from penstock.core.loggers import get_logger
from penstock.stores.offsets.renewal_schedule import RenewalSchedule

log = get_logger(__name__)

What = TypeVar("What")
#: Called in the thread that commits, so it must not wait for a commit.
Callback: TypeAlias = Callable[[What, BaseException | None], None]


class CommitThread(Generic[What]):
    """The commits to one group, made by one thread. `merge` combines an older and a newer offer; by default
    the newer replaces the older. `renew` repeats the last commit when `renewal` says so."""

    def __init__(
        self,
        commit: Callable[[What], None],
        group: str,
        merge: Callable[[What, What], What] = lambda _, newer: newer,
        *,
        renew: Callable[[What], None] | None = None,
        renewal: RenewalSchedule | None = None,
    ) -> None:
        self.done = 0
        self.failed = 0
        self._commit, self._group, self._merge = commit, group, merge
        self._renew, self._renewal = renew, renewal
        self._kept: What | None = None  # the last commit
        self._changed = threading.Condition()
        self._offered: What | None = None
        self._callbacks: list[tuple[What, Callback[What]]] = []
        self._newest: What | None = None
        self._left: What | None = None  # failed, and sent with the next
        self._busy = False
        self._closed = False
        self._has_died = False
        self._told = ""
        self._thread = self._begin()

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="penstock-group-commits", daemon=True)
        thread.start()
        return thread

    @property
    def is_settled(self) -> bool:
        """Return whether every offer is committed, on its own or merged with others."""
        with self._changed:
            return self._offered is None and not self._busy and self._left is None

    def offer(self, what: What, callback: Callback[What] | None = None) -> None:
        """Commit this soon. An offer equal to the last one, without a callback, is not committed again."""
        with self._changed:
            if not what or (what == self._newest and callback is None):
                return
            self._newest = what
            self._offered = what if self._offered is None else self._merge(self._offered, what)
            if callback is not None:
                self._callbacks.append((what, callback))
            self._wake()

    def retry(self) -> None:
        """Retry a failed commit now, even without a newer offer."""
        with self._changed:
            if self._left is not None and self._offered is None:
                self._offered = self._left
                self._wake()

    def repeat(self) -> None:
        """Commit the last offer again, because another program may have committed something older since."""
        with self._changed:
            if self._offered is None:
                self._offered = self._left if self._newest is None else self._newest
            if self._offered is not None:
                self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all offers were tried and all callbacks called; return False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._offered is None and not self._busy, timeout_s)

    def drop(self, timeout_s: float) -> None:
        """Forget what is not committed yet and wait for the commit under way: the position is about to be
        moved by hand, and no earlier offer may be committed after that."""
        with self._changed:
            self._offered = self._left = self._newest = self._kept = None
            dropped, self._callbacks = self._callbacks, []
        error = OffsetStoreError(
            "OFFSETS_MOVED",
            f"Group {self._group} was moved by hand before this commit.",
            hint="Commit nothing more for this batch, and continue from the group's current position.",
        )
        for what, callback in dropped:
            callback(what, error)
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout_s)
            self._left = self._newest = self._kept = None

    def close(self) -> None:
        """End the thread once it has nothing to do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self) -> None:
        if self._has_died:
            self._has_died, self._thread = False, self._begin()
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException:  # an unforeseen error, or one from a callback
            with self._changed:
                self._has_died = True
                # Waiting offers, and a last commit that must be renewed, need another thread.
                if self._offered is not None or self._find_wait_s() is not None:
                    self._wake()
            raise

    def _run_until_closed(self) -> None:
        while True:
            with self._changed:
                wait_s = self._find_wait_s()
                self._changed.wait_for(lambda: self._offered is not None or self._closed, wait_s)
                if self._offered is None and self._closed:
                    return
                what = self._offered
                if what is not None:
                    what = what if self._left is None else self._merge(self._left, what)
                    self._offered, self._left = None, None
                    self._busy = True
                    callbacks, self._callbacks = self._callbacks, []
            if what is None:
                self._try_again()
            else:
                self._try(what, callbacks)

    def _find_wait_s(self) -> float | None:
        """Return how long to wait for an offer before checking renewals; None means no limit."""
        if self._renewal is None or self._renew is None or self._kept is None:
            return None
        return self._renewal.find_wait_s()

    def _try_again(self) -> None:
        """Renew the last commit if that is due. Any error is logged and the renewal is retried later: an idle
        stream offers nothing new, so nothing else would start renewals again."""
        if self._renew is None or self._renewal is None:
            return
        try:
            # This may ask the brokers, so it is called without the lock.
            if not self._renewal.is_due():
                return
            with self._changed:
                # An offer made meanwhile goes first. A commit dropped meanwhile must not come back.
                stands = self._kept if self._offered is None else None
                self._busy = stands is not None
            if stands is not None:
                self._renew(stands)
                self._renewal.note_renewal()
        except Exception as error:
            self._renewal.note_failure()
            log.warning("The offsets of group %s were not renewed, and may expire: %s", self._group, error)
            if not isinstance(error, PenstockError):
                # This ends the thread. `_run` starts another, which tries again after a pause.
                raise
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _try(self, what: What, callbacks: list[tuple[What, Callback[What]]]) -> None:
        failure: BaseException | None = None
        try:
            self._commit(what)
            self._told = ""
        except PenstockError as error:
            failure = error
            # The same error is a warning only once. The count shows how often it came.
            level = logging.INFO if error.condition == self._told else logging.WARNING
            self._told = error.condition
            log.log(level, "The positions were not committed to group %s: %s", self._group, error)
        except BaseException as error:
            failure = error
            raise
        finally:
            # Call all of them, even if one raises.
            with ExitStack() as told:
                told.callback(self._settle, what, failure)
                for its_own, callback in reversed(callbacks):
                    told.callback(callback, its_own, failure)

    def _settle(self, what: What, failure: BaseException | None) -> None:
        with self._changed:
            if failure is None:
                self.done += 1
                self._kept = what
                if self._renewal is not None:
                    self._renewal.note_commit()
            else:
                self.failed += 1
                self._left = what
                if self._newest == what:
                    self._newest = None  # so that the same offer is tried again
            self._busy = False
            self._changed.notify_all()
