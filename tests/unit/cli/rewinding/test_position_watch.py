"""A stream's own progress is distinguished from what a person does to it, whenever that person acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import why
from penstock.cli.rewinding.position_watch import PositionWatch
from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import SEEK, Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.offsets import file_store
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.stores.sql.ledger import writer_rows

ONE = TopicPartition("t", 0)


def at(offset: int) -> StreamPosition:
    return StreamPosition({ONE: offset})


class Busy(MemoryOffsetStore):
    """A store in which somebody acts right after a position or the changes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.after_load: list[Callable[[], object]] = []
        self.after_listing: list[Callable[[], object]] = []
        self.save("s", at(50))

    def load(self, stream: str) -> StreamPosition | None:
        found = super().load(stream)
        if self.after_load:
            self.after_load.pop(0)()
        return found

    def list_changes(self, stream: str) -> list[Change]:
        found = super().list_changes(stream)
        if self.after_listing:
            self.after_listing.pop(0)()
        return found

    def put(self, before: int, after: int) -> None:
        made = Change(1_000 + before, "ann", "rewind", at(before), at(after))
        MemoryOffsetStore.change(self, "s", made)


@pytest.mark.parametrize("moment", ["after_load", "after_listing"])
@pytest.mark.parametrize("is_first_look", [True, False])
def test_a_rewind_at_any_moment_of_a_look_is_no_progress(moment: str, is_first_look: bool) -> None:
    """It may happen between the reading of the position and of the changes, in either order."""
    store = Busy()
    acts: list[Callable[[], object]] = getattr(store, moment)
    if is_first_look:
        acts.append(lambda: store.put(50, 10))
    watch = PositionWatch(store, "s")
    if not is_first_look:
        acts.append(lambda: store.put(50, 10))
    looks = []
    for _ in range(2):
        looks.append(watch.look_again())
        assert not watch.has_moved
    assert watch.now == at(10)
    assert looks == [not is_first_look, False]
    store.save("s", at(11))
    watch.look_again()
    assert watch.has_moved


def test_several_changes_one_after_another_are_all_waited_for() -> None:
    store = Busy()
    watch = PositionWatch(store, "s")
    store.after_load += [lambda: store.put(50, 40), lambda: store.put(40, 30), lambda: store.put(30, 20)]
    assert watch.look_again()
    assert (watch.has_moved, watch.now) == (False, at(20))


def test_what_a_program_stores_after_a_change_is_progress() -> None:
    store = Busy()
    watch = PositionWatch(store, "s")
    store.after_load.append(lambda: (store.put(50, 10), store.save("s", at(15))))
    assert watch.look_again()
    assert watch.has_moved


def test_a_change_that_is_noted_and_not_made_yet_is_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files get the note first and then the position; we may look in between."""
    store = FileOffsetStore(tmp_path)
    store.save("s", at(50))
    early = PositionWatch(store, "s")
    between: list[PositionWatch] = []
    replace = file_store._replace

    def look_then_replace(*arguments: Any) -> None:
        early.look_again()
        between.append(PositionWatch(store, "s"))
        replace(*arguments)

    monkeypatch.setattr(file_store, "_replace", look_then_replace)
    store.change("s", Change(1_000, "ann", "rewind", at(50), at(10)))
    monkeypatch.undo()
    for watch in (early, *between):
        assert not watch.has_moved
        assert watch.look_again()
        assert (watch.has_moved, watch.now) == (False, at(10))
    store.save("s", at(12))
    assert not early.look_again()
    assert early.has_moved


def test_a_stream_that_stands_again_where_it_was_once_moved_from_is_seen_to_move() -> None:
    """That change was made long ago, and does not hide progress in another partition."""
    store = Busy()
    store.put(50, 10)
    two = TopicPartition("t", 1)
    store.save("s", StreamPosition({ONE: 50, two: 0}))
    watch = PositionWatch(store, "s")
    assert not watch.look_again()
    assert not watch.has_moved
    store.save("s", StreamPosition({ONE: 50, two: 1}))
    assert not watch.look_again()
    assert watch.has_moved


def test_a_note_that_a_commit_has_written_over_is_no_new_change() -> None:
    """A Kafka group keeps notes beside offsets, and the next commit of a partition drops its own note."""
    store = Busy()
    store.put(50, 10)
    watch = PositionWatch(store, "s")
    store._changes["s"] = []
    store.save("s", at(20))
    assert not watch.look_again()
    assert watch.has_moved


@pytest.mark.parametrize(("condition", "is_hidden"), [("DATABASE_REFUSED", True), ("DATABASE_FAILED", False)])
def test_a_failing_disk_is_not_told_as_a_missing_right(
    monkeypatch: pytest.MonkeyPatch, condition: str, is_hidden: bool
) -> None:
    def fail(*_: object) -> list[Change]:
        raise OffsetStoreError(condition, "No.", hint="Look.")

    store = Busy()
    monkeypatch.setattr(store, "list_changes", fail)
    monkeypatch.setattr(writer_rows, "find_hand_move", fail)
    looks: list[Callable[[], object]] = [
        lambda: why._find_hand(store, None, "s", at(50)),
        lambda: why._find_hand(store, parse_place("own.db"), "s", at(50)),
    ]
    for look in looks:
        if is_hidden:
            assert look() == (None, False)
        else:
            with pytest.raises(OffsetStoreError, match="DATABASE_FAILED"):
                look()
    if is_hidden:
        assert PositionWatch(store, "s").now == at(50)
    else:
        with pytest.raises(OffsetStoreError, match="DATABASE_FAILED"):
            PositionWatch(store, "s")


def test_a_programs_own_seek_is_no_move_by_hand() -> None:
    store = Busy()
    store.change("s", Change(1_000, "host/7", SEEK, at(50), at(10)))
    assert why._find_hand(store, None, "s", at(10)) == (None, True)
