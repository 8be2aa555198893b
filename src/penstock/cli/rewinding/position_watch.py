"""Watches whether a stream's stored position moves on its own, while users may move it by hand.

Rule: a move by hand is never progress. Position and changes are read separately, and a rewind may happen in
between, so the changes are read before the position and after it, until both readings agree. Why not the
newest change alone: a program that commits to a Kafka group drops the note beside its offset, and an older
change would look like a new one. A file gets the note before the position, so a change that is noted but not
yet made does not count until the position follows.

    watch = PositionWatch(store, "visits")
    watch.look_again()
    watch.has_moved
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.offset_store_contract import Change, OffsetStore
from penstock.core.offsets.stream_position import StreamPosition

#: How often at most a position is read again because of changes. Nobody makes so many without a pause.
_MOST_READINGS = 20
_Mark: TypeAlias = tuple[int, str, str]


class PositionWatch:
    """A stream's position at first (`stood`), and at the last look (`now`)."""

    def __init__(self, store: OffsetStore, stream: str) -> None:
        self._store = store
        self._stream = stream
        self.stood, changes = self._read()
        self.now = self._before = self.stood
        self._noted = _mark(changes)
        if changes and _is_yet_to_be_made(changes[-1], self.stood):
            self._noted -= _mark(changes[-1:])

    @property
    def has_moved(self) -> bool:
        """Return whether it has moved on its own since the first look, or since the last move by hand."""
        return self.now.offsets != self._before.offsets

    def look_again(self) -> bool:
        """Read its position again; return whether it was moved by hand since the last look."""
        position, changes = self._read()
        self.now = position
        new = [each for each in changes if not _mark([each]) <= self._noted]
        if not new or _is_yet_to_be_made(new[-1], position):
            return False
        self._noted |= _mark(new)
        self._before = replace(position, offsets={**position.offsets, **new[-1].after.offsets})
        return True

    def _read(self) -> tuple[StreamPosition, list[Change]]:
        """Return a position, and the changes made up to then."""
        later = list_visible_changes(self._store, self._stream) or []
        for _ in range(_MOST_READINGS):
            changes, position = later, self._demand()
            later = list_visible_changes(self._store, self._stream) or []
            if _mark(later) <= _mark(changes):
                break
        return position, later

    def _demand(self) -> StreamPosition:
        position = self._store.load(self._stream)
        if position is not None:
            return position
        raise OffsetStoreError(
            "STREAM_NOT_FOUND",
            f"There are no offsets of a stream {self._stream}: it has never stored any.",
            hint="Check the name and the place (`penstock offsets show`), and that the stream was ever "
            "started.",
            facts={"stream": self._stream},
        )


def list_visible_changes(store: OffsetStore, stream: str) -> list[Change] | None:
    """Return the changes by hand, the oldest first; None where this user may not see them."""
    try:
        return store.list_changes(stream)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_REFUSED":
            raise
        return None  # we may read the position, but nothing else


def _mark(changes: Iterable[Change]) -> frozenset[_Mark]:
    """Return what identifies these changes.

    Their targets are not part of it: a Kafka group forgets that of each partition with its next commit.
    """
    return frozenset((each.at_ms, each.who, each.verb) for each in changes)


def _is_yet_to_be_made(change: Change, position: StreamPosition) -> bool:
    """Return whether the stream is still where it was before the change."""
    if change.before is None or change.before.offsets == change.after.offsets:
        return False
    return all(position.offsets.get(each) == offset for each, offset in change.before.offsets.items())
