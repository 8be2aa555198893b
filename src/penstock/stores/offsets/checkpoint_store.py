"""The offsets in a Spark checkpoint: to read, to copy from, and to move by hand. Spark writes them.

For each batch N, a query's checkpoint has a file `offsets/N`, which says where the batch ends, with one line
per source, and a file `commits/N` once the batch is done. The stream's position is the end of the last batch
that is done. To move the stream, its line in that file is replaced, and a batch that was planned but not done
is dropped, so that Spark plans it again.

Rules: a stream here is a source of the query, named by its number, starting at 0. Only the line of that
source is changed, and it keeps its form (including that of Spark's own connector). The rest of the query, its
state and what its sink has written, is not moved: an aggregation continues with what it has counted. Only
local folders work.

    store = CheckpointOffsetStore("checkpoints/visits")
    store.load("0")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.offset_store_contract import Change, OffsetStore, refuse_moved
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position
from penstock.stores.durable_files import append_line, replace_durably
from penstock.stores.offsets.position_documents import read_change_document, write_change_document

#: The version line of Spark's layout with one line per source.
_LAYOUT = "v1"
_HEAD_LINES = 2  # the version line, and Spark's metadata of the batch
_NOTES = "penstock-changes-{}.jsonl"


class CheckpointOffsetStore(OffsetStore):
    """The offset store in a checkpoint folder.

    It does not notice a running query unless its position changes: stop the query first.
    """

    label = "source "

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        if not (self._folder / "offsets").is_dir():
            raise OffsetStoreError(
                "CHECKPOINT_NOT_FOUND",
                f"{self._folder} is not a checkpoint of a Spark query: it has no folder `offsets`.",
                hint="Name the query's `checkpointLocation`; if it is not on this computer, copy it here.",
                facts={"folder": str(self._folder)},
            )

    def __repr__(self) -> str:
        return f"CheckpointOffsetStore({str(self._folder)!r})"

    def __str__(self) -> str:
        return f"the checkpoint {self._folder}"

    def list_warnings(self, stream: str) -> list[str]:  # noqa: ARG002
        planned = self.list_planned()
        warnings = [f"Batch {each} was planned but is not done; it is planned again." for each in planned]
        if (self._folder / "state").is_dir():
            warnings.append(
                "The query keeps state, which stays as it is: rows that are read again count again."
            )
        return warnings

    def list_batches(self) -> list[int]:
        """Return the batches that are done and whose end is still known."""
        return sorted(_numbers(self._folder / "offsets") & _numbers(self._folder / "commits"))

    def list_planned(self) -> list[int]:
        """Return the batches that were planned but are not done."""
        done = self.list_batches()
        return sorted(each for each in _numbers(self._folder / "offsets") if not done or each > done[-1])

    def load_batch(self, stream: str, batch: int) -> StreamPosition:
        """Return the position where this batch ended."""
        if batch not in self.list_batches():
            known = self.list_batches()
            raise OffsetStoreError(
                "NO_SUCH_BATCH",
                f"{self._folder} does not know the end of a finished batch {batch}.",
                hint=f"It knows those from {known[0]} to {known[-1]}." if known else "It knows none.",
                facts={"folder": str(self._folder), "batch": batch},
            )
        return read_position(self._read_source(batch, stream))

    def load(self, stream: str) -> StreamPosition | None:
        done = self.list_batches()
        return self.load_batch(stream, done[-1]) if done else None

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> NoReturn:  # noqa: ARG002
        raise OffsetStoreError(
            "CHECKPOINT_IS_SPARKS",
            "Only Spark writes a checkpoint; a stream of another kind cannot keep its offsets there.",
            hint="Name another offset store, such as a folder or a database.",
        )

    def list_streams(self) -> list[str]:
        """Return the sources with readable positions: Penstock's and those of Spark's Kafka connector."""
        done = self.list_batches()
        if not done:
            return []
        lines = self._read_lines(done[-1])[_HEAD_LINES:]
        return [str(number) for number, line in enumerate(lines) if _is_readable(line)]

    def check_change(self, stream: str, change: Change) -> None:
        done = self.list_batches()
        if not done:
            raise OffsetStoreError(
                "CHECKPOINT_NOT_STARTED",
                f"No batch in {self._folder} is done, so there is no position to move.",
                hint="Start the query at the position it should have, or let it finish a batch first.",
                facts={"folder": str(self._folder)},
            )
        refuse_moved(stream, self.load(stream), change)
        self._find_source(stream, self._read_lines(done[-1]))

    def change(self, stream: str, change: Change) -> None:
        self.check_change(stream, change)
        done = self.list_batches()
        lines = self._read_lines(done[-1])
        place = _HEAD_LINES + self._find_source(stream, lines)
        lines[place] = _write_like(json.loads(lines[place]), change.after)
        # First note the change, then drop the plan, then move the stream: a crash at any point leaves a
        # position that was intended, the old one or the new one.
        append_line(self._folder / _NOTES.format(stream), write_change_document(change))
        for planned in self.list_planned():
            _remove(self._folder / "offsets" / f"{planned}")
        _replace(self._folder / "offsets" / f"{done[-1]}", "\n".join(lines))

    def list_changes(self, stream: str) -> list[Change]:
        path = self._folder / _NOTES.format(stream)
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [read_change_document(str(path), line) for line in lines if line.endswith("\n")]

    def _read_lines(self, batch: int) -> list[str]:
        path = self._folder / "offsets" / f"{batch}"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(batch, _tell(error)) from error
        if not lines or lines[0] != _LAYOUT or len(lines) <= _HEAD_LINES:
            raise self._unreadable(
                batch, f"its layout is {lines[0] if lines else 'nothing'!r}, not {_LAYOUT!r}"
            )
        return lines

    def _read_source(self, batch: int, stream: str) -> Mapping[str, Any]:
        lines = self._read_lines(batch)
        stored = json.loads(lines[_HEAD_LINES + self._find_source(stream, lines)])
        assert isinstance(stored, dict)
        return stored

    def _find_source(self, stream: str, lines: list[str]) -> int:
        sources = lines[_HEAD_LINES:]
        number = int(stream) if stream.isascii() and stream.isdigit() else -1
        if not 0 <= number < len(sources) or not _is_readable(sources[number]):
            known = [str(place) for place, line in enumerate(sources) if _is_readable(line)]
            raise OffsetStoreError(
                "NO_SUCH_SOURCE",
                f"{self._folder} has no source {stream!r} with Kafka offsets.",
                hint=f"Name one by its number: {', '.join(known) or 'there is none'}.",
                facts={"folder": str(self._folder), "source": stream},
            )
        return number

    def _unreadable(self, batch: int, why: str) -> OffsetStoreError:
        return OffsetStoreError(
            "CHECKPOINT_UNREADABLE",
            f"Batch {batch} in {self._folder} cannot be read: {why}.",
            hint="If a file was damaged, restore it; a checkpoint of another layout cannot be moved here.",
            facts={"folder": str(self._folder), "batch": batch},
        )


def _tell(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return (error.strerror or "the disk refuses it").lower()


def _numbers(folder: Path) -> set[int]:
    return {int(each.name) for each in folder.glob("*") if each.name.isascii() and each.name.isdigit()}


def _is_readable(line: str) -> bool:
    """Return whether this is a Kafka source's position; Spark writes `-` where there is none yet."""
    try:
        stored = json.loads(line)
        read_position(stored)
    except (ValueError, OffsetStoreError):
        return False
    return isinstance(stored, dict) and bool(stored)


def _write_like(stored: Mapping[str, Any], position: StreamPosition) -> str:
    written = write_position(position)
    if isinstance(stored.get("version"), int):
        return json.dumps(written)
    # Spark's own connector stores only the offsets.
    return json.dumps(written["offsets"], separators=(",", ":"))


def _remove(path: Path) -> None:
    _checksum(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.penstock")
    # Remove Spark's checksum of the old text. Spark accepts a file without one.
    _checksum(path).unlink(missing_ok=True)
    replace_durably(path, text, beside=beside)


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
