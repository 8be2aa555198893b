"""`penstock offsets` on stores that need no server: what is shown, what is changed, and what is refused."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.shared.moments import find_moment
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition, write_position
from penstock.stores.offsets.checkpoint_store import CheckpointOffsetStore
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.offset_store_addresses import open_offset_store

T0, T1 = TopicPartition("t", 0), TopicPartition("t-x", 1)
HERE = StreamPosition({T0: 50, T1: 90}, {"t": b"\x01" * 16}, {T0: 3}, gone={TopicPartition("old", 0): 4})
Run = Callable[..., str]


@pytest.fixture
def penstock(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path_factory.mktemp("state")))  # no local cluster

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["offsets", *arguments]) == code, capsys.readouterr()
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    return run


@pytest.fixture(params=["offsets", "shop.db"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a store with one stream in it."""
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
    """Dry run by default; afterwards the store itself shows who, when, from where and to where."""
    asked = ("--at", at, "visits", "--by", "20")
    told = penstock("rewind", *asked, "--watch", "0s")
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
    kind = "database" if at.endswith(".db") else "folder"
    assert f"Done: visits in the {kind} {at}." in told
    assert done["store"] == f"the {kind} {at}"
    lines = penstock("show", "--at", at, "visits", "--changes").splitlines()[-2:]
    assert "rewind t-0: 50 -> 30; t-x-1: 90 -> 70" in lines[0]
    assert "skip t-x-1: 70 -> 80" in lines[1]
    assert "@" in lines[1].split()[2]


def test_no_line_names_a_class_of_ours(penstock: Run, at: str, tmp_path: Path) -> None:
    told = penstock("show", "--at", at, "nobody", code=1)
    assert told.startswith("[STREAM_NOT_FOUND] The ")
    assert f"{at} has no stream nobody. It has: visits." in told
    told += penstock("rewind", "--at", at, "visits", "--to-batch", "3", code=1)
    told += penstock("rewind", "--at", at, "visits", "--by", "1", "--yes", "--watch", "0s")
    told += penstock("show", "--at", at, "--json") + penstock("show", "--at", at, "visits", "--json")
    open_offset_store(f"{tmp_path}/none")
    told += penstock("show", "--at", f"{tmp_path}/none")
    assert f"No stream has offsets in the folder {tmp_path}/none." in told
    assert "OffsetStore" not in told


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
    now = ("--watch", "0s")
    assert "Nothing was changed" in penstock("copy", "--from", at, "visits", "--to", target, *now)
    assert not Path(target).exists()
    penstock("copy", "--from", at, "visits", "--to", target, "--as", "v2", "--yes", "--watch", "0s")
    assert load(target, "v2") == HERE
    penstock("export", "--at", at, "visits", "--file", str(file))
    assert json.loads(penstock("export", "--at", at, "visits")) == json.loads(file.read_text())
    fresh = f"{tmp_path}/fresh.db"
    assert "Nothing was changed" in penstock("import", "--at", fresh, "visits", "--file", str(file), *now)
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
    """It has its position in memory and would overwrite the new one. A dry run says so too."""
    store, slept = FileOffsetStore(tmp_path), list[float]()
    store.save("visits", HERE)

    def sleep(watch_s: float) -> None:
        slept.append(watch_s)
        store.save("visits", StreamPosition({T0: 50 + len(slept), T1: 90}))

    monkeypatch.setattr("penstock.cli.rewinding.offset_changes.time.sleep", sleep)
    for more in ((), ("--yes",)):
        told = penstock("rewind", "--at", str(tmp_path), "visits", "--by", "5", *more, code=1)
        assert "[STREAM_IS_RUNNING]" in told
    assert slept == [2.0, 2.0]
    assert store.load("visits") == StreamPosition({T0: 52, T1: 90})
    assert store.list_changes("visits") == []
    assert "Nothing was changed" in penstock("plan", "--at", str(tmp_path), "visits", "--by", "-5")
    assert len(slept) == 2, "a plan waits for nobody"


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["show", "--at", "AT", "other"], "STREAM_NOT_FOUND"),
        (["rewind", "--at", "AT", "visits", "--to-batch", "4"], "NO_BATCHES_KEPT"),
        (["rewind", "--at", "AT", "visits", "--to-time", "2h"], "NO_BOOTSTRAP_SERVER"),
        (["rewind", "--at", "AT", "visits", "--offset", "nonsense=1"], "PARTITION_INVALID"),
        (["rewind", "--at", "AT", "visits", "--by", "1", "--only", "u-0"], "NOT_IN_STREAM"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0"], "PAIR_EXPECTED"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0=-4"], "OPTION_INVALID"),
        (["rewind", "--at", "AT", "visits", "--by", "-5"], "OPTION_INVALID"),
        (["rewind", "--at", "AT", "visits", "--by", "-5", "--yes", "--watch", "0"], "OPTION_INVALID"),
        (["skip", "--at", "AT", "visits", "--by", "-5"], "OPTION_INVALID"),
        (["skip", "--at", "AT", "visits", "--by", "-5", "--yes", "--watch", "0"], "OPTION_INVALID"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0=4", "--only", "t-x-1"], "OPTIONS_DISAGREE"),
        (["plan", "--at", "AT", "visits", "--offset", "t-0=4", "--only", "t-x"], "OPTIONS_DISAGREE"),
        (["rewind", "--at", "AT", "visits", "--offset", "t-0=4", "--offset", "t-0=5"], "OPTIONS_DISAGREE"),
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


@pytest.mark.parametrize(
    "wrong", [["--to-time", "noon"], ["--to-time", "0"], ["--by", "x"], ["--to-offset", "-1"], []]
)
def test_wrong_usage_is_exit_code_2(penstock: Run, at: str, wrong: list[str]) -> None:
    penstock("rewind", "--at", at, "visits", *wrong, code=2)


def test_a_number_carries_its_unit_but_for_a_wait_of_nothing(penstock: Run, at: str) -> None:
    """As a time, `60` would be in 1970, and a stream moved there would read everything again."""
    asked = ("rewind", "--at", at, "visits")
    told = penstock(*asked, "--to-time", "60", code=2)
    advice = "'60' is not a moment with its unit: for a length of time ago write 60s, 60m, 60h or 60d"
    assert advice in " ".join(told.split())
    assert find_moment("1970-01-01T00:00:05Z", now_ms=0) == 5000  # that is no bare number
    told = penstock(*asked, "--by", "1", "--yes", "--watch", "5", code=2)
    assert "'5' has no unit: write 5s for seconds, 5m for minutes" in " ".join(told.split())
    assert load(at) == HERE
    assert "Done" in penstock(*asked, "--by", "1", "--yes", "--watch", "0")


def test_which_way_is_said_once_by_the_verb(penstock: Run, at: str) -> None:
    """A minus sign after `rewind` may mean the other way, or the same way again; `plan` needs it."""
    now = ("--watch", "0s")
    told = penstock("rewind", "--at", at, "visits", "--by", "-5", code=1)
    assert "a rewind already goes back. Write --by 5 to go back; `penstock offsets skip --by 5`" in told
    told = penstock("skip", "--at", at, "visits", "--by", "-5", code=1)
    assert "a skip already goes ahead. Write --by 5 to go ahead; `penstock offsets rewind --by 5`" in told
    assert "50       45" in penstock("plan", "--at", at, "visits", "--by", "-5")
    told = penstock("rewind", "--at", at, "visits", "--offset", "t-0=4", "--only", "t-x-1", code=1)
    assert "--offset names t-0, and --only leaves it alone. Leave --only out" in told
    named = ("--offset", "t-0=4", "--offset", "t-1=4")
    told = penstock("rewind", "--at", at, "visits", *named, "--only", "t-x-1", code=1)
    assert "--offset names t-0 and t-1, and --only leaves them alone. Leave --only out" in told
    both = penstock("rewind", "--at", at, "visits", "--offset", "t-0=4", "--only", "t", "--only", "t", *now)
    assert "t-0" in both
    assert "t-x-1" not in both


def test_brokers_that_do_not_answer_leave_the_stored_position_on_the_screen(
    at: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes only seconds and says what is missing; a limit that the user has set is used instead."""
    monkeypatch.setattr("penstock.cli.shared.kafka_arguments.LOOK_TIMEOUT_MS", 300)
    nobody = ("--bootstrap-server", f"127.0.0.1:{find_free_ports(1)[0]}")
    assert main(["offsets", "show", "--at", at, "visits", *nobody]) == 1
    told = capsys.readouterr()
    assert [line.split()[2:] for line in told.out.splitlines()[1:3]] == [["50", "-", "-"], ["90", "-", "-"]]
    assert "Where the logs end is not known: the brokers could not be asked. [BROKER_TIMEOUT]" in told.err
    assert "for 300 ms" in told.err
    more = ("--set", "default.api.timeout.ms=200", "--json")
    assert main(["offsets", "show", "--at", at, "visits", *nobody, *more]) == 1
    told = capsys.readouterr()
    shown = json.loads(told.out)
    assert (shown["position"], shown["ends"]) == (write_position(HERE), {})
    assert "for 200 ms" in shown["ends_unknown"]
    assert main(["offsets", "rewind", "--at", at, "visits", "--by", "1", "--only", "u-0", *nobody]) == 1
    assert "[NOT_IN_STREAM]" in capsys.readouterr().err  # nobody has to be asked for that


@pytest.mark.parametrize(
    "asked",
    [
        ["topics", "list"],
        ["topics", "describe", "t"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["groups", "offsets"],
        ["offsets", "show", "--at", "kafka://SERVER/g", "g"],
        ["offsets", "plan", "--at", "AT", "visits", "--to-end"],
    ],
)
def test_no_command_that_only_looks_waits_a_minute(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
) -> None:
    monkeypatch.setattr("penstock.cli.shared.kafka_arguments.LOOK_TIMEOUT_MS", 300)
    server = f"127.0.0.1:{find_free_ports(1)[0]}"
    FileOffsetStore(tmp_path).save("visits", HERE)
    given = [each.replace("SERVER", server).replace("AT", str(tmp_path)) for each in asked]
    assert main([*given, "--bootstrap-server", server]) == 1
    assert "for 300 ms (default.api.timeout.ms)" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["rewind", "skip", "copy", "import", "adopt"])
def test_each_verb_that_can_lead_back_says_how_to_count_sums_twice(penstock: Run, verb: str) -> None:
    assert "--sums-count-twice" in penstock(verb, "--help")


def test_the_offsets_of_a_file_sink_are_found_and_its_batches_are_named(
    penstock: Run, tmp_path: Path
) -> None:
    """Rows in later folders would be there twice; a folder cut in two would lose some."""
    for start, until in ((0, 20), (20, 50)):
        folder = tmp_path / f"batch=visits.t-0.{start}-{until}"
        folder.mkdir()
        ranges = {"version": 1, "stream": "visits", "ranges": [["t", 0, start, until]], "topicIds": {}}
        (folder / "_ranges.json").write_text(json.dumps(ranges))
    inner = tmp_path / "_penstock" / "offsets"
    FileOffsetStore(inner).save("visits", StreamPosition({T0: 50}))
    for told in (
        penstock("show", "--at", str(tmp_path)),
        penstock("show", "--at", str(tmp_path), "visits", code=1),
    ):
        assert f"It is the folder of a file sink, whose offsets are in {inner}." in told
    at = ("rewind", "--at", str(inner), "visits")
    for more in ((), ("--yes", "--watch", "0")):
        assert "[SEEK_INSIDE_BATCH]" in penstock(*at, "--to-offset", "30", *more, code=1)
        told = penstock(*at, "--to-offset", "20", *more)
        assert "1 batch of the file sink" in told
        assert "batch=visits.t-0.20-50" in told
        assert "FOLDERS_AHEAD" in told
    assert load(str(inner)) == StreamPosition({T0: 20})


def test_no_other_place_is_suggested_where_none_is_found(penstock: Run, tmp_path: Path) -> None:
    for name in ("none", "none.db"):
        open_offset_store(f"{tmp_path}/{name}")
        told = penstock("show", "--at", f"{tmp_path}/{name}")
        told += penstock("show", "--at", f"{tmp_path}/{name}", "visits", code=1)
        assert "sink" not in told.replace(str(tmp_path), "")


def test_a_dry_run_is_refused_as_the_real_run_is(penstock: Run, at: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", [ours(1)], done=0)
    refused = {
        "CHECKPOINT_NOT_STARTED": ["--to", f"checkpoint:{tmp_path}/c", "--as", "0"],
        "DATABASE_NOT_FOUND": ["--to", f"sink:{tmp_path}/none.db"],
    }
    for condition, where in refused.items():
        for more in (("--watch", "0"), ("--yes", "--watch", "0")):
            assert f"[{condition}]" in penstock("copy", "--from", at, "visits", *where, *more, code=1)


def test_no_message_names_an_exception(penstock: Run, at: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", [ours(1)], done=1)
    (tmp_path / "c" / "offsets" / "0").write_bytes(b"\xff\xfe")
    (tmp_path / "x.json").write_text("{")
    told = penstock("import", "--at", at, "visits", "--file", str(tmp_path / "nowhere"), code=1)
    assert "cannot be used: No such file or directory." in told
    told += penstock("import", "--at", at, "visits", "--file", str(tmp_path / "x.json"), code=1)
    told += penstock("show", "--at", f"checkpoint:{tmp_path}/c", "0", code=1)
    told += penstock("show", "--at", at, "visits", "--command-config", str(tmp_path / "nowhere"), code=1)
    assert not re.search(r"[A-Za-z]+(Error|Exception|Store|Sink)\b", told), told


def test_control_characters_in_names_do_not_reach_the_terminal(penstock: Run, tmp_path: Path) -> None:
    FileOffsetStore(tmp_path).save("visits", StreamPosition({TopicPartition("\x1b[31m", 0): 1}))
    assert "\x1b" not in penstock("show", "--at", str(tmp_path), "visits")


# --- checkpoints, as Spark writes them --------------------------------------------------------------------


def make_checkpoint(folder: Path, *batches: Any, done: int) -> CheckpointOffsetStore:
    """Write a checkpoint in which each batch has the lines of its sources."""
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
    """Only the source's own line changes; a batch that was planned but not done is planned again."""
    other = {"rate": 5}
    batches = [[other, ours(end), {"t": {"0": end}}] for end in (10, 20, 30, 40)]
    store = make_checkpoint(tmp_path, *batches, done=3)
    (tmp_path / "state").mkdir()
    address = f"checkpoint:{tmp_path}"
    assert penstock("show", "--at", address) == "source 1\nsource 2\n"
    told = penstock("rewind", "--at", address, "1", "--to-batch", "0")
    assert "Batch 3 was planned but is not done; it is planned again." in told
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
    """A query becomes a direct stream, and the other way round, without duplicate or lost rows."""
    store = make_checkpoint(tmp_path / "c", [ours(1)], [ours(8)], done=2)
    at, there = f"{tmp_path}/shop.db", f"checkpoint:{tmp_path}/c"
    penstock("copy", "--from", there, "0", "--to", at, "--as", "visits", "--yes", "--watch", "0s")
    assert load(at) == store.load("0")
    open_offset_store(at).save("visits", StreamPosition({T0: 33}, {"t": b"\x01" * 16}))
    penstock("copy", "--from", at, "visits", "--to", there, "--as", "0", "--yes", "--watch", "0s")
    assert store.load("0") == StreamPosition({T0: 33}, {"t": b"\x01" * 16})


def test_a_checkpoint_that_has_moved_on_is_not_changed(tmp_path: Path) -> None:
    """The query ran between the look and the change; its plan for the next batch stays too."""
    store = make_checkpoint(tmp_path, [ours(1)], [ours(2)], [ours(3)], done=2)
    seen = store.load_batch("0", 0)
    with pytest.raises(OffsetStoreError, match="OFFSETS_MOVED"):
        store.change("0", Change(1, "ann", "rewind", seen, StreamPosition({T0: 0})))
    assert store.load("0") == store.load_batch("0", 1)
    assert (store.list_planned(), store.list_changes("0")) == ([2], [])


def test_a_slip_in_only_names_what_there_is(penstock: Run, at: str) -> None:
    """No broker is asked: a topic that the stream does not read is not reported as a recreated topic."""
    for slip in ("tt-0", "tt", "t-1"):
        told = penstock("rewind", "--at", at, "visits", "--to-start", "--only", slip, code=1)
        assert "[NOT_IN_STREAM]" in told
        assert "It stands in t-0, t-x-1." in told
