"""The offsets in a Spark checkpoint, and what a crash in the middle of a change leaves."""

import json
from pathlib import Path

from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition, write_position
from penstock.stores.offsets.checkpoint_store import CheckpointOffsetStore

POSITIONS = [StreamPosition({TopicPartition("t", 0): offset}) for offset in (5, 3, 1)]
CHANGES = [Change(at, "ann", "rewind", POSITIONS[at], POSITIONS[at + 1]) for at in range(2)]


def make_store(folder: Path) -> CheckpointOffsetStore:
    for name, text in (("offsets", json.dumps(write_position(POSITIONS[0]))), ("commits", "{}")):
        (folder / name).mkdir()
        (folder / name / "0").write_text(f"v1\n{{}}\n{text}")
    return CheckpointOffsetStore(folder)


def test_half_a_line_of_changes_is_not_one(tmp_path: Path) -> None:
    """A crash cut the line in half; the next change takes its place."""
    store = make_store(tmp_path)
    store.change("0", CHANGES[0])
    with (tmp_path / "penstock-changes-0.jsonl").open("a") as file:
        file.write('{"version": 1, "atMs')
    assert store.list_changes("0") == CHANGES[:1]
    store.change("0", CHANGES[1])
    assert store.list_changes("0") == CHANGES
