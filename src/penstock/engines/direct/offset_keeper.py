"""Stores a running stream's offsets, and remembers what is known to be stored.

Rule: `committed` changes only after a store has confirmed. An offset store beside a sink is only for lag
tools: it is written after the sink, and where the two differ the sink's position counts. A position without
partitions is not stored: no group or sink can keep one, and read back it would look like a lost position.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError
from penstock.core.loggers import get_logger
from penstock.core.model import OffsetRange
from penstock.core.offsets.offset_store_contract import OffsetStore
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.direct.direct_batch import CommitCallback

log = get_logger(__name__)


class Keeper:
    """The keeper of one run's offsets. Without a store it keeps nothing, and `committed` stays None.
    `is_owner` says that the store was opened for this run and is closed with it."""

    def __init__(self, store: OffsetStore | None, stream: str, *, is_owner: bool = False) -> None:
        self.committed: StreamPosition | None = None
        self._store, self._stream, self._is_owner = store, stream, is_owner

    @property
    def has_store(self) -> bool:
        return self._store is not None

    @property
    def is_async(self) -> bool:
        return self._store is not None and self._store.is_async

    def load(self) -> StreamPosition | None:
        return None if self._store is None else self._store.load(self._stream)

    def keep(self, position: StreamPosition, *, may_go_back: bool = False) -> None:
        if self._store is not None and _stands_somewhere(position):
            self._store.save(self._stream, position, may_go_back=may_go_back)
            self.committed = position

    def keep_later(
        self,
        position: StreamPosition,
        ranges: tuple[OffsetRange, ...],
        callback: CommitCallback | None,
    ) -> None:
        """Store in the background. The callback gets this batch's position, never a newer one's."""

        def settle(stored: StreamPosition, error: BaseException | None) -> None:
            if error is None:
                self.committed = stored
            if callback is not None:
                callback(ranges, error)

        assert self._store is not None
        if not _stands_somewhere(position):
            settle(position, None)
            return
        self._store.save_async(self._stream, position, settle)

    def keep_beside(self, position: StreamPosition) -> None:
        """Store a position that the sink already has. If the store beside the sink fails, only log that."""
        self.committed = position
        if self._store is not None and _stands_somewhere(position):
            try:
                self._store.save(self._stream, position, may_go_back=True)
            except PenstockError as error:
                log.warning(
                    "The results and their offsets are stored, but the store beside them failed: %s", error
                )

    def renew(self) -> None:
        """Let a store whose offsets expire (a Kafka group) renew those of a stream that has nothing to do."""
        if self._store is not None and self.committed is not None:
            self._store.renew(self._stream, self.committed)

    def close(self) -> None:
        if self._store is not None and self._is_owner:
            self._store.close()

    def flush(self, timeout_s: float) -> None:
        """Let the last asynchronous commit finish before the stream ends. A store that is about to be closed
        does that itself, and waiting here too could report a commit as lost that the store still makes."""
        if self._store is not None and not self._is_owner and not self._store.flush(timeout_s):
            log.warning(
                "The last position of %s is not committed after %g s. Unless its store still commits it, its "
                "batch is read again.",
                self._stream,
                timeout_s,
            )


def _stands_somewhere(position: StreamPosition) -> bool:
    return bool(position.offsets or position.gone)
