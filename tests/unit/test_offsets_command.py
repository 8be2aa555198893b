"""`penstock offsets` on stores that need no server: what is shown, what is changed, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offset_stores import Change
from penstock.core.stream_offsets import StreamPosition, write_position
from penstock.stores.offsets.addresses import open_offset_store
from penstock.stores.offsets.checkpoint import CheckpointOffsetStore
from penstock.stores.offsets.file import FileOffsetStore

T0, T1 = TopicPartition("t", 0), TopicPartition("t-x", 1)
HERE = StreamPosition({T0: 50, T1: 90}, {"t": b"\x01" * 16}, {T0: 3}, gone={TopicPartition("old", 0): 4})
Run = Callable[..., str]


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        assert main(["offsets", *arguments]) == code, capsys.readouterr()
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    return run


@pytest.fixture(params=["offsets", "shop.db"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with one stream in it."""
    address = f"{tmp_path}/{request.param}"
    open_offset_store(address).save("visits", HERE)
    return address


def load(address: str, stream: str = "visits") -> StreamPosition | None:
    return open_offset_store(address, create=False).load(stream)


def test_streams_and_positions_are_shown(penstock: Run, at: str) -> None:
    assert penstock("show", "--at", at) == "visits\n"
    lines = penstock("show", "--at", at, "visits").splitlines()
    assert lines[0].split() == ["topic", "partition", "next", "offset", "log", "end", "lag"]
    assert [line.split() for line in lines[1:3]] == [["t", "0", "50", "-", "-"], ["t-x", "1", "90", "-", "-"]]
    assert lines[3] == "old-0 is gone; the stream stood at 4."
    shown = json.loads(penstock("show", "--at", at, "visits", "--json", "--changes"))
    assert shown["position"] == write_position(HERE)
    assert (shown["version"], shown["changes"], shown["ends"]) == (1, [], {})
    assert json.loads(penstock("show", "--at", at, "--json"))["streams"] == ["visits"]


def test_nothing_is_changed_without_yes_and_every_change_is_remembered(penstock: Run, at: str) -> None:
    """Dry run by default; afterwards the store itself tells who, when, from where to where."""
    asked = ("--at", at, "visits", "--by", "20")
    told = penstock("rewind", *asked)
    assert "Nothing was changed. Say --yes to do it." in told
    assert "The log was not looked at" in told
    assert load(at) == HERE
    assert "Nothing was changed.\n" in penstock("plan", "--at", at, "visits", "--by", "-20")
    assert load(at) == HERE
    done = json.loads(penstock("rewind", *asked, "--yes", "--watch", "0s", "--json"))
    after = load(at)
    assert after is not None
    assert (done["applied"], after.offsets) == (True, {T0: 30, T1: 70})
    assert done["before"] == write_position(HERE)
    assert done["after"] == write_position(after)
    assert (after.topic_ids, after.leader_epochs, after.gone) == (HERE.topic_ids, {}, HERE.gone)
    told = penstock("skip", "--at", at, "visits", "--offset", "t-x-1=80", "--yes", "--watch", "0s")
    assert "Done: visits in " in told
    lines = penstock("show", "--at", at, "visits", "--changes").splitlines()[-2:]
    assert "rewind t-0: 50 -> 30; t-x-1: 90 -> 70" in lines[0]
    assert "skip t-x-1: 70 -> 80" in lines[1]
    assert "@" in lines[1].split()[2]


def test_only_some_partitions_move_and_never_the_other_way(penstock: Run, at: str) -> None:
    penstock("rewind", "--at", at, "visits", "--to-offset", "60", "--yes", "--watch", "0s")
    assert load(at, "visits") is not None
    assert load(at).offsets == {T0: 50, T1: 60}  # type: ignore[union-attr]
    penstock("skip", "--at", at, "visits", "--to-offset", "70", "--only", "t", "--yes", "--watch", "0s")
    assert load(at).offsets == {T0: 70, T1: 60}  # type: ignore[union-attr]
    told = penstock("skip", "--at", at, "visits", "--to-offset", "60", "--only", "t-x-1", "--yes")
    assert "Nothing to change." in told


def test_a_position_goes_from_store_to_store_and_through_a_file(
    penstock: Run, at: str, tmp_path: Path
) -> None:
    target, file = f"{tmp_path}/other/deep", tmp_path / "visits.json"
    assert "Nothing was changed" in penstock("copy", "--from", at, "visits", "--to", target)
    assert not Path(target).exists()
    penstock("copy", "--from", at, "visits", "--to", target, "--as", "v2", "--yes", "--watch", "0s")
    assert load(target, "v2") == HERE
    penstock("export", "--at", at, "visits", "--file", str(file))
    assert json.loads(penstock("export", "--at", at, "visits")) == json.loads(file.read_text())
    fresh = f"{tmp_path}/fresh.db"
    assert "Nothing was changed" in penstock("import", "--at", fresh, "visits", "--file", str(file))
    assert not Path(fresh).exists()
    penstock("import", "--at", fresh, "visits", "--file", str(file), "--yes", "--watch", "0s")
    assert load(fresh) == HERE


def test_what_sparks_connector_writes_is_imported_too(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"t":{"0":5}}'))
    penstock("import", "--at", f"{tmp_path}/o", "visits", "--yes", "--watch", "0s")
    assert load(f"{tmp_path}/o") == StreamPosition({T0: 5})


def test_a_stream_that_runs_is_not_moved(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its position in memory and would write over the new one."""
    store = FileOffsetStore(tmp_path)
    store.save("visits", HERE)

    def sleep(watch_s: float) -> None:
        store.save("visits", StreamPosition({T0: 51, T1: 90}))

    monkeypatch.setattr("penstock.cli.offset_changes.time.sleep", sleep)
    told = penstock("rewind", "--at", str(tmp_path), "visits", "--by", "5", "--yes", code=1)
    assert "[STREAM_IS_RUNNING]" in told
    assert store.load("visits") == StreamPosition({T0: 51, T1: 90})
    assert store.list_changes("visits") == []


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["show", "--at", "AT", "other"], "STREAM_NOT_FOUND"),
        (["rewind", "--at", "AT", "visits", "--to-batch", "4"], "NO_BATCHES_KEPT"),
        (["rewind", "--at", "AT", "visits", "--to-time", "2h"], "NO_BOOTSTRAP_SERVER"),
        (["rewind", "--at", "AT", "visits", "--by", "1", "--only", "nonsense"], "PARTITION_INVALID"),
        (["rewind", "--at", "AT", "visits", "--by", "1", "--only", "u-0"], "NOT_IN_STREAM"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0"], "PAIR_EXPECTED"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0=-4"], "OPTION_INVALID"),
        (["import", "--at", "AT", "visits", "--file", "/dev/null"], "FILE_UNUSABLE"),
        (["export", "--at", "AT", "visits", "--file", "/nowhere/x"], "FILE_UNUSABLE"),
        (["show", "--at", "AT/nothing-here"], "OFFSETS_NOT_FOUND"),
        (["show", "--at", "checkpoint:AT"], "CHECKPOINT_NOT_FOUND"),
    ],
)
def test_what_cannot_be_done_is_told_with_its_condition(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], condition: str
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    FileOffsetStore(tmp_path / "at").save("visits", HERE)
    given = [each.replace("AT", str(tmp_path / "at")) for each in arguments]
    assert f"[{condition}]" in penstock(*given, code=1)
    assert FileOffsetStore(tmp_path / "at").load("visits") == HERE


@pytest.mark.parametrize("wrong", [["--to-time", "noon"], ["--by", "x"], ["--to-offset", "-1"], []])
def test_wrong_usage_is_exit_code_2(penstock: Run, at: str, wrong: list[str]) -> None:
    penstock("rewind", "--at", at, "visits", *wrong, code=2)


def test_control_characters_in_names_do_not_reach_the_terminal(penstock: Run, tmp_path: Path) -> None:
    FileOffsetStore(tmp_path).save("visits", StreamPosition({TopicPartition("\x1b[31m", 0): 1}))
    assert "\x1b" not in penstock("show", "--at", str(tmp_path), "visits")


# --- checkpoints, as Spark writes them --------------------------------------------------------------------


def make_checkpoint(folder: Path, *batches: Any, done: int) -> CheckpointOffsetStore:
    """Each batch is what its sources' lines say."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, sources in enumerate(batches):
        lines = [
            "v1",
            '{"batchWatermarkMs":0}',
            *(each if each == "-" else json.dumps(each) for each in sources),
        ]
        (folder / "offsets" / f"{number}").write_text("\n".join(lines))
        (folder / "offsets" / f".{number}.crc").write_text("a checksum of Hadoop's")
        if number < done:
            (folder / "commits" / f"{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return CheckpointOffsetStore(folder)


def ours(offset: int) -> dict[str, Any]:
    return write_position(StreamPosition({T0: offset}, {"t": b"\x01" * 16}, {T0: 2}, starts={T0: 0}))


def test_a_checkpoint_is_moved_to_the_end_of_a_batch(penstock: Run, tmp_path: Path) -> None:
    """Only the source's own line changes; a batch that was planned and not done is planned anew."""
    other = {"rate": 5}
    batches = [[other, ours(end), {"t": {"0": end}}] for end in (10, 20, 30, 40)]
    store = make_checkpoint(tmp_path, *batches, done=3)
    (tmp_path / "state").mkdir()
    address = f"checkpoint:{tmp_path}"
    assert penstock("show", "--at", address) == "1\n2\n"
    told = penstock("rewind", "--at", address, "1", "--to-batch", "0")
    assert "Batch 3 was planned and is not done; it is planned anew." in told
    assert "keeps state" in told
    assert "30       10" in told
    assert store.list_planned() == [3]
    penstock("rewind", "--at", address, "1", "--to-batch", "0", "--yes", "--watch", "0s")
    assert store.load("1") == StreamPosition({T0: 10}, {"t": b"\x01" * 16})
    assert store.load_batch("1", 1) == StreamPosition({T0: 20}, {"t": b"\x01" * 16}, {T0: 2}, starts={T0: 0})
    assert store.list_planned() == []
    lines = (tmp_path / "offsets" / "2").read_text().splitlines()
    assert lines[:3] == ["v1", '{"batchWatermarkMs":0}', json.dumps(other)]
    assert json.loads(lines[4]) == {"t": {"0": 30}}
    assert not (tmp_path / "offsets" / ".2.crc").exists()
    penstock("skip", "--at", address, "2", "--by", "5", "--yes", "--watch", "0s")
    assert (tmp_path / "offsets" / "2").read_text().splitlines()[4] == '{"t":{"0":35}}'
    assert "rewind t-0: 30 -> 10" in penstock("show", "--at", address, "1", "--changes")


def test_a_checkpoint_that_cannot_be_moved_is_told(penstock: Run, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "a", [ours(1)], done=0)
    file = tmp_path / "position.json"
    file.write_text(json.dumps(ours(3)))
    for arguments, condition in [
        (("show", "--at", f"checkpoint:{tmp_path}/a", "0"), "STREAM_NOT_FOUND"),
        (
            ("import", "--at", f"checkpoint:{tmp_path}/a", "0", "--file", str(file), "--yes"),
            "CHECKPOINT_NOT_STARTED",
        ),
    ]:
        assert f"[{condition}]" in penstock(
            *arguments, *(["--watch", "0s"] if "--yes" in arguments else []), code=1
        )
    store = make_checkpoint(tmp_path / "b", [ours(1), "-"], done=1)
    address = f"checkpoint:{tmp_path}/b"
    for source in ("1", "2", "x"):
        assert "[NO_SUCH_SOURCE]" in penstock("show", "--at", address, source, code=1)
    assert "[NO_SUCH_BATCH]" in penstock("rewind", "--at", address, "0", "--to-batch", "7", code=1)
    with pytest.raises(OffsetStoreError, match="CHECKPOINT_IS_SPARKS"):
        store.save("0", HERE)
    (tmp_path / "b" / "offsets" / "0").write_text("v7\n{}\n{}")
    assert "[CHECKPOINT_UNREADABLE]" in penstock("show", "--at", address, "0", code=1)


def test_a_checkpoint_is_copied_into_a_store_and_back(penstock: Run, tmp_path: Path) -> None:
    """A query becomes a direct stream, and the other way round, without a row twice or lost."""
    store = make_checkpoint(tmp_path / "c", [ours(1)], [ours(8)], done=2)
    at, there = f"{tmp_path}/shop.db", f"checkpoint:{tmp_path}/c"
    penstock("copy", "--from", there, "0", "--to", at, "--as", "visits", "--yes", "--watch", "0s")
    assert load(at) == store.load("0")
    open_offset_store(at).save("visits", StreamPosition({T0: 33}, {"t": b"\x01" * 16}))
    penstock("copy", "--from", at, "visits", "--to", there, "--as", "0", "--yes", "--watch", "0s")
    assert store.load("0") == StreamPosition({T0: 33}, {"t": b"\x01" * 16})


def test_a_checkpoint_that_has_moved_on_is_not_changed(tmp_path: Path) -> None:
    """The query ran between the look and the change; its plan for the next batch stays, too."""
    store = make_checkpoint(tmp_path, [ours(1)], [ours(2)], [ours(3)], done=2)
    seen = store.load_batch("0", 0)
    with pytest.raises(OffsetStoreError, match="OFFSETS_MOVED"):
        store.change("0", Change(1, "ann", "rewind", seen, StreamPosition({T0: 0})))
    assert store.load("0") == store.load_batch("0", 1)
    assert (store.list_planned(), store.list_changes("0")) == ([2], [])
