"""The folders of a file sink without Spark: which stream owns them, and what a crash leaves of them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks import file_sink
from penstock.engines.sinks.file_audit import audit_files
from penstock.engines.sinks.file_sink import FileSink, FileWriter
from penstock.engines.sinks.task_output_checks import TaskCounts


class Frame:
    """A stand-in for a frame of these values."""

    def __init__(self, *values: str) -> None:
        self.values = values


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one task write a frame's rows without Spark: the steps that matter here are the sink's own."""

    def save(frame: Frame, _kind: str, place: Path) -> TaskCounts:
        place.mkdir()
        pq.write_table(pa.table({"value": frame.values}), place / "part-00000-c.parquet")
        return TaskCounts(len(frame.values), frozenset({0}))

    monkeypatch.setattr(file_sink, "save_frame", save)


def at(offset: int, *, topic: str = "t", number: int = 1) -> StreamPosition:
    return StreamPosition({TopicPartition(topic, 0): offset}, {topic: bytes([number]) * 16})


def read(folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in folder.glob("batch=*/*.parquet"):
        found.update(pq.read_table(path)["value"].to_pylist())
    return found


def test_a_topic_made_anew_leaves_the_rows_of_the_old_one(tmp_path: Path) -> None:
    """Its offsets come again, and so would the folder's name; a repeated batch still replaces its folder."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("old-0", "old-1"), at(0), at(2))
        end = StreamPosition(at(2).offsets, at(2, number=2).topic_ids, starts=at(0).offsets)
        writer.write(Frame("new-0", "new-1"), at(2), end)
    assert read(tmp_path) == Counter(["old-0", "old-1", "new-0", "new-1"])
    file_sink.FileOffsetStore(tmp_path / "_penstock" / "offsets").save("s", at(2))  # restored from a backup
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("new-0", "new-1"), at(2), end)
    assert read(tmp_path) == Counter(["old-0", "old-1", "new-0", "new-1"])


def test_streams_with_similar_names_share_a_folder(tmp_path: Path) -> None:
    """Stream and topic combined may read like those of another; a start sweeps only its own folders."""
    with closing(FileSink(tmp_path).open("a")) as one, closing(FileSink(tmp_path).open("a.b")) as two:
        one.write(Frame("one"), at(0, topic="b.t"), at(1, topic="b.t"))
        two.write(Frame("two"), at(0), at(1))
    assert read(tmp_path) == Counter(["one", "two"])
    with closing(FileSink(tmp_path).open("x-y")) as longer:
        half_done = longer._name_beside()
        half_done.mkdir()
        FileSink(tmp_path).open("x").close()
        assert half_done.exists()


def test_a_seek_back_that_was_cut_off_is_ended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15: if folders vanished while the offsets still cover them, nobody would read their rows again."""

    class Killed(BaseException):
        """Ends the program at that point."""

    def die(*given: Any, **named: Any) -> None:
        raise Killed

    def fill() -> FileWriter:
        writer = FileSink(tmp_path / step).open("s")
        for number in range(3):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
        return writer

    for step in ("_drop", "save", "rmtree"):
        writer = fill()
        owner = {"_drop": FileWriter, "save": file_sink.FileOffsetStore, "rmtree": file_sink.shutil}[step]
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, die)
            with pytest.raises(Killed):
                writer.write({}, at(3), at(1))
        writer.close()
        with closing(FileSink(tmp_path / step).open("s")) as again:
            assert again.position is not None
            assert (again.position.offsets, read(tmp_path / step)) == (at(1).offsets, Counter(["v0"])), step
            assert not list((tmp_path / step / "_penstock").glob("new-*"))


def test_a_folder_that_is_not_ours_stays(tmp_path: Path) -> None:
    """One with such a name but without our note stays; so does an unreadable one, which is reported."""
    place = tmp_path / "batch=s.t-0.0-1"
    place.mkdir(parents=True)
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("mine"), at(0), at(1))
    assert sorted(path.name for path in tmp_path.glob("batch=*")) == [place.name, f"{place.name}~2"]
    noted = json.loads((tmp_path / f"{place.name}~2" / "_ranges.json").read_text())
    assert noted["topicIds"] == {"t": "01" * 16}
    place.rmdir()
    place.touch()
    for _ in range(2):  # reported each time: a refused start keeps no lock
        with pytest.raises(SinkError, match="FILES_UNUSABLE"):
            FileSink(tmp_path).open("s")


# --- a folder that is put back under a writer ---------------------------------------------------------------


def put_back(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


@pytest.mark.parametrize("part", ["", "_penstock/offsets"], ids=["all of it", "the offsets alone"])
def test_a_folder_put_back_to_an_earlier_copy_under_a_writer_is_noticed(tmp_path: Path, part: str) -> None:
    """C12: nothing is overwritten; what is missing is named, and the error is not retried."""
    folder, copy = tmp_path / "out", tmp_path / "copy"
    with closing(FileSink(folder).open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        shutil.copytree(folder / part, copy)
        writer.write(Frame("v1", "v2"), at(1), at(3))
        put_back(copy, folder / part)
        kept = read(folder)
        for results in (Frame("v3"), {}):
            with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*t-0 from 1 to 3") as raised:
                writer.write(results, at(3), at(4))
            assert raised.value.facts["offsets"] == {"t-0": [1, 3]}
            assert not raised.value.retriable
        with pytest.raises(OffsetStoreError, match="LEDGER_WENT_BACK"):
            writer.write(Frame("v1", "v2"), at(1), at(3))  # that folder is gone
    assert read(folder) == kept


def test_a_folder_put_back_while_tasks_write_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: it is checked again before the batch becomes visible."""
    offsets, copy = tmp_path / "out" / "_penstock" / "offsets", tmp_path / "copy"
    save = file_sink.save_frame

    def save_and_restore(frame: Any, kind: str, place: Path) -> TaskCounts:
        put_back(copy, offsets)
        return save(frame, kind, place)

    with closing(FileSink(tmp_path / "out").open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        shutil.copytree(offsets, copy)
        writer.write(Frame("v1"), at(1), at(2))
        monkeypatch.setattr(file_sink, "save_frame", save_and_restore)
        with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*t-0 from 1 to 2"):
            writer.write(Frame("v2"), at(2), at(3))
    assert read(tmp_path / "out") == Counter(["v0", "v1"])


def test_the_newest_batch_taken_away_under_a_writer_is_noticed(tmp_path: Path) -> None:
    """C12: the offsets are those that the writer left, but the rows are gone."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        for number in range(2):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
        shutil.rmtree(tmp_path / "batch=s.t-0.1-2")
        with pytest.raises(OffsetStoreError, match=r"LEDGER_WENT_BACK.*batch=s.t-0.1-2"):
            writer.write(Frame("v2"), at(2), at(3))
    assert read(tmp_path) == Counter(["v0"])


def test_offsets_moved_ahead_under_a_writer_are_not_written_over(tmp_path: Path) -> None:
    """Another program has written, or a person has moved the offsets."""
    store = file_sink.FileOffsetStore(tmp_path / "_penstock" / "offsets")
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        store.save("s", at(7))
        with pytest.raises(OffsetStoreError, match="LEDGER_MOVED"):
            writer.write(Frame("v1"), at(1), at(2))
    assert store.load("s") == at(7)


def test_a_writer_whose_lock_file_was_replaced_stops(tmp_path: Path) -> None:
    """T39: everything was put back as it was, but the lock is held on a file that no longer has that name."""
    folder = tmp_path / "out"
    with closing(FileSink(folder).open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        shutil.copytree(folder, tmp_path / "copy")
        put_back(tmp_path / "copy", folder)
        with pytest.raises(OffsetStoreError, match=r"LEDGER_MOVED.*lock"):
            writer.write(Frame("v1"), at(1), at(2))


def test_offsets_inside_a_batch_are_not_told_to_remove_it(tmp_path: Path) -> None:
    """Nothing would produce the batch's first rows again."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("v0", "v1"), at(0), at(2))
    file_sink.FileOffsetStore(tmp_path / "_penstock" / "offsets").save("s", at(1), may_go_back=True)
    with pytest.raises(OffsetStoreError, match=r"FOLDERS_AHEAD.*lie inside batch=s.t-0.0-2: take the stream"):
        FileSink(tmp_path).open("s")


@pytest.mark.parametrize("stored", [1, None], ids=["older ones", "none"])
def test_a_start_whose_offsets_are_older_than_the_folders_is_refused(
    tmp_path: Path, stored: int | None
) -> None:
    """C12: rows would be there twice; once the folders are removed, they are written again."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        for number in range(3):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
    store = file_sink.FileOffsetStore(tmp_path / "_penstock" / "offsets")
    if stored is None:
        (tmp_path / "_penstock" / "offsets" / "s.json").unlink()
    else:
        store.save("s", at(stored), may_go_back=True)
    with pytest.raises(OffsetStoreError, match=r"FOLDERS_AHEAD.*batch=s.t-0.1-2, ") as raised:
        FileSink(tmp_path).open("s")
    for name in raised.value.facts["folders"]:
        shutil.rmtree(tmp_path / name)
    with closing(FileSink(tmp_path).open("s")) as writer:
        for number in range(stored or 0, 3):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
    assert read(tmp_path) == Counter(["v0", "v1", "v2"])


def test_a_seek_in_a_topic_made_anew_leaves_the_rows_of_the_old_one(tmp_path: Path) -> None:
    """G6: the old log's offsets are not read again, however high they were."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("old-0", "old-1", "old-2"), at(0), at(3))
        begin = at(0, number=2)
        end = StreamPosition(at(2).offsets, begin.topic_ids, starts=begin.offsets)
        writer.write(Frame("new-0", "new-1"), at(3), end)
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write({}, end, begin)
    assert read(tmp_path) == Counter(["old-0", "old-1", "old-2"])


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_batch_whose_offsets_may_have_been_stored_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The disk fails before or after the new offsets are stored: the writer left both of these states."""
    save = file_sink.FileOffsetStore.save

    def fail(*given: Any, **named: Any) -> None:
        if step == "after":
            save(*given, **named)
        raise OSError("no space left")

    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        for results, before, end in ((Frame("v1"), at(1), at(2)), ({}, at(2), at(0))):
            with monkeypatch.context() as patch:
                patch.setattr(file_sink.FileOffsetStore, "save", fail)
                with pytest.raises(SinkError, match="FILES_UNUSABLE"):
                    writer.write(results, before, end)
            writer.write(results, before, end)
            assert writer.position == end
        writer.write(Frame("v0"), at(0), at(1))
    assert read(tmp_path) == Counter(["v0"])


def test_a_seek_in_an_adopted_topic_takes_the_batches_away_that_come_again(tmp_path: Path) -> None:
    """G6: whoever adopts a topic states that it holds the same records at the same offsets."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        for number in range(3):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
    store = file_sink.FileOffsetStore(tmp_path / "_penstock" / "offsets")
    for number in (2, 3):  # restored twice
        store.change("s", Change(0, "me", "adopt", at(3, number=number - 1), at(3, number=number)))
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write({}, at(3, number=3), at(1, number=3))
        assert read(tmp_path) == Counter(["v0"])
        writer.write(Frame("v1"), at(1, number=3), at(2, number=3))
    assert read(tmp_path) == Counter(["v0", "v1"])


def test_batches_without_new_records_do_not_replace_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: such as windows that were closed. Offsets do not distinguish them; a failed one is repeated."""

    def fail(*given: Any, **named: Any) -> None:
        raise OSError("no space left")

    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("v0"), at(0), at(1))
        writer.write(Frame("first"), at(1), at(1))
        with monkeypatch.context() as patch:
            patch.setattr(file_sink.FileOffsetStore, "save", fail)
            with pytest.raises(SinkError, match="FILES_UNUSABLE"):
                writer.write(Frame("second"), at(1), at(1))
        writer.write(Frame("second"), at(1), at(1))
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("third"), at(1), at(1))
    assert read(tmp_path) == Counter(["v0", "first", "second", "third"])
    assert audit_files(tmp_path, "s", None).findings == ()
