"""Losses, which are offsets that will never be read: how they are merged, counted and described.

Rule: a loss is counted only by its range `[start, until)`. Where the end is not known (a partition that is
gone may have received more) `until` equals `start`: the loss is reported, but adds no offsets to any sum. Why
not guess an end: a sum with guesses looks as reliable as one without.

>>> loss = Loss("DATA_LOST", "t", 0, 5, 8, detail="Retention removed them.")
>>> str(loss)
'[DATA_LOST] t-0: 3 offsets from 5 until 8. Retention removed them.'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets `[start, until)` of one partition, lost for the reason that `condition` names.

    `topic_id` (16 bytes) distinguishes a topic from another one with the same name. `detail` is one sentence;
    `goes_on` is another, about what a stream does if it continues anyway.
    """

    condition: str
    topic: str
    partition: int
    start: int
    until: int
    topic_id: bytes | None = None
    detail: str = ""
    goes_on: str = field(default="Going on without them", compare=False)

    def __post_init__(self) -> None:
        if self.start < 0 or self.until < self.start or self.partition < 0:
            raise ValueError(f"{self.topic}-{self.partition} [{self.start}, {self.until}) is no range")

    @property
    def size(self) -> int:
        """Return how many offsets are known to be lost; 0 where the end is unknown."""
        return self.until - self.start

    @property
    def has_known_end(self) -> bool:
        return self.until > self.start

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Return the key under which two reports are one loss."""
        return (self.topic, self.partition, self.start, self.until)

    def __str__(self) -> str:
        told = f"[{self.condition}] {self.topic}-{self.partition}: {describe_range(self)}."
        return f"{told} {self.detail}" if self.detail else told


@dataclass(frozen=True, slots=True)
class TopicLoss:
    """The losses of one topic. `offsets` counts each offset once, `open_ends` the losses without an end."""

    topic: str
    offsets: int
    ranges: int
    open_ends: int


def describe_range(loss: Loss) -> str:
    """Return the range in words.

    >>> describe_range(Loss("DATA_LOST", "t", 0, 5, 5))
    'offsets from 5 on, how many is not known'
    """
    if not loss.has_known_end:
        return f"offsets from {loss.start} on, how many is not known"
    return f"{loss.size} offset{'' if loss.size == 1 else 's'} from {loss.start} until {loss.until}"


def merge_losses(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return the losses in order, with ranges that touch or overlap merged.

    Only ranges of one partition of the same topic (by its id) and with the same condition are joined; all
    their details are kept. A loss without an end merges only with its own repetition.
    """
    merged: list[Loss] = []
    for loss in sorted(set(losses), key=_order):
        last = merged[-1] if merged else None
        if last is not None and _group(last) == _group(loss) and _touch(last, loss):
            merged[-1] = replace(last, until=max(last.until, loss.until), detail=_join_details(last, loss))
        else:
            merged.append(loss)
    return tuple(sorted(merged, key=lambda loss: (loss.key, _order(loss))))


def summarise_losses(losses: Iterable[Loss]) -> Mapping[str, TopicLoss]:
    """Return what each topic has lost, by name; ranges that overlap are counted once."""
    listed = list(losses)
    # The reason does not matter for the count: an offset may be reported for two reasons.
    distinct = merge_losses(replace(loss, condition="", detail="") for loss in listed)
    sums: dict[str, TopicLoss] = {}
    for topic in sorted({loss.topic for loss in listed}):
        reported = {(loss.key, loss.topic_id) for loss in listed if loss.topic == topic}
        sums[topic] = TopicLoss(
            topic,
            offsets=sum(loss.size for loss in distinct if loss.topic == topic),
            ranges=len(reported),
            open_ends=sum(1 for (_, _, start, until), _ in reported if start == until),
        )
    return sums


def _group(loss: Loss) -> tuple[str, bytes, str, int, bool]:
    return (loss.topic, loss.topic_id or b"", loss.condition, loss.partition, loss.has_known_end)


def _order(loss: Loss) -> tuple[object, ...]:
    return (*_group(loss), loss.start, loss.until, loss.detail)


def _touch(earlier: Loss, later: Loss) -> bool:
    if not later.has_known_end:
        return later.start == earlier.start
    return later.start <= earlier.until


def _join_details(one: Loss, other: Loss) -> str:
    if not other.detail or other.detail in one.detail:
        return one.detail
    return f"{one.detail} {other.detail}".strip()
