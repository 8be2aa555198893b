"""The worlds of the offset stores: each opens its store again and again, like a program that is restarted.

What a world cannot do is listed in its `limits`; the tests show what happens instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import OffsetStore
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.offsets.zookeeper_store import ZooKeeperOffsetStore
from tests.sql.databases import make_database, make_file_database


@dataclass(frozen=True)
class Limits:
    """What a store may be unable to do; see the docstring of `penstock.stores.offsets.kafka_store`."""

    keeps_empty_positions: bool = True
    keeps_gone: bool = True
    forgets_partitions: bool = True
    compares_and_sets: bool = True
    keeps_all_changes: bool = True


@dataclass
class OffsetWorld:
    """A place that keeps offsets. `reach` returns an address by which another process can open it."""

    open_in: Callable[[str], OffsetStore]
    reach: Callable[[str], str] | None
    break_version: Callable[[OffsetWorld, str], None] | None
    limits: Limits = Limits()
    opened: ExitStack = field(default_factory=ExitStack)

    def open(self, namespace: str = "one") -> OffsetStore:
        store = self.open_in(namespace)
        self.opened.callback(store.close)
        return store


def _memory(_request: pytest.FixtureRequest) -> OffsetWorld:
    stores: dict[str, MemoryOffsetStore] = {}
    return OffsetWorld(lambda namespace: stores.setdefault(namespace, MemoryOffsetStore()), None, None)


def _file(request: pytest.FixtureRequest) -> OffsetWorld:
    import hashlib
    import json

    folder: Path = request.getfixturevalue("tmp_path") / "offsets"

    def break_version(_world: OffsetWorld, stream: str) -> None:
        path = folder / "one" / f"{stream}.json"
        content = json.dumps({**json.loads(path.read_text().splitlines()[0]), "version": 2})
        path.write_text(f"{content}\n{hashlib.sha256(content.encode()).hexdigest()}\n")

    return OffsetWorld(
        lambda namespace: FileOffsetStore(folder / namespace), lambda name: str(folder / name), break_version
    )


def _sql(server: str) -> Callable[[pytest.FixtureRequest], OffsetWorld]:
    def make(request: pytest.FixtureRequest) -> OffsetWorld:
        stack = ExitStack()
        if server == "sqlite":
            database = make_file_database(request.getfixturevalue("tmp_path"))
        else:
            database = stack.enter_context(make_database(request.getfixturevalue(server)))

        def break_version(_world: OffsetWorld, _stream: str) -> None:
            database.run("UPDATE penstock_meta SET version = 2 WHERE component = 'offsets'")

        return OffsetWorld(
            lambda namespace: SqlOffsetStore(database.url, namespace=namespace),
            lambda namespace: f"{database.url}?namespace={namespace}",
            break_version,
            opened=stack,
        )

    return make


def _zookeeper(request: pytest.FixtureRequest) -> OffsetWorld:
    server: Any = request.getfixturevalue("zookeeper")
    prefix = f"/penstock/{secrets.token_hex(6)}"

    def break_version(world: OffsetWorld, stream: str) -> None:
        client = world.open()._client  # type: ignore[attr-defined]
        client.set(f"{prefix}/one/offsets/{stream}", b'{"version": 2}')

    return OffsetWorld(
        lambda namespace: ZooKeeperOffsetStore(server.address, prefix=f"{prefix}/{namespace}"),
        lambda namespace: f"zookeeper://{server.address}{prefix}/{namespace}",
        break_version,
    )


def _kafka(request: pytest.FixtureRequest) -> OffsetWorld:
    from penstock.kafka.groups.committed_offsets import commit_offsets
    from penstock.kafka.metadata.topic_admin import create_topic, topic_exists
    from penstock.stores.offsets.kafka_store import KafkaOffsetStore
    from tests.support.kafka.client_settings import settings_of

    bootstrap = request.getfixturevalue("kafka").bootstrap
    client = settings_of(bootstrap)
    for name, partitions in ((T0.topic, 500), (U0.topic, 1)):  # a group commits only what exists
        if not topic_exists(client, name):
            create_topic(client, name, partitions=partitions)
    unique = secrets.token_hex(6)

    def break_version(_world: OffsetWorld, stream: str) -> None:
        group = f"one-{unique}/{stream}"
        commit_offsets(client, group, {T0: 5}, timeout_ms=30_000, metadata='{"penstock":2}')

    return OffsetWorld(
        lambda namespace: KafkaOffsetStore(client, group=f"{namespace}-{unique}"),
        lambda namespace: f"kafka://{bootstrap}/{namespace}-{unique}",
        break_version,
        Limits(False, False, False, False, False),
    )


WORLDS: dict[str, Callable[[pytest.FixtureRequest], OffsetWorld]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sql("sqlite"),
    "postgres": _sql("postgres"),
    "mariadb": _sql("mariadb"),
    "zookeeper": _zookeeper,
    "kafka": _kafka,
}
_MARKS = {
    "kafka": pytest.mark.kafka,
    "postgres": pytest.mark.sql,
    "mariadb": pytest.mark.sql,
    "zookeeper": pytest.mark.zookeeper,
}


def params(names: Sequence[str]) -> list[Any]:
    return [pytest.param(name, marks=[_MARKS[name]] if name in _MARKS else []) for name in names]


@contextmanager
def open_world(request: pytest.FixtureRequest) -> Iterator[OffsetWorld]:
    world = WORLDS[request.param](request)
    with world.opened:
        yield world


#: Names that only this suite uses: on a real broker these topics exist.
T, U = "offset-store-t", "offset-store-u"
T0, T1, U0 = TopicPartition(T, 0), TopicPartition(T, 1), TopicPartition(U, 0)
ONE = StreamPosition({T0: 5, T1: 7}, {T: b"\x01" * 16}, {T0: 3, T1: 4})
