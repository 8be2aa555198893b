"""Offsets in a folder, one small file per stream.

Rules: a file is replaced whole. The new one is written beside it, flushed to the disk and renamed, and the
folder is flushed too, so after a power cut there is either the old file or the new one. It carries a
checksum: a file that another program changed, or that a disk damaged, is an error and never a position. A
save holds the stream's lock, so a program never overwrites a position it has not seen. Why not append to a
log: nothing needs the old positions, and a crash cuts the last line of a log in half. (Changes by hand are
kept in such a log. Its last line may be missing, but the position never is.)

The folder is the namespace: give each application its own. It must be on one computer, or on a network disk
where `flock` and flushing work.

    store = FileOffsetStore("offsets")
    store.save("visits", position)      # offsets/visits.json
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.offset_store_contract import Change, OffsetStore, refuse_going_back, refuse_moved
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.durable_files import append_line, replace_durably
from penstock.stores.offsets.position_documents import (
    damaged,
    read_change_document,
    read_document,
    read_stream_name,
    write_change_document,
    write_document,
    write_name,
)

#: How long to wait for another program that is saving the same stream.
LOCK_TIMEOUT_S = 30.0
_LOCK_POLL_S = 0.01
_END = ".json"
#: A file name has 255 bytes at most, including our suffixes; a longer one is replaced by its digest.
_LONGEST_FILE_NAME = 200


class FileOffsetStore(OffsetStore):
    """The offset store in a folder. The folder is created when it is missing, unless `create` is off."""

    def __init__(self, folder: Path | str, *, create: bool = True) -> None:
        self._folder = Path(folder)
        if create:
            with _telling(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
        elif not self._folder.is_dir():
            raise OffsetStoreError(
                "OFFSETS_NOT_FOUND",
                f"There is no folder {self._folder}.",
                hint="Check the path: it must be the one that the stream names as its store.",
                facts={"path": str(self._folder)},
            )

    def __repr__(self) -> str:
        return f"FileOffsetStore({str(self._folder)!r})"

    def __str__(self) -> str:
        return f"the folder {self._folder}"

    def suggest_place(self, stream: str | None = None) -> str:  # noqa: ARG002
        inner = self._folder / "_penstock" / "offsets"
        return f"It is the folder of a file sink, whose offsets are in {inner}." if inner.is_dir() else ""

    def find_file_sink(self) -> Path | None:
        own = self._folder.absolute().parent
        return own.parent if self._folder.name == "offsets" and own.name == "_penstock" else None

    def load(self, stream: str) -> StreamPosition | None:
        path = self._path(stream)
        content = _read(path)
        return None if content is None else read_document(str(path), stream, content)

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        path = self._path(stream)
        with _alone(path):
            if not may_go_back:
                refuse_going_back(stream, self.load(stream), position)
            _replace(path, write_document(stream, position))

    def list_streams(self) -> list[str]:
        found = []
        for path in self._folder.glob(f"*{_END}"):
            content = _read(path)
            if content is not None:  # None: the file was removed just now
                found.append(read_stream_name(str(path), content))
        return sorted(found)

    def change(self, stream: str, change: Change) -> None:
        path = self._path(stream)
        with _alone(path):
            refuse_moved(stream, self.load(stream), change)
            # The note comes first: a crash in between leaves one note too many, never an unrecorded change.
            notes = path.with_suffix(".changes")
            with _telling(notes):
                append_line(notes, write_change_document(change))
            _replace(path, write_document(stream, change.after))

    def list_changes(self, stream: str) -> list[Change]:
        path = self._path(stream).with_suffix(".changes")
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, error) from error
        return [read_change_document(str(path), line) for line in lines if line.endswith("\n")]

    def _path(self, stream: str) -> Path:
        name = write_name(stream)
        if len(name) > _LONGEST_FILE_NAME:
            # No quoted name begins like this.
            name = f"%long-{hashlib.sha256(name.encode()).hexdigest()}"
        return self._folder / f"{name}{_END}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the stream's lock, so that no other program saves it. The lock ends with its holder's process."""
    with _telling(path):
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise _busy(path) from None
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error


def _read(path: Path) -> str | None:
    """Return the file's text after checking its checksum; None when there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise damaged(str(path), "it is not text") from None
    except OSError as error:
        raise _unusable(path, error) from error
    content, _, rest = text.partition("\n")
    if rest != f"{_sum(content)}\n":
        raise damaged(str(path), "its checksum does not match")
    return content


def _replace(path: Path, content: str) -> None:
    # The lock allows one writer at a time, so it is safe to overwrite what a crash has left.
    beside = path.with_suffix(".new")
    with _telling(path):
        replace_durably(path, f"{content}\n{_sum(content)}\n", beside=beside)


def _sum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _busy(path: Path) -> OffsetStoreError:
    return OffsetStoreError(
        "OFFSETS_BUSY",
        f"Another program has held {path} for more than {LOCK_TIMEOUT_S:g} s.",
        hint=f"Look at what has it open (`fuser -v {path.with_suffix('.lock')}` names it), then try again.",
        facts={"path": str(path)},
        retriable=True,
    )


def _unusable(path: Path, error: Exception) -> OffsetStoreError:
    return OffsetStoreError(
        "OFFSETS_UNUSABLE",
        f"{path} cannot be used: {error}.",
        hint="Check the path, its permissions and the free space.",
        facts={"path": str(path)},
    )
