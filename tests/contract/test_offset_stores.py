"""What every offset store promises. A new store is one more world in `offset_worlds`, with its limits."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, OffsetStore
from penstock.core.offsets.stream_position import StreamPosition, write_position
from tests.contract.offset_worlds import ONE, T0, T1, U0, WORLDS, OffsetWorld, T, U, open_world, params


@pytest.fixture(params=params(list(WORLDS)))
def world(request: pytest.FixtureRequest) -> Iterator[OffsetWorld]:
    with open_world(request) as opened:
        yield opened


@pytest.fixture(params=params([name for name in WORLDS if name != "memory"]))
def durable(request: pytest.FixtureRequest) -> Iterator[OffsetWorld]:
    with open_world(request) as opened:
        yield opened


def test_what_was_saved_is_loaded_whole_by_the_next_program(world: OffsetWorld) -> None:
    """C8, C17, C25: offsets, topic ids, leader epochs, starts and what is gone."""
    whole = StreamPosition(
        {T0: 5, T1: 7, U0: 2**63 - 1},
        {T: b"\x01" * 16, U: b"\xff" * 16},
        {T0: 0, U0: 4},
        starts={T0: 0, T1: 7},
    )
    if world.limits.keeps_gone:
        ids = {**whole.topic_ids, "v": b"\x03" * 16}
        whole = replace(whole, topic_ids=ids, gone={TopicPartition("v", 3): 11})
    store = world.open()
    assert isinstance(store, OffsetStore)
    assert store.load("s") is None
    store.save("s", whole)
    store.close()
    assert world.open().load("s") == whole


def test_a_stream_that_stands_nowhere_is_not_one_that_was_never_seen(world: OffsetWorld) -> None:
    """A known stream stays known, so that the loss of its offsets can be reported."""
    world.open().save("s", StreamPosition({}))
    can = world.limits.keeps_empty_positions
    assert world.open().load("s") == (StreamPosition({}) if can else None)
    assert world.open().load("other") is None
    assert world.open().list_streams() == (["s"] if can else [])


def test_streams_are_apart_whatever_their_names(world: OffsetWorld) -> None:
    """Names that would collide, or lead elsewhere, as file names, keys or paths."""
    names = ["a", "A", "a.b", "a/b", "../a", "a%2Fb", "ä", "á", "a'; --", ".", "..", "好" * 200, "a" * 200]
    store = world.open()
    for number, name in enumerate(names):
        store.save(name, StreamPosition({T0: number}))
    again = world.open()
    assert [again.load(name) for name in names] == [StreamPosition({T0: n}) for n in range(len(names))]
    assert again.list_streams() == sorted(names)
    for name in ("", " a", "a ", "a\n", "a" * 201, "a\x00b", "\ud800"):
        with pytest.raises(OptionError, match="STREAM_NAME_INVALID"):
            store.save(name, ONE)
        with pytest.raises(OptionError, match="STREAM_NAME_INVALID"):
            store.load(name)


def test_applications_that_share_a_place_do_not_meet(world: OffsetWorld) -> None:
    """A3: each store has its own namespace."""
    world.open("one").save("s", ONE)
    assert world.open("two").load("s") is None
    world.open("two").save("s", StreamPosition({T0: 1}))
    assert world.open("one").load("s") == ONE
    assert world.open("two").list_streams() == ["s"]


def test_all_partitions_change_together(world: OffsetWorld) -> None:
    """C21: one call changes all partitions; one that is no longer in it is removed from the store too."""
    many = {TopicPartition(T, number): number for number in range(500)}
    store = world.open()
    store.save("s", StreamPosition(many, {T: b"\x01" * 16}, dict.fromkeys(many, 1)))
    assert store.load("s") == StreamPosition(many, {T: b"\x01" * 16}, dict.fromkeys(many, 1))
    after = StreamPosition({T0: 6, U0: 1}, {T: b"\x01" * 16, U: b"\x02" * 16})
    store.save("s", after)
    if world.limits.forgets_partitions:
        assert world.open().load("s") == after
    else:
        loaded = world.open().load("s")
        assert loaded is not None
        assert loaded.offsets == {**many, **after.offsets}


def test_an_offset_does_not_go_back_by_itself(world: OffsetWorld) -> None:
    """T33: a writer that was only slow does not undo its successor's work; nothing it saves is kept."""
    store = world.open()
    store.save("s", ONE)
    late = StreamPosition({T0: 6, T1: 6}, {T: b"\x01" * 16})
    with pytest.raises(OffsetStoreError, match=rf"OFFSETS_WENT_BACK.*stands at 7 in {T}-1; 6"):
        store.save("s", late)
    assert world.open().load("s") == ONE
    store.save("s", late, may_go_back=True)
    assert world.open().load("s") == late


def test_a_topic_that_was_made_anew_begins_at_its_beginning(world: OffsetWorld) -> None:
    store = world.open()
    store.save("s", ONE)
    anew = StreamPosition({T0: 0, T1: 0}, {T: b"\x09" * 16})
    store.save("s", anew)
    assert world.open().load("s") == anew


def test_two_writers_at_once_never_mix_and_never_go_back(world: OffsetWorld) -> None:
    """T33, C21: each position that anyone sees was saved whole by one of them; the highest one stays."""
    partitions = [TopicPartition(T, number) for number in range(20)]
    refused: list[int] = []
    wrong: list[object] = []

    def write(first: int) -> None:
        store = world.open()
        for offset in range(first, 30, 2):
            try:
                store.save("s", StreamPosition(dict.fromkeys(partitions, offset)))
            except OffsetStoreError as error:
                refused.append(offset) if error.condition == "OFFSETS_WENT_BACK" else wrong.append(error)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for writer in writers:
        writer.start()
    store, seen = world.open(), [-1]
    while any(writer.is_alive() for writer in writers):
        position = store.load("s")
        if position is not None:
            assert set(position.offsets) == set(partitions)
            (offset,) = set(position.offsets.values())
            seen.append(offset)
    for writer in writers:
        writer.join(60)
    assert not wrong
    if world.limits.compares_and_sets:
        assert seen == sorted(seen)
        assert store.load("s") == StreamPosition(dict.fromkeys(partitions, 29))
        assert 29 not in refused


def test_who_saves_between_anothers_look_and_its_write_is_not_written_over(
    world: OffsetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T33: either the second writer waits for the first, or the first one has to look again."""
    slow, quick = world.open(), world.open()
    slow.save("s", StreamPosition({T0: 1}))
    saving = threading.Thread(target=quick.save, args=("s", StreamPosition({T0: 9})))
    place = sys.modules[type(slow).__module__]
    compare = place.refuse_going_back

    def compare_slowly(stream: str, before: StreamPosition | None, after: StreamPosition) -> None:
        compare(stream, before, after)
        if threading.current_thread() is not saving and saving.ident is None:
            saving.start()
            saving.join(0.5)  # done by then, or waiting for us

    monkeypatch.setattr(place, "refuse_going_back", compare_slowly)
    with contextlib.suppress(OffsetStoreError):  # a store that had to look again has gone back
        slow.save("s", StreamPosition({T0: 6}))
    saving.join(30)
    final = 9 if world.limits.compares_and_sets else 6
    assert world.open().load("s") == StreamPosition({T0: final})


def test_a_change_by_hand_is_made_where_it_was_meant_and_remembered(world: OffsetWorld) -> None:
    """A change that begins elsewhere is refused: the stream is running, or somebody else was first."""
    store = world.open()
    back = StreamPosition({T0: 1, T1: 7}, {T: b"\x01" * 16})
    first = Change(1_700_000_000_000, "ann on db1", "import", None, ONE)
    second = Change(1_700_000_000_001, "bob", "rewind", ONE, back)
    store.change("s", first)
    store.change("s", second)
    assert store.load("s") == back
    for stale in (first, second):
        with pytest.raises(OffsetStoreError, match="OFFSETS_MOVED") as caught:
            store.change("s", stale)
        assert caught.value.retriable
    again = world.open()
    assert again.load("s") == back
    last = replace(second, before=StreamPosition(ONE.offsets), after=StreamPosition(back.offsets))
    known = [first, second] if world.limits.keeps_all_changes else [last]
    assert again.list_changes("s") == known
    assert again.list_changes("other") == []
    again.save("s", StreamPosition({T0: 2, T1: 7}))
    assert again.list_changes("s") == known


LOAD = """
import json, sys
from penstock.core.offsets.stream_position import write_position
from penstock.stores.offsets.offset_store_addresses import open_offset_store
store = open_offset_store(sys.argv[1])
print(json.dumps(write_position(store.load(sys.argv[2]))))
store.close()
"""


def test_another_process_reads_what_one_has_saved(durable: OffsetWorld) -> None:
    """C8: this is what a store is for; the other process opens it by its address."""
    durable.open().save("ström", ONE)
    assert durable.reach is not None
    done = subprocess.run(
        [sys.executable, "-c", LOAD, durable.reach("one"), "ström"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == write_position(ONE)


def test_a_newer_version_is_refused_and_left_alone(durable: OffsetWorld) -> None:
    store = durable.open()
    store.save("s", ONE)
    assert durable.break_version is not None
    durable.break_version(durable, "s")
    for use in (
        lambda: store.load("s"),
        lambda: store.save("s", StreamPosition({T0: 9, T1: 9})),
        lambda: store.change("s", Change(1, "ann", "rewind", ONE, ONE)),
    ):
        with pytest.raises(OffsetStoreError, match="OFFSETS_TOO_NEW"):
            use()
