"""What a direct stream reads: topics by name or by pattern, or single partitions, each with its starts.

Rule: a start given here counts only for a partition without a stored position. After a restart the stream
goes on where it was. To overrule a stored position, use `seek`. A pattern is a regular expression that must
match the whole name: `topic1-.*`, not the shell's `topic1-*`.

>>> Subscribe("clicks", "views", starting={("clicks", 0): 33}).starting
{TopicPartition(topic='clicks', partition=0): At(offset=33)}
>>> Subscribe("clicks").selection
SelectTopics(topics=('clicks',))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.core.errors import OptionError
from penstock.core.model import (
    Ago,
    At,
    Earliest,
    Latest,
    Position,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
)
from penstock.core.options.option_table import invalid
from penstock.core.options.shared_options import read_pattern
from penstock.core.planning.partition_selection import SelectPartitions, SelectTopics

PartitionName: TypeAlias = TopicPartition | tuple[str, int]
Starts: TypeAlias = Mapping[PartitionName, Position | int]
_STARTS = (At, Earliest, Latest, Since, Ago, RecordsBeforeEnd)


class Subscribe:
    """All partitions of these topics, including those added later."""

    def __init__(self, *topics: str, starting: Starts | None = None) -> None:
        if not topics or not all(isinstance(each, str) and each.strip() for each in topics):
            raise _wrong("`Subscribe` needs the names of topics", 'Write Subscribe("clicks", "views").')
        if any("," in each for each in topics):
            raise _wrong("A topic's name cannot have a comma", 'Write Subscribe("clicks", "views").')
        self.starting = read_positions(starting or {})
        self.selection = SelectTopics(tuple(dict.fromkeys(each.strip() for each in topics)))


class SubscribePattern:
    """All partitions of the topics whose whole name matches, including topics created later."""

    def __init__(self, pattern: str, *, starting: Starts | None = None) -> None:
        self.starting = read_positions(starting or {})
        self.selection = read_pattern(pattern)


class Assign:
    """Exactly these partitions."""

    def __init__(self, partitions: Iterable[PartitionName], *, starting: Starts | None = None) -> None:
        named = sorted({read_partition(each) for each in partitions})
        if not named:
            raise _wrong("`Assign` needs partitions", 'Write Assign([("clicks", 0), ("clicks", 1)]).')
        self.starting = read_positions(starting or {})
        stray = sorted(str(each) for each in set(self.starting) - set(named))
        if stray:
            raise _wrong(f"Starts are given for {', '.join(stray)}, not assigned here", "Assign them too.")
        for each in named:
            if each.partition < 0:
                raise invalid("assign", str(each), "partition numbers of 0 or more")
        self.selection = SelectPartitions(tuple(named))


ReadStrategy: TypeAlias = Subscribe | SubscribePattern | Assign


def read_positions(positions: Starts) -> dict[TopicPartition, Position]:
    """Return positions by partition; a plain number is an offset."""
    read: dict[TopicPartition, Position] = {}
    for name, position in positions.items():
        if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
            read[read_partition(name)] = At(position)
        elif isinstance(position, _STARTS):
            read[read_partition(name)] = position
        else:
            raise _wrong(
                f"{position!r} is not a position for {name}",
                "Give an offset of 0 or more, or Earliest(), Latest(), Since(time_ms), Ago(duration_ms), "
                "RecordsBeforeEnd(records) of penstock.direct.",
            )
    return read


def read_partition(name: PartitionName) -> TopicPartition:
    if isinstance(name, TopicPartition):
        return name
    if isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str) and type(name[1]) is int:
        return TopicPartition(*name)
    raise _wrong(f"{name!r} does not name a partition", 'Write ("clicks", 0).')


def _wrong(what: str, hint: str) -> OptionError:
    return OptionError("STRATEGY_INVALID", f"{what}.", hint=hint)
