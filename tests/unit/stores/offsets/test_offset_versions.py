"""What version 1 of the offset stores wrote stays readable; a new version needs golden files too."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, OffsetStore
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets import position_documents, sql_store
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.sql_store import SqlOffsetStore

GOLDEN = Path(__file__).parents[3] / "golden"
STREAM = "counts é"
V0, V1, OLD = TopicPartition("visits", 0), TopicPartition("visits", 1), TopicPartition("old", 4)
WHOLE = StreamPosition(
    {V0: 5, V1: 7}, {"visits": bytes(range(16)), "old": b"\xff" * 16}, {V0: 3}, starts={V0: 2}, gone={OLD: 11}
)
BEFORE = StreamPosition({V0: 9})


def check(store: OffsetStore) -> None:
    assert store.list_streams() == [STREAM]
    assert store.load(STREAM) == WHOLE
    assert store.list_changes(STREAM) == [
        Change(1_700_000_000_000, "ann", "import", None, BEFORE),
        Change(1_700_000_000_001, "bob", "rewind", BEFORE, WHOLE),
    ]
    store.save(STREAM, StreamPosition({V0: 6, V1: 7}))
    assert store.load(STREAM) == StreamPosition({V0: 6, V1: 7})


def test_files_of_version_1_are_read_and_go_on(tmp_path: Path) -> None:
    """B295: and their checksums are checked."""
    assert position_documents.VERSION == 1
    for end in ("json", "changes"):
        shutil.copy(GOLDEN / f"offsets_v1.{end}", tmp_path / f"counts%20%C3%A9.{end}")
    check(FileOffsetStore(tmp_path, create=False))


def test_tables_of_version_1_are_read_and_go_on(tmp_path: Path) -> None:
    assert sql_store.VERSION == 1
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((GOLDEN / "offsets_v1.sql").read_text())
    SqlOffsetStore(new)
    layouts = []
    for path in (old, new):
        with closing(sqlite3.connect(path)) as connection:
            layouts.append(connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
    assert layouts[0] == layouts[1]
    check(SqlOffsetStore(old, namespace="shop", create=False))
