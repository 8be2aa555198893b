"""Offsets in files, and what a crash, a bad disk and another program can do to them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets import file_store as files
from penstock.stores.offsets.file_store import FileOffsetStore

ONE = StreamPosition({TopicPartition("t", 0): 5, TopicPartition("t", 1): 123_456}, {"t": b"\x01" * 16})


@pytest.fixture
def store(tmp_path: Path) -> FileOffsetStore:
    return FileOffsetStore(tmp_path / "deep" / "offsets")


def file_of(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "deep" / "offsets").glob("*.json")
    return path


def test_every_flipped_bit_and_every_cut_is_noticed(store: FileOffsetStore, tmp_path: Path) -> None:
    """B295: the checksum shows it; a damaged file never becomes a position."""
    store.save("s", ONE)
    path = file_of(tmp_path)
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in (1, 128):
            damaged = bytearray(good)
            damaged[at] ^= bit
            path.write_bytes(bytes(damaged))
            with pytest.raises(OffsetStoreError, match=r"OFFSETS_DAMAGED"):
                store.load("s")
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(OffsetStoreError, match="OFFSETS_DAMAGED"):
            store.load("s")
    path.write_bytes(good)
    assert store.load("s") == ONE


def test_a_checksum_does_not_make_nonsense_a_position(store: FileOffsetStore, tmp_path: Path) -> None:
    store.save("s", ONE)
    for nonsense in ("no json", "[]", '{"version": true}', '{"version": 0}', '{"position": {}}'):
        files._replace(file_of(tmp_path), nonsense)
        with pytest.raises(OffsetStoreError, match="OFFSETS_DAMAGED"):
            store.load("s")
    files._replace(file_of(tmp_path), '{"version": 1, "stream": 5}')
    with pytest.raises(OffsetStoreError, match="OFFSETS_DAMAGED"):
        store.list_streams()


DIE_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.file_store import FileOffsetStore

folder, moment = sys.argv[1], sys.argv[2]
store = FileOffsetStore(folder)
flush, rename, flushed = os.fsync, Path.replace, []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying_flush(descriptor):
    if moment == "half written":
        os.ftruncate(descriptor, 100)
        die()
    flush(descriptor)
    flushed.append(descriptor)
    if (moment == "before the rename" and len(flushed) == 1) or (moment == "all done" and len(flushed) == 2):
        die()

def dying_rename(path, target):
    rename(path, target)
    if moment == "after the rename":
        die()

os.fsync, Path.replace = dying_flush, dying_rename
store.save("s", StreamPosition({TopicPartition("t", n): 2 for n in range(500)}))
"""


@pytest.mark.parametrize(
    ("moment", "kept"),
    [("half written", 1), ("before the rename", 1), ("after the rename", 2), ("all done", 2)],
)
def test_a_program_killed_while_it_saves_leaves_the_old_position_or_the_new(
    moment: str, kept: int, tmp_path: Path
) -> None:
    """C21: the file is whole at every moment; and the next program saves as if nothing had happened."""
    store = FileOffsetStore(tmp_path)
    whole = [StreamPosition({TopicPartition("t", n): offset for n in range(500)}) for offset in range(4)]
    store.save("s", whole[1])
    died = subprocess.run([sys.executable, "-c", DIE_WHILE_SAVING, str(tmp_path), moment], timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert store.load("s") == whole[kept]
    assert store.list_streams() == ["s"]
    store.save("s", whole[3])
    assert store.load("s") == whole[3]


def test_the_file_of_another_stream_is_refused(store: FileOffsetStore, tmp_path: Path) -> None:
    """A copy under another name would let two streams begin at the same position."""
    store.save("s", ONE)
    path = file_of(tmp_path)
    path.with_name("other.json").write_bytes(path.read_bytes())
    with pytest.raises(OffsetStoreError, match="belongs to the stream 's'"):
        store.load("other")


def test_half_a_line_of_changes_is_not_one(store: FileOffsetStore, tmp_path: Path) -> None:
    """A crash cut the line in half; the next change takes its place."""
    changes = [Change(number, "ann", "rewind", ONE if number else None, ONE) for number in range(3)]
    store.change("s", changes[0])
    path = file_of(tmp_path).with_suffix(".changes")
    with path.open("a") as file:
        file.write('{"version": 1, "atMs')
    assert store.list_changes("s") == changes[:1]
    store.change("s", changes[1])
    assert store.list_changes("s") == changes[:2]
    path.write_text(json.dumps({"version": 1}) + "\n")
    with pytest.raises(OffsetStoreError, match="OFFSETS_DAMAGED"):
        store.list_changes("s")


def test_who_holds_the_stream_is_waited_for_but_not_for_ever(
    store: FileOffsetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save("s", ONE)
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.05)
    held = os.open(file_of(tmp_path).with_suffix(".lock"), os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OffsetStoreError, match="OFFSETS_BUSY") as caught:
            store.save("s", ONE)
        assert caught.value.retriable
        assert store.load("s") == ONE  # readers need no lock
    finally:
        os.close(held)
    store.save("s", ONE)


def test_a_folder_that_is_a_file_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OffsetStoreError, match=r"OFFSETS_UNUSABLE.*taken"):
        FileOffsetStore(tmp_path / "taken")
    with pytest.raises(OffsetStoreError, match=r"OFFSETS_NOT_FOUND.*absent"):
        FileOffsetStore(tmp_path / "absent", create=False)
    store = FileOffsetStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OffsetStoreError, match=r"OFFSETS_UNUSABLE"):
        store.save("s", ONE)
