"""Offsets in ZooKeeper when it is gone, silent, full of something else, or not writable for us."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cluster import LocalZooKeeper
from penstock.core.errors import OffsetStoreError, OptionError, VersionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.zookeeper_store import ZooKeeperOffsetStore, check_prefix
from tests.support.waiting import stop_process

T0 = TopicPartition("t", 0)


def at(offset: int) -> StreamPosition:
    return StreamPosition({T0: offset})


@pytest.fixture
def own_server() -> Iterator[LocalZooKeeper]:
    with LocalZooKeeper() as server:
        yield server


@pytest.mark.zookeeper
def test_an_outage_is_waited_out_and_a_long_one_is_an_error_in_time(own_server: LocalZooKeeper) -> None:
    """It is killed, silent, and back: the same store continues, and no call takes longer than its limit."""
    store = ZooKeeperOffsetStore(own_server.address, prefix="/shop", timeout_ms=3_000)
    patient = ZooKeeperOffsetStore(own_server.address, prefix="/shop", timeout_ms=60_000)
    try:
        store.save("s", at(1))
        own_server.kill()
        for use in (lambda: store.load("s"), lambda: store.save("s", at(2))):
            began = time.monotonic()
            with pytest.raises(OffsetStoreError, match="ZOOKEEPER_UNREACHABLE") as caught:
                use()
            assert caught.value.retriable
            assert time.monotonic() - began < 10
        saving = threading.Thread(target=patient.save, args=("s", at(3)))
        saving.start()
        own_server.start()
        saving.join(60)
        assert patient.load("s") == at(3)
        patient.change("s", Change(1, "ann", "rewind", at(3), at(2)))
        assert own_server.pid is not None
        try:
            stop_process(own_server.pid)
            with pytest.raises(OffsetStoreError, match="ZOOKEEPER_UNREACHABLE"):
                store.load("s")
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert patient.load("s") == at(2)
    finally:
        store.close()
        patient.close()


def test_nobody_there_is_told_in_time() -> None:
    with pytest.raises(OffsetStoreError, match=r"ZOOKEEPER_UNREACHABLE.*127\.0\.0\.1:1/shop"):
        ZooKeeperOffsetStore("127.0.0.1:1", prefix="/shop", timeout_ms=300)


def test_a_folder_that_is_not_there_is_no_empty_store(zookeeper: Any) -> None:
    with pytest.raises(OffsetStoreError, match="OFFSETS_NOT_FOUND"):
        ZooKeeperOffsetStore(zookeeper.address, prefix="/never-made", create=False)


@pytest.fixture
def store(zookeeper: Any) -> Iterator[ZooKeeperOffsetStore]:
    opened = ZooKeeperOffsetStore(zookeeper.address, prefix=f"/{secrets.token_hex(6)}")
    yield opened
    opened.close()


def test_a_node_of_somebody_elses_is_no_position(store: ZooKeeperOffsetStore) -> None:
    store.save("s", at(1))
    for content in (b"", b"\xff\xfe", b"12", b'{"version": 1, "stream": "other", "position": {}}'):
        store._client.set(store._node("s"), content)
        with pytest.raises(OffsetStoreError, match="OFFSETS_DAMAGED"):
            store.load("s")


def test_a_position_that_no_node_holds_is_refused_before_it_is_sent(store: ZooKeeperOffsetStore) -> None:
    """The server would cut the connection, and the error would blame the network."""
    many = StreamPosition({TopicPartition("t" * 200, number): 2**62 for number in range(40_000)})
    with pytest.raises(OffsetStoreError, match="OFFSETS_TOO_BIG"):
        store.save("s", many)
    assert store.load("s") is None


def test_a_folder_that_we_may_not_write_is_told(store: ZooKeeperOffsetStore) -> None:
    from kazoo.security import make_digest_acl

    store._client.set_acls(f"{store._prefix}/offsets", [make_digest_acl("ann", "secret", all=True)])
    with pytest.raises(OffsetStoreError, match=r"ZOOKEEPER_FAILED.*failed: no auth"):
        store.save("s", at(1))


def test_a_folder_that_was_removed_is_told(store: ZooKeeperOffsetStore) -> None:
    store._client.delete(store._prefix, recursive=True)
    assert store.load("s") is None
    with pytest.raises(OffsetStoreError, match="OFFSETS_NOT_FOUND"):
        store.save("s", at(1))


@pytest.mark.parametrize("prefix", ["", "/", "shop", "//", "/a//b", "/a/../b", "/./a", "/a\n", "/ a"])
def test_without_a_folder_of_its_own_nothing_is_kept(prefix: str) -> None:
    """A3: a ZooKeeper is shared, so no nodes are scattered over its root."""
    with pytest.raises(OptionError, match="PREFIX_INVALID"):
        check_prefix(prefix)
    assert check_prefix("/a/b/") == "/a/b"


def test_a_missing_driver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(VersionError, match=r"DRIVER_MISSING.*pip install 'penstock\[zookeeper\]'"):
        ZooKeeperOffsetStore("127.0.0.1:1", prefix="/shop")
