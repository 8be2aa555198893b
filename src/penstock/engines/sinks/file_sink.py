"""Results as files: a folder for each batch, named after its offsets, visible as a whole or not at all.

Rules: rows are written to a hidden folder, flushed to the disk, and become visible by one rename, which is
the commit. The rename is noted before it happens, and the offsets are stored after it. So a crash leaves
either no folder and the old offsets, or the folder and a note from which the next start stores the offsets. A
batch that is done again replaces its folder. A seek back is also noted before it removes folders. Nothing is
deleted while it is visible, because a crash would leave half of it. There is one writer: another is refused
while this one lives, even if it is paused, because both would rename. A writer publishes only over the last
state it left itself: it does not write to a folder that was restored to an earlier copy meanwhile.

The folder must be on a disk that all executors see: a stream checks when it starts, and each batch is
compared with what its tasks say they wrote before it becomes visible. `spark.read.parquet(folder)` reads all
batches; the column `batch` says which one a row belongs to.

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

from penstock.core.errors import OptionError, PenstockError, SinkError
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position
from penstock.core.sinks.file_batches import (
    Logs,
    StoredBatch,
    choose_dropped,
    explain_gone,
    find_ahead,
    find_folder_refusal,
    is_repeated,
    list_logs,
    make_batch,
    name_folder,
)
from penstock.core.sinks.ledger_rules import explain_moved
from penstock.core.sinks.sink_contract import BatchOutcome, Sink, SinkWriter
from penstock.core.streaming.next_batch import list_ranges
from penstock.engines.sinks.task_output_checks import check_files, check_shared, save_frame
from penstock.stores.durable_files import flush_to_disk, write_to_disk
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.position_documents import write_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FileFormat: TypeAlias = Literal["parquet", "orc", "json", "csv"]
FORMATS: tuple[FileFormat, ...] = ("parquet", "orc", "json", "csv")
#: Our own folder, beside the batches; Spark does not read names that begin with an underscore.
OWN = "_penstock"
RANGES = "_ranges.json"
VERSION = 1


@dataclass(frozen=True)
class FileSink(Sink):
    """A file sink's settings: batches become folders of files."""

    folder: Path | str
    format: FileFormat = "parquet"

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


class FileWriter(SinkWriter):
    """The only writer of one stream, as long as it is open."""

    def __init__(self, sink: FileSink, stream: str) -> None:
        self._folder, self._format, self._stream = Path(sink.folder), sink.format, stream
        own = self._folder / OWN
        with _telling(own):
            own.mkdir(parents=True, exist_ok=True)
        self._name = write_name(stream)
        self._note = own / f"{self._name}.next"
        self._lock = _lock(own / f"{self._name}.lock", stream)
        self._store = FileOffsetStore(own / "offsets")
        self._newest: tuple[Path, StoredBatch] | None = None
        self._tried: Path | None = None
        try:
            with _telling(own):
                self._begin(own)
            self._position = self._store.load(stream)
            self._refuse_ahead()
        except PenstockError:
            self.close()  # the next writer may find it repaired
            raise
        #: The offsets that may be found stored: those stored last, then those of attempts that failed since.
        self._left: list[StreamPosition | None] = [self._position]

    @property
    def position(self) -> StreamPosition | None:
        return self._position

    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> BatchOutcome:
        """Write a frame as one batch and return the outcome. Without results (an empty mapping) only move the
        offsets, even back."""
        self._check_left()
        if is_repeated(self._position, before, end):
            return BatchOutcome(0, was_repeated=True)
        with _telling(self._folder):
            rows = 0
            if results:
                rows = self._publish(results, before, end)
            else:
                self._go_back(end)
            self._left.append(end)
            self._store.save(self._stream, end, may_go_back=True)
            self._note.unlink(missing_ok=True)
        self._position, self._left, self._tried = end, [end], None
        return BatchOutcome(rows)

    def check_shared(self, session: SparkSession) -> None:
        """Raise an error if executors see another folder under this path than this program."""
        with _telling(self._folder):
            check_shared(session, self._folder / OWN)

    def close(self) -> None:
        """Release the lock, so that the next writer can open the sink. What was written stays."""
        self._lock.close()

    # --- the start --------------------------------------------------------------------------------------

    def _begin(self, own: Path) -> None:
        """Remove or finish what a crash has left behind."""
        mine = re.compile(rf"new-{re.escape(self._name)}-[0-9a-f]{{16}}")  # not those of a stream "x-y"
        for left in own.glob("new-*"):
            if mine.fullmatch(left.name):
                shutil.rmtree(left)
        self._finish()

    def _refuse_ahead(self) -> None:
        """Raise an error if the offsets are older than the folders, because rows would be written twice."""
        with _telling(self._folder):
            refusal = find_ahead(self._stream, self._position, self._list_mine(), self._list_logs())
        if refusal is not None:
            raise refusal

    # --- one batch --------------------------------------------------------------------------------------

    def _publish(self, frame: DataFrame, before: StreamPosition, end: StreamPosition) -> int:
        batch = make_batch(self._stream, list_ranges(before, end), end.topic_ids)
        place = self._choose_place(batch)
        beside = self._name_beside()
        told = save_frame(frame, self._format, beside)
        check_files(frame, beside, self._format, told)
        ranges = {"version": VERSION, **batch.as_dict(), "rows": told.rows}
        write_to_disk(beside / RANGES, json.dumps(ranges).encode())
        for path in (*beside.rglob("*"), beside):
            flush_to_disk(path)
        self._check_left()  # once more: the tasks may have taken long
        self._note_next(place.name, end)
        if place.exists():
            self._drop(place)  # an earlier run of the same batch
        self._tried = place
        _make_visible(beside, place)
        self._newest = place, batch
        return told.rows

    def _check_left(self) -> None:
        """Raise an error if the state found is not the one that this writer left."""
        with _telling(self._folder):
            refusal = find_folder_refusal(self._stream, self._left, self._store.load(self._stream))
            if refusal is None and self._newest is not None and not self._newest[0].exists():
                refusal = explain_gone(self._stream, self._newest[0].name, self._newest[1])
            if refusal is None and not _is_held(self._lock):
                refusal = explain_moved(self._stream, f"The lock file {self._lock.name} was replaced")
        if refusal is not None:
            raise refusal

    def _choose_place(self, batch: StoredBatch) -> Path:
        """Return the batch's folder; if another batch has that name, add the next free number. Batches that
        read nothing share a name, so only the folder of an attempt that has just failed is used again."""
        name = f"batch={name_folder(batch.stream, batch.ranges)}"
        number, place = 1, self._folder / name
        while place.exists() and (read_batch(place) != batch or (not batch.ranges and place != self._tried)):
            number += 1
            place = self._folder / f"{name}~{number}"
        return place

    def _name_beside(self) -> Path:
        return self._folder / OWN / f"new-{self._name}-{secrets.token_hex(8)}"

    def _note_next(self, folder: str | None, position: StreamPosition) -> None:
        """Note what is about to happen: `folder` becomes visible or, if it is None, the folders beyond the
        position are removed."""
        note = {"version": VERSION, "folder": folder, "position": write_position(position)}
        write_to_disk(self._note, json.dumps(note).encode())
        flush_to_disk(self._note.parent)

    def _finish(self) -> None:
        """Finish what a crash interrupted: store the offsets of a batch whose folder exists (a batch without
        a folder never happened), and complete a seek back that had begun."""
        noted = read_note(self._note)
        if noted is not None:
            folder, position = noted
            if folder is None:
                self._go_back(position)
            if folder is None or (self._folder / folder).exists():
                self._store.save(self._stream, position, may_go_back=True)
        self._note.unlink(missing_ok=True)

    def _go_back(self, position: StreamPosition) -> None:
        """Remove the batches that a seek back will read again, so that their rows are not there twice. Note
        it first, because a crash in between would leave offsets of rows that are gone."""
        going = choose_dropped(self._list_mine(), position, self._list_logs())
        if going:
            self._note_next(None, position)
        for path in going:
            self._drop(path)

    def _list_mine(self) -> dict[Path, StoredBatch]:
        return list_batches(self._folder, self._stream)

    def _list_logs(self) -> Logs:
        return list_logs(self._store.list_changes(self._stream))

    def _drop(self, path: Path) -> None:
        """Hide the folder in one step, then delete it."""
        if self._newest is not None and self._newest[0] == path:
            self._newest = None
        beside = self._name_beside()
        path.rename(beside)
        flush_to_disk(path.parent)
        shutil.rmtree(beside)


def _make_visible(beside: Path, place: Path) -> None:
    beside.rename(place)
    flush_to_disk(place.parent)


def read_note(note: Path) -> tuple[str | None, StreamPosition] | None:
    """Return what was about to happen: the folder to become visible (None if the folders beyond the position
    were to be removed), and the position after it. Return None if there is no usable note."""
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # no note, or one that was cut off while being written: nothing was renamed yet
    if not isinstance(noted, dict):
        return None
    return noted["folder"], read_position(noted["position"])


def read_batch(path: Path) -> StoredBatch | None:
    """Return the batch stored in a folder, or None if it is not one of ours."""
    try:
        return StoredBatch.from_dict(json.loads((path / RANGES).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def list_batches(folder: Path, stream: str) -> dict[Path, StoredBatch]:
    """Return the stream's visible batches in a sink's folder."""
    stored = {path: batch for path in folder.glob("batch=*") if (batch := read_batch(path))}
    return {path: batch for path, batch in stored.items() if batch.stream == stream}


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
            hint="Run one at a time; `fuser -v` on the lock file names it. End it, even if it is paused.",
            facts={"stream": stream, "lock": str(path)},
        ) from error
    return file


def _is_held(lock: IO[str]) -> bool:
    """Return whether the lock's path still leads to the locked file; a replaced file would let others in."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat())
    except FileNotFoundError:
        return False


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
