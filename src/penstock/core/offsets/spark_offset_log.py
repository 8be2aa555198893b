"""Reads one entry of a checkpoint's offset log: Spark's plan for one batch of a query.

Rule: an unreadable entry is an error, never a guess: its offsets decide what counts as written. An entry is
`v1`, a line of settings, then one line for each source of the query; a dash is a source that has no offset
yet. Sources of one query must not share a partition: its offset would be ambiguous.

>>> read_entry('v1\\n{"batchWatermarkMs":0}\\n{"t":{"0":5}}').offsets
{TopicPartition(topic='t', partition=0): 5}
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition, read_position

_VERSION = "v1"


def read_entry(text: str) -> StreamPosition:
    """Return the end of the batch that the entry describes."""
    lines = text.strip().split("\n")
    if lines[0].strip() != _VERSION or len(lines) < 3:
        raise _unreadable(text, f"it is not an entry of version {_VERSION}")
    positions = []
    for line in lines[2:]:
        if line.strip() == "-":
            continue
        try:
            stored = json.loads(line)
        except ValueError as error:
            raise _unreadable(text, "a source's line is not JSON") from error
        positions.append(read_position(stored))
    if not positions:
        raise _unreadable(text, "no source has an offset in it")
    return _join(positions, text)


def _join(positions: Sequence[StreamPosition], text: str) -> StreamPosition:
    seen: set[TopicPartition] = set()
    for each in positions:
        mine = {*each.offsets, *each.gone}
        if seen & mine:
            raise _unreadable(text, f"two sources of the query read {min(seen & mine)}")
        seen |= mine
    return StreamPosition(
        {key: value for each in positions for key, value in each.offsets.items()},
        {key: value for each in positions for key, value in each.topic_ids.items()},
        {key: value for each in positions for key, value in each.leader_epochs.items()},
        {key: value for each in positions for key, value in each.starts.items()},
        {key: value for each in positions for key, value in each.gone.items()},
    )


def _unreadable(text: str, reason: str) -> OffsetStoreError:
    return OffsetStoreError(
        "OFFSET_LOG_UNREADABLE",
        f"An entry of the checkpoint's offset log cannot be read: {reason}. It begins {text[:200]!r}.",
        hint="All sources of the query must be Kafka's, by this or by Spark's own connector; if the file was "
        "damaged, restore it.",
        facts={"reason": reason},
    )
