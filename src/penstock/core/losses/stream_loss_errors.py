"""The ways in which a stream can lose rows, each with its own condition and its exact range.

Names are those of Spark's connector where it has one, so that familiar searches still work. `TOPIC_RECREATED`
and `LOG_TRUNCATED` are ours: Spark's connector does not notice them.

Rule: a loss is described from numbers that its finder passes. No partition is looked up in the position: one
that was gone and is back is still listed there as gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import DataLossError
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import TopicPartition, TopicView

_SHOWN = 20


def explain_stream_losses(losses: Sequence[Loss], *, fixed_group: str | None = None) -> DataLossError:
    """Return one error for these losses, with the first one's condition and every range in its text."""
    first = losses[0]
    hint = "Set `failOnDataLoss` to false to go on with what is there; `lossLedger` then records the losses."
    if fixed_group is not None and first.condition == "PARTITIONS_DELETED":
        hint += f" Queries that share the group {fixed_group} (`kafka.group.id`) can disturb each other."
    details = " ".join(each.detail for each in losses[:_SHOWN])
    more = f" And {len(losses) - _SHOWN} more." if len(losses) > _SHOWN else ""
    return DataLossError(
        first.condition,
        details + more,
        hint=hint,
        facts={
            "losses": [
                (each.condition, each.topic, each.partition, each.start, each.until) for each in losses
            ]
        },
    )


def added_late(each: TopicPartition, first: int, topic: TopicView) -> Loss:
    return Loss(
        "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
        each.topic,
        each.partition,
        0,
        first,
        topic.topic_id,
        f"{each} is new, but its log already begins at {first}: offsets [0, {first}) were never seen.",
    )


def recreated(
    each: TopicPartition,
    stored: int,
    old: bytes | None,
    topic: TopicView,
    first: int,
    end: int,
    known_end: int,
) -> Loss:
    how = f"id {old.hex()}, now {topic.topic_id.hex()}" if old and topic.topic_id else ""
    how = how or "its leader epochs begin anew"
    return Loss(
        "TOPIC_RECREATED",
        each.topic,
        each.partition,
        stored,
        max(stored, known_end),
        old,
        f"{each}: the topic was deleted and created again ({how}). What the old one held from {stored} on "
        f"is lost; the new one holds [{first}, {end}).",
        goes_on=f"The new topic is read from its start, {first}",
    )


def truncated(each: TopicPartition, stored: int, epoch: int, topic: TopicView, cut: int, end: int) -> Loss:
    return Loss(
        "LOG_TRUNCATED",
        each.topic,
        each.partition,
        cut,
        stored,
        topic.topic_id,
        f"{each}: a new leader (epoch {topic.leader_epoch(each.partition)}, was {epoch}) has cut the log off "
        f"at {cut}. The offsets [{cut}, {stored}), already read, now stand for other rows or none; the log "
        f"ends at {end}.",
        goes_on=f"What stands from {cut} on now is read",
    )


def aged_out(each: TopicPartition, stored: int, first: int, topic: TopicView) -> Loss:
    return Loss(
        "START_OFFSET_RESET",
        each.topic,
        each.partition,
        stored,
        first,
        topic.topic_id,
        f"{each}: offsets [{stored}, {first}) were deleted before they were read; the log begins at {first}.",
    )


def went_back(each: TopicPartition, stored: int, end: int, known_end: int, topic: TopicView) -> Loss:
    if stored > end:
        what = f"before the position {stored} that was already reached."
    else:
        what = f"but was seen to end at {known_end} before; it was read up to {stored}."
    return Loss(
        "PARTITION_OFFSET_CHANGED",
        each.topic,
        each.partition,
        end,
        max(stored, known_end),
        topic.topic_id,
        f"{each}: the log ends at {end}, {what}",
        goes_on=f"What comes from {stored} on is read",
    )


def deleted(each: TopicPartition, stored: int, topic_id: bytes | None, known_end: int) -> Loss:
    until = max(stored, known_end)
    seen = f" and was last seen to end at {until}." if until > stored else "; what came later is lost."
    return Loss(
        "PARTITIONS_DELETED",
        each.topic,
        each.partition,
        stored,
        until,
        topic_id,
        f"{each} is gone. It was read up to {stored}{seen}",
        goes_on="Going on without it",
    )


def no_first_offset(each: TopicPartition) -> DataLossError:
    return DataLossError(
        "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
        f"{each} is new, but the brokers gave no first offset for it.",
        hint="It was deleted again at once, or is being moved; run the query again.",
        facts={"partition": str(each)},
        retriable=True,
    )
