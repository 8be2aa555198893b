"""A single text names any offset store, and an error about a wrong one does not repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.checkpoint_store import CheckpointOffsetStore
from penstock.stores.offsets.offset_store_addresses import open_offset_store

ONE = StreamPosition({TopicPartition("t", 0): 5})


def test_each_address_opens_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17, C25: those kinds that need no server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.db").mkdir()
    kinds = {
        "memory:": "MemoryOffsetStore",
        "offsets": "FileOffsetStore('offsets')",
        "folder.db": "FileOffsetStore('folder.db')",
        f"file://{tmp_path}/a%20b": f"FileOffsetStore('{tmp_path}/a b')",
        "x.db": "SqlOffsetStore('x.db', namespace='default')",
        "x?namespace=y.sqlite3": "SqlOffsetStore('x?namespace=y.sqlite3', namespace='default')",
        f"sqlite://{tmp_path}/y": f"SqlOffsetStore('{tmp_path}/y', namespace='default')",
        f"sqlite://{tmp_path}/y?namespace=shop": f"SqlOffsetStore('{tmp_path}/y', namespace='shop')",
        "kafka://h1:9092,[::1]:9093/nightly": "KafkaOffsetStore('h1:9092,::1:9093', group='nightly')",
    }
    for address, shown in kinds.items():
        store = open_offset_store(address)
        assert shown in repr(store)
        store.close()


def test_each_store_has_a_name_that_can_stand_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock offsets` prints it; one of our class names would mean nothing to its readers."""
    monkeypatch.chdir(tmp_path)
    names = {
        "memory:": "the memory of this process",
        "offsets": "the folder offsets",
        "x.db": "the database x.db",
        f"sqlite://{tmp_path}/y?namespace=shop": f"the database {tmp_path}/y (namespace shop)",
        "kafka://h1:9092,[::1]:9093/nightly": "the group nightly at h1:9092,::1:9093",
    }
    for address, name in names.items():
        store = open_offset_store(address)
        assert str(store) == name
        store.close()
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    assert str(CheckpointOffsetStore(tmp_path / "checkpoint")) == f"the checkpoint {tmp_path}/checkpoint"


def test_what_is_not_there_is_not_made_when_it_is_only_looked_at(tmp_path: Path) -> None:
    for address, condition in {
        f"{tmp_path}/offsets": "OFFSETS_NOT_FOUND",
        f"{tmp_path}/offsets.db": "DATABASE_NOT_FOUND",
    }.items():
        with pytest.raises(OffsetStoreError, match=condition):
            open_offset_store(address, create=False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty.db").touch()
    with pytest.raises(OffsetStoreError, match="OFFSETS_NOT_FOUND"):
        open_offset_store(f"{tmp_path}/empty.db", create=False)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "  ",
        "redis://me:hunter2@h/1",
        "memory:x",
        "c:hunter2",
        "file://host/hunter2",
        "file:///",
        "sqlite:///x.db?hunter2=1",
        "sqlite:///x.db?namespace=a&namespace=b",
        "kafka://h/hunter2",
        "kafka://h:9092",
        "kafka://h:9092/",
        "kafka://me:hunter2@h:9092/g",
        "zookeeper://h:2181",
        "zookeeper:///hunter2",
        "zookeeper://h:2181,/hunter2",
        "postgresql://me:hunter2@/x",
    ],
)
def test_a_wrong_address_is_told_and_never_repeated(address: str) -> None:
    with pytest.raises(OptionError, match="PLACE_INVALID") as caught:
        open_offset_store(address)
    assert "hunter2" not in str(caught.value) + repr(caught.value.facts)
