"""The position of a stream, as Spark keeps it in a checkpoint: versioned JSON in one canonical form.

Rules: equal positions give equal text, because Spark compares texts, and a difference in key order would look
like new data. A text of a newer version is refused, never guessed. A text of Spark's own connector is read,
too, so a query can move here with its checkpoint. Each offset comes with what it is an offset *of*: the
topic's id and the leader epoch it was seen under, because a recreated or truncated log reuses the numbers.

`starts` is what makes a repeated batch equal to its first run. Spark gives each batch the end of the previous
one as its start, but it asks for the very first start again, and no earlier end knows a new partition. So the
end of a batch also holds where the batch begins, if the previous position does not.

>>> position = StreamPosition({TopicPartition("t", 0): 5})
>>> write_position(position)
{'version': 1, 'offsets': {'t': {'0': 5}}}
>>> read_position({"t": {"0": 5}}) == position
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition

VERSION = 1

#: The placeholder for a new query's start until it is resolved; never stored. Spark asks for the start again
#: when a first batch is repeated, and by then the rule may no longer fit, if a partition was added.
NOT_STARTED: Mapping[str, Any] = {"version": VERSION, "offsets": {}, "started": False}

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StreamPosition:
    """The next offset of each partition, and the log it belongs to.

    `gone` are partitions that had an offset and are missing now. Their offsets are kept so that nothing is
    read twice if the brokers only hid them for a moment.
    """

    offsets: Offsets
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)
    gone: Offsets = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return {each.topic for each in (*self.offsets, *self.gone)}

    @property
    def stands(self) -> dict[TopicPartition, int]:
        """Return the offsets of all partitions, including those that are gone."""
        return {**self.gone, **self.offsets}

    def start_of(self, partition: TopicPartition, before: StreamPosition) -> int | None:
        """Return where the batch that ends here begins, given the position before it."""
        return self.starts.get(partition, before.offsets.get(partition))

    def stands_at(self, other: StreamPosition) -> bool:
        """Return whether both are at the same offsets, whatever is known of their logs."""
        return self.offsets == other.offsets


NOWHERE = StreamPosition({})


def is_started(stored: Mapping[str, Any]) -> bool:
    return stored != NOT_STARTED


def write_position(position: StreamPosition) -> dict[str, Any]:
    """Return what Spark stores: topics by name, partitions by number, nothing empty."""
    written: dict[str, Any] = {"version": VERSION, "offsets": _nest(position.offsets)}
    if position.topic_ids:
        written["topicIds"] = {name: each.hex() for name, each in sorted(position.topic_ids.items())}
    if position.leader_epochs:
        written["leaderEpochs"] = _nest(position.leader_epochs)
    if position.starts:
        written["starts"] = _nest(position.starts)
    if position.gone:
        written["gone"] = _nest(position.gone)
    return written


def read_position(stored: object) -> StreamPosition:
    """Return the position in a stored text of this version or of Spark's own connector."""
    if not isinstance(stored, Mapping):
        raise _unreadable(stored, "it is not a JSON object")
    version = stored.get("version")
    if version is None or isinstance(version, Mapping):
        return StreamPosition(_flatten(stored, stored))  # Spark's: {"topic":{"0":5}}; no ids, no epochs
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _unreadable(stored, f"its version is {version!r}")
    if version > VERSION:
        raise OffsetStoreError(
            "CHECKPOINT_TOO_NEW",
            f"The checkpoint holds a position of version {version}; this Penstock reads up to {VERSION}.",
            hint="Run the query with the Penstock that wrote it, or a newer one.",
            facts={"version": version, "supported": VERSION},
        )
    return StreamPosition(
        _flatten(stored, stored.get("offsets")),
        _read_ids(stored),
        _flatten(stored, stored.get("leaderEpochs", {})),
        _flatten(stored, stored.get("starts", {})),
        _flatten(stored, stored.get("gone", {})),
    )


def _nest(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    by_topic = groupby(sorted(numbers), key=lambda each: each.topic)
    return {topic: {str(each.partition): numbers[each] for each in some} for topic, some in by_topic}


def _flatten(stored: Mapping[str, Any], nested: object) -> dict[TopicPartition, int]:
    if not isinstance(nested, Mapping):
        raise _unreadable(stored, "it has no offsets")
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in nested.items():
        if not isinstance(partitions, Mapping):
            raise _unreadable(stored, f"{topic!r} has no partitions")
        for partition, number in partitions.items():
            whole = isinstance(number, int) and not isinstance(number, bool) and number >= 0
            if not whole or not str(partition).isascii() or not str(partition).isdigit():
                raise _unreadable(stored, f"partition {partition!r} of {topic!r} is at {number!r}")
            numbers[TopicPartition(str(topic), int(partition))] = number
    return numbers


def _read_ids(stored: Mapping[str, Any]) -> dict[str, bytes]:
    ids = stored.get("topicIds", {})
    if not isinstance(ids, Mapping):
        raise _unreadable(stored, "its topic ids cannot be read")
    try:
        return {str(name): bytes.fromhex(each) for name, each in ids.items()}
    except (TypeError, ValueError):
        raise _unreadable(stored, "its topic ids cannot be read") from None


def _unreadable(stored: object, reason: str) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_UNREADABLE",
        f"A position in the checkpoint cannot be read: {reason}. It begins {str(stored)[:200]!r}.",
        hint="If the checkpoint belongs to another source, give this query its own; if a file was damaged, "
        "restore it.",
        facts={"reason": reason},
    )
