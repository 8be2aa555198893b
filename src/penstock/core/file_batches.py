"""Batches kept as folders: their names, and which of them a seek back takes away.

Rule: the name says the offsets, so the same batch has the same name and replaces itself. Other batches may
have that name, too: a topic that was made anew counts from 0 again, and a stream and its topic may be named
so that together they read like two others. What is in the folder tells; two batches never share one. A name
too long for a file system is told by a digest.

>>> name_batch("visits", [OffsetRange("t", 0, 0, 40), OffsetRange("t", 1, 7, 7)])
'visits.t-0.0-40'
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.core.errors import OptionError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.stream_offsets import Offsets

_LONGEST = 180


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """What one folder holds; `topic_ids` are those of the topics it came from, where they have one."""

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
    """Whether offsets of the partition from the first to the last can be the batch's."""
    if first is None or last is None:
        return False
    return any(
        each.topic_partition == partition and each.start <= first and last < each.until
        for each in batch.ranges
    )


def make_batch(stream: str, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]) -> StoredBatch:
    """The batch of these offsets; empty ranges leave no trace in a folder."""
    sized = tuple(each for each in ranges if each.size)
    topics = {each.topic for each in sized}
    ids = sorted((topic, each.hex()) for topic, each in topic_ids.items() if topic in topics)
    return StoredBatch(stream, sized, tuple(ids))


def name_batch(stream: str, ranges: Sequence[OffsetRange]) -> str:
    """A name for the folder of these offsets."""
    parts = [f"{each.topic}-{each.partition}.{each.start}-{each.until}" for each in ranges if each.size]
    whole = f"{quote(stream, safe='')}.{'_'.join(parts)}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - 33]}.{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def choose_dropped(stored: Mapping[Path, StoredBatch], offsets: Offsets) -> list[Path]:
    """The folders that lie beyond a position. One that lies on both sides of it is an error."""
    dropped = []
    for path, batch in stored.items():
        known = [each for each in batch.ranges if each.topic_partition in offsets]
        beyond = [each for each in known if each.until > offsets[each.topic_partition]]
        if not beyond:
            continue
        inside = [each for each in known if each.start < offsets[each.topic_partition]]
        if inside:
            raise OptionError(
                "SEEK_INSIDE_BATCH",
                f"The position lies inside a batch that is stored as one folder: {path.name}.",
                hint="Seek to where a batch begins; the folders' names say it.",
                facts={"folder": path.name},
            )
        dropped.append(path)
    return dropped
