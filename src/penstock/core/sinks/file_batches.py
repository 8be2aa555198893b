"""Batches kept as folders: their names, and which of them a seek back deletes.

Rule: the name holds the offsets, so the same batch has the same name and replaces itself. Other batches may
have that name, too: a recreated topic counts from 0 again, and the names of a stream and its topic may read
together like two others. The folder's contents distinguish them, and two batches never share a folder. A name
too long for a file system becomes a digest.

>>> name_folder("visits", [OffsetRange("t", 0, 0, 40), OffsetRange("t", 1, 7, 7)])
'visits.t-0.0-40'
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import NOWHERE, StreamPosition
from penstock.core.prose import shorten
from penstock.core.sinks.ledger_rules import explain_moved, explain_went_back, list_missing

#: For each topic id, the ids of the logs whose place it has taken.
Logs: TypeAlias = Mapping[str, frozenset[str]]

_LONGEST = 180
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The contents of one folder; `topic_ids` are the ids of its topics, where they have one."""

    stream: str
    ranges: tuple[OffsetRange, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        ranges = [[each.topic, each.partition, each.start, each.until] for each in self.ranges]
        return {"stream": self.stream, "ranges": ranges, "topicIds": dict(self.topic_ids)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> StoredBatch:
        ids = sorted(found.get("topicIds", {}).items())
        return cls(str(found["stream"]), tuple(OffsetRange(*each) for each in found["ranges"]), tuple(ids))


def has_read(batch: StoredBatch, partition: TopicPartition, first: int | None, last: int | None) -> bool:
    """Return whether the batch can hold the partition's offsets from `first` to `last`."""
    if first is None or last is None:
        return False
    return any(
        each.topic_partition == partition and each.start <= first and last < each.until
        for each in batch.ranges
    )


def is_repeated(position: StreamPosition | None, before: StreamPosition, end: StreamPosition) -> bool:
    """Return whether results up to `position` hold the batch already; never so if the batch moves nothing."""
    return position is not None and position.stands_at(end) and not before.stands_at(end)


def make_batch(stream: str, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]) -> StoredBatch:
    """Return the batch of these offsets; empty ranges leave no trace in a folder."""
    sized = tuple(each for each in ranges if each.size)
    topics = {each.topic for each in sized}
    ids = sorted((topic, each.hex()) for topic, each in topic_ids.items() if topic in topics)
    return StoredBatch(stream, sized, tuple(ids))


def name_folder(stream: str, ranges: Sequence[OffsetRange]) -> str:
    """Return the name of the folder of these offsets."""
    parts = [f"{each.topic}-{each.partition}.{each.start}-{each.until}" for each in ranges if each.size]
    whole = f"{quote(stream, safe='')}.{'_'.join(parts)}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - 33]}.{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def list_ahead(batch: StoredBatch, position: StreamPosition, logs: Logs) -> list[OffsetRange]:
    """Return the batch's ranges that lie beyond a position, at least in part.

    Offsets of a recreated topic belong to another log, and nothing of the old one is read again.
    """
    ids, stands = dict(batch.topic_ids), position.stands
    return [
        each
        for each in batch.ranges
        if each.until > stands.get(each.topic_partition, each.until)
        and _is_same_log(ids.get(each.topic), position.topic_ids.get(each.topic), logs)
    ]


def list_logs(changes: Iterable[Change]) -> Logs:
    """Return for each adopted topic id the earlier ids whose records it has, at the same offsets."""
    logs: dict[str, frozenset[str]] = {}
    for change in changes:
        before = {} if change.before is None else change.before.topic_ids
        for topic, new in change.after.topic_ids.items():
            old = before.get(topic, new).hex()
            if change.verb == "adopt" and old != new.hex():
                logs[new.hex()] = logs.get(old, frozenset()) | {old}
    return logs


def _is_same_log(one: str | None, other: bytes | None, logs: Logs) -> bool:
    return one is None or other is None or one in {other.hex(), *logs.get(other.hex(), ())}


def choose_dropped(stored: Mapping[Path, StoredBatch], position: StreamPosition, logs: Logs) -> list[Path]:
    """Return the folders that lie beyond a position. A folder that crosses the position is an error."""
    dropped = []
    for path, batch in stored.items():
        beyond = list_ahead(batch, position, logs)
        if not beyond:
            continue
        if _begins_before(batch, position):
            raise OptionError(
                "SEEK_INSIDE_BATCH",
                f"The position lies inside a batch that is stored as one folder: {path.name}.",
                hint="Seek to where a batch begins; the folders' names show it.",
                facts={"folder": path.name},
            )
        dropped.append(path)
    return dropped


def _begins_before(batch: StoredBatch, position: StreamPosition) -> bool:
    known = [each for each in batch.ranges if each.topic_partition in position.offsets]
    return any(each.start < position.offsets[each.topic_partition] for each in known)


# --- errors of a writer ---------------------------------------------------------------------------------


def find_folder_refusal(
    stream: str, left: Sequence[StreamPosition | None], found: StreamPosition | None
) -> OffsetStoreError | None:
    """Return why nothing may be published over the offsets found, or None if the writer may have left them.

    `left` is what the writer stored or found last, then what it has tried to store since.
    """
    if found in left:
        return None
    missing = list_missing((found or NOWHERE).stands, (left[0] or NOWHERE).stands)
    if missing:
        return explain_went_back(
            stream,
            "batches that this writer has published or found there",
            missing,
            is_named=False,
            place="folder",
            hint="Restore the newest state of the folder, including `_penstock` in it. If there is none, "
            "start the stream again: it goes on where the offsets in it say.",
        )
    return explain_moved(stream, "The offsets in the folder are not those that this writer left there")


def explain_gone(stream: str, name: str, batch: StoredBatch) -> OffsetStoreError:
    """Return the error for a folder of the newest batch that was removed while its writer ran."""
    return explain_went_back(
        stream,
        f"the newest batch, the folder {name}",
        {each.topic_partition: (each.start, each.until) for each in batch.ranges},
        is_named=False,
        place="folder",
        hint="Restore it. To write its rows again, seek the stream to where the batch begins. A job that "
        "loads folders elsewhere and removes them must leave the newest one.",
    )


def find_ahead(
    stream: str, position: StreamPosition | None, stored: Mapping[Path, StoredBatch], logs: Logs
) -> OffsetStoreError | None:
    """Return the error for folders whose rows a stream that starts at this position would write again."""
    ahead = sorted(
        path.name for path, batch in stored.items() if position is None or list_ahead(batch, position, logs)
    )
    if not ahead:
        return None
    cut = sorted(
        path.name
        for path, batch in stored.items()
        if path.name in ahead and position is not None and _begins_before(batch, position)
    )
    last_resort = (
        f"The offsets lie inside {', '.join(cut[:_SHOWN])}: take the stream back to where that batch begins "
        "(`penstock offsets rewind`) before you remove a folder, or its first rows would be lost."
        if cut
        else "If there are none, remove these folders: the stream then writes their rows again."
    )
    stands = ", ".join(f"{each} at {offset}" for each, offset in sorted((position or NOWHERE).stands.items()))
    return OffsetStoreError(
        "FOLDERS_AHEAD",
        f"The offsets of the stream {stream} ({stands or 'none are stored'}) are older than {len(ahead)} of "
        f"its folders: {shorten(ahead, _SHOWN)}. Their rows would be written a second time.",
        hint=f"Restore the newest offsets (`_penstock` in the sink's folder). {last_resort}",
        facts={"stream": stream, "folders": ahead},
    )
