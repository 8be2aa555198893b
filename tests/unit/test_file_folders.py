"""The folders of a file sink without Spark: whose they are, and what a crash leaves of them."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import SinkError
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.engines.sinks import files
from penstock.engines.sinks.files import FileSink, FileWriter


class Frame:
    """A frame's writer: one file with these values."""

    def __init__(self, *values: str) -> None:
        self._values = values

    @property
    def write(self) -> Frame:
        return self

    def format(self, kind: str) -> Frame:
        return self

    def save(self, place: str) -> None:
        Path(place).mkdir()
        pq.write_table(pa.table({"value": self._values}), Path(place) / "part-0.parquet")


def at(offset: int, *, topic: str = "t", number: int = 1) -> StreamPosition:
    return StreamPosition({TopicPartition(topic, 0): offset}, {topic: bytes([number]) * 16})


def read(folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in folder.glob("batch=*/*.parquet"):
        found.update(pq.read_table(path)["value"].to_pylist())
    return found


def test_a_topic_made_anew_leaves_the_rows_of_the_old_one(tmp_path: Path) -> None:
    """Its offsets come again, and so would the folder's name; the same batch again still replaces itself."""
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("old-0", "old-1"), at(0), at(2))
        end = StreamPosition(at(2).offsets, at(2, number=2).topic_ids, starts=at(0).offsets)
        writer.write(Frame("new-0", "new-1"), at(2), end)
    assert read(tmp_path) == Counter(["old-0", "old-1", "new-0", "new-1"])
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer._position = at(2)  # as if the offsets had been restored from before it
        writer.write(Frame("new-0", "new-1"), at(2), end)
    assert read(tmp_path) == Counter(["old-0", "old-1", "new-0", "new-1"])


def test_streams_with_similar_names_share_a_folder(tmp_path: Path) -> None:
    """Stream and topic together may read like those of another; and a start sweeps only what is its own."""
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
    """C15: folders that went while the offsets still spoke of them would be rows that nobody reads again."""

    class Killed(BaseException):
        """Ends the program there."""

    def die(*given: Any, **named: Any) -> None:
        raise Killed

    def fill() -> FileWriter:
        writer = FileSink(tmp_path / step).open("s")
        for number in range(3):
            writer.write(Frame(f"v{number}"), at(number), at(number + 1))
        return writer

    for step in ("_drop", "save", "rmtree"):
        writer = fill()
        owner = {"_drop": FileWriter, "save": files.FileOffsetStore, "rmtree": files.shutil}[step]
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
    """One of that name without our note in it; and one that cannot be read is told."""
    place = tmp_path / "batch=s.t-0.0-1"
    place.mkdir(parents=True)
    with closing(FileSink(tmp_path).open("s")) as writer:
        writer.write(Frame("mine"), at(0), at(1))
    assert sorted(path.name for path in tmp_path.glob("batch=*")) == [place.name, f"{place.name}~2"]
    noted = json.loads((tmp_path / f"{place.name}~2" / "_ranges.json").read_text())
    assert noted["topicIds"] == {"t": "01" * 16}
    place.rmdir()
    place.touch()
    with closing(FileSink(tmp_path).open("s")) as writer, pytest.raises(SinkError, match="FILES_UNUSABLE"):
        writer.write({}, at(1), at(0))
