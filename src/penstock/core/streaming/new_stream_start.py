"""The start of a new stream: its start rule, bound to numbers once.

Rule: the start is resolved when the query first runs and never again. The end of the first batch carries the
result (`StreamPosition.starts`), so a repeated first batch begins where the first attempt began, not at a
newer `latest`. If nothing selected exists yet, the result is a position without partitions: the query has
started, and it reads what it finds later from the first offset, as Spark's own connector does.
"""

from __future__ import annotations

from penstock.core.errors import OffsetStoreError
from penstock.core.model import Ago, Latest, RecordsBeforeEnd
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.position_rules import PositionRule, list_positions
from penstock.core.planning.partition_selection import select_partitions
from penstock.core.planning.range_bounds import BatchRead, Snapshot, bound_spans, demand
from penstock.core.planning.task_splitting import PlanLimits
from penstock.core.streaming.log_changes import list_epochs

#: Makes planning ask for both ends of every partition: a stream's position is numbers, never words.
NUMBERS = PlanLimits(min_records_per_task=1)


def holds_start(end: StreamPosition) -> bool:
    """Return whether the stored end of a first batch also says where that batch begins.

    Every end that Penstock stores does. An end without partitions (a query that waits for its topics) needs
    no start. An end that Spark's own connector stored has partitions but no starts.
    """
    return bool(end.starts) or not end.offsets


def refuse_unknown_start(start: PositionRule) -> None:
    """Raise unless the start option still means the place it meant when the first batch was planned.

    This is for a first batch that Spark's own connector planned and did not finish: its start is not stored,
    so it must come from the option. By now, `latest` and times or counts back from now mean another place.
    """
    if any(isinstance(each, Latest | Ago | RecordsBeforeEnd) for each in list_positions(start)):
        raise OffsetStoreError(
            "FIRST_START_UNKNOWN",
            "The checkpoint has a first batch of another connector that was planned but not finished. The "
            "checkpoint does not say where it begins, and the start option would mean another place today.",
            hint="Finish that batch with the other connector first, or set `startingOffsets` to the offsets "
            "it began at (the file `0` in the checkpoint's folder `sources/0`).",
        )


def resolve_start(reading: BatchRead, snapshot: Snapshot) -> StreamPosition:
    """Return the first position. A start beyond the log's end is an error with facts."""
    partitions = select_partitions(reading.selection, snapshot.topics).partitions
    offsets = {
        span.partition: demand(span.start_number, span.partition, "start")
        for span in bound_spans(reading, snapshot, partitions)
    }
    views = {each.topic: snapshot.topics[each.topic] for each in partitions}
    return StreamPosition(
        offsets,
        {name: view.topic_id for name, view in views.items() if view.topic_id is not None},
        list_epochs(partitions, snapshot.topics),
        starts=offsets,
    )
