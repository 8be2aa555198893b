"""Offsets in this process, for tests and for jobs that start afresh each time. They end with the program."""

from __future__ import annotations

import threading

from penstock.core.offsets.offset_store_contract import (
    Change,
    OffsetStore,
    check_stream_name,
    refuse_going_back,
    refuse_moved,
)
from penstock.core.offsets.stream_position import StreamPosition


class MemoryOffsetStore(OffsetStore):
    """An offset store in memory. It keeps the position objects themselves; they are immutable."""

    def __init__(self) -> None:
        self._positions: dict[str, StreamPosition] = {}
        self._changes: dict[str, list[Change]] = {}
        self._turn = threading.Lock()

    def __str__(self) -> str:
        return "the memory of this process"

    def load(self, stream: str) -> StreamPosition | None:
        return self._positions.get(check_stream_name(stream))

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        check_stream_name(stream)
        with self._turn:
            if not may_go_back:
                refuse_going_back(stream, self._positions.get(stream), position)
            self._positions[stream] = position

    def list_streams(self) -> list[str]:
        return sorted(self._positions)

    def change(self, stream: str, change: Change) -> None:
        check_stream_name(stream)
        with self._turn:
            refuse_moved(stream, self._positions.get(stream), change)
            self._positions[stream] = change.after
            self._changes.setdefault(stream, []).append(change)

    def list_changes(self, stream: str) -> list[Change]:
        return list(self._changes.get(check_stream_name(stream), ()))
