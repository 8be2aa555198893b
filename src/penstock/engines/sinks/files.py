"""Results as files: a folder for each batch, named by the offsets it came from, visible whole or not at all.

Rules: rows are written beside, flushed to the disk, and become visible by one rename; that rename is the
commit. What is about to be renamed is noted before and the offsets are stored after it, so a crash anywhere
leaves either no folder and the old offsets, or the folder and a note from which the next start stores the
offsets. A batch that is done again replaces its folder. A seek back is noted before folders go, too; and
nothing is deleted where it can be seen, for a crash would leave half of it. One writer: the next one is
refused while this one lives, a paused one included, because two would both rename.

The folder must be on a disk that all executors see. `spark.read.parquet(folder)` reads all batches; the
column `batch` says which one a row is of.

    stream.write(FileSink("results"))
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.core.errors import OptionError, SinkError
from penstock.core.file_batches import StoredBatch, choose_dropped, make_batch, name_batch
from penstock.core.sinks import Written
from penstock.core.stream_batch import list_ranges
from penstock.core.stream_offsets import StreamPosition, read_position, write_position
from penstock.stores.offsets.documents import write_name
from penstock.stores.offsets.file import FileOffsetStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format: TypeAlias = Literal["parquet", "orc", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "orc", "json", "csv")
#: Ours, beside the batches; Spark does not read what begins with an underscore.
OWN = "_penstock"
RANGES = "_ranges.json"
VERSION = 1


@dataclass(frozen=True)
class FileSink:
    """Batches as folders of files. Settings only."""

    folder: Path | str
    format: Format = "parquet"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise OptionError(
                "SINK_INVALID",
                f"A file sink cannot write {self.format!r}.",
                hint=f"Formats are {', '.join(FORMATS)}.",
                facts={"format": self.format},
            )

    def open(self, stream: str) -> FileWriter:
        return FileWriter(self, stream)


class FileWriter:
    """One stream's only writer, as long as it is open."""

    def __init__(self, sink: FileSink, stream: str) -> None:
        self._folder, self._format, self._stream = Path(sink.folder), sink.format, stream
        own = self._folder / OWN
        with _telling(own):
            own.mkdir(parents=True, exist_ok=True)
        self._name = write_name(stream)
        self._note = own / f"{self._name}.next"
        self._lock = _lock(own / f"{self._name}.lock", stream)
        self._store = FileOffsetStore(own / "offsets")
        with _telling(own):
            mine = re.compile(rf"new-{re.escape(self._name)}-[0-9a-f]{{16}}")  # not those of a stream "x-y"
            for left in own.glob("new-*"):
                if mine.fullmatch(left.name):
                    shutil.rmtree(left)
            self._finish()
        self._position = self._store.load(stream)

    @property
    def position(self) -> StreamPosition | None:
        return self._position

    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> Written:
        """`results`: a frame; nothing (an empty mapping) moves the offsets alone, back as well."""
        if (
            self._position is not None
            and self._position.offsets == end.offsets
            and before.offsets != end.offsets
        ):
            return Written(0, was_repeated=True)
        with _telling(self._folder):
            rows = 0
            if results:
                rows = self._publish(results, before, end)
            else:
                self._go_back(end)
            self._store.save(self._stream, end, may_go_back=True)
            self._note.unlink(missing_ok=True)
        self._position = end
        return Written(rows)

    def close(self) -> None:
        """Let the next writer in. What was written stays."""
        self._lock.close()

    # --- one batch --------------------------------------------------------------------------------------

    def _publish(self, frame: DataFrame, before: StreamPosition, end: StreamPosition) -> int:
        batch = make_batch(self._stream, list_ranges(before, end), end.topic_ids)
        place = self._choose_place(batch)
        beside = self._name_beside()
        frame.write.format(self._format).save(str(beside))
        rows = _count_rows(frame, beside, self._format)
        _write(beside / RANGES, json.dumps({"version": VERSION, **batch.as_dict(), "rows": rows}))
        for path in beside.rglob("*"):
            _flush(path)
        _flush(beside)
        self._note_next(place.name, end)
        if place.exists():
            self._drop(place)  # an earlier run of the same batch
        _make_visible(beside, place)
        return rows

    def _choose_place(self, batch: StoredBatch) -> Path:
        """The batch's folder; where another batch has that name, the next number that is free."""
        name = f"batch={name_batch(batch.stream, batch.ranges)}"
        number, place = 1, self._folder / name
        while place.exists() and read_batch(place) != batch:
            number += 1
            place = self._folder / f"{name}~{number}"
        return place

    def _name_beside(self) -> Path:
        return self._folder / OWN / f"new-{self._name}-{secrets.token_hex(8)}"

    def _note_next(self, folder: str | None, position: StreamPosition) -> None:
        """What is about to happen: a folder becomes visible, or (None) those beyond the position go."""
        _write(
            self._note,
            json.dumps({"version": VERSION, "folder": folder, "position": write_position(position)}),
        )
        _flush(self._note.parent)

    def _finish(self) -> None:
        """After a crash: a batch whose folder is there has its offsets stored now; another never was. A seek
        back that was begun is ended."""
        noted = read_note(self._note)
        if noted is not None:
            folder, position = noted
            if folder is None:
                self._go_back(position)
            if folder is None or (self._folder / folder).exists():
                self._store.save(self._stream, position, may_go_back=True)
        self._note.unlink(missing_ok=True)

    def _go_back(self, position: StreamPosition) -> None:
        """A seek back: batches that will be read again go first, or their rows would be there twice. Noted
        before: a crash in between would leave offsets that speak of rows which are gone."""
        stored = {path: batch for path in self._folder.glob("batch=*") if (batch := read_batch(path))}
        mine = {path: batch for path, batch in stored.items() if batch.stream == self._stream}
        going = choose_dropped(mine, position.offsets)
        if going:
            self._note_next(None, position)
        for path in going:
            self._drop(path)

    def _drop(self, path: Path) -> None:
        """Out of sight in one step, then away."""
        beside = self._name_beside()
        path.rename(beside)
        _flush(path.parent)
        shutil.rmtree(beside)


def _make_visible(beside: Path, place: Path) -> None:
    beside.rename(place)
    _flush(place.parent)


def read_note(note: Path) -> tuple[str | None, StreamPosition] | None:
    """What was about to happen: the folder that was to become visible (None: those beyond go), and the
    position after it."""
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # there is none, or it was cut off while it was written: nothing was renamed yet
    if not isinstance(noted, dict):
        return None
    return noted["folder"], read_position(noted["position"])


def read_batch(path: Path) -> StoredBatch | None:
    """Whose folder it is; None when it is not one of ours."""
    try:
        return StoredBatch.from_dict(json.loads((path / RANGES).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _count_rows(frame: DataFrame, folder: Path, kind: Format) -> int:
    """What really is in the files. Parquet says so in its footers; the others are read once more."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    return frame.sparkSession.read.format(kind).schema(frame.schema).load(str(folder)).count()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, stream: str) -> IO[str]:
    with _telling(path):
        file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise SinkError(
            "SINK_IN_USE",
            f"Another program writes the stream {stream} to {path.parent.parent}.",
            hint="Run one at a time; `fuser -v` on the lock file names it. End it, also if it is paused.",
            facts={"stream": stream, "lock": str(path)},
        ) from error
    return file


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(
            "FILES_UNUSABLE",
            f"Results could not be written to {path}: {error}.",
            hint="Check the folder, its permissions and the free space.",
            facts={"path": str(path)},
            retriable=True,
        ) from error
