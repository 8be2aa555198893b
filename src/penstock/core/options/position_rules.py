"""Where reading starts and ends: the texts of the start and end options as typed rules.

Rule: Spark's precedence, exactly. One time for all partitions beats times per partition, which beat offsets,
and an option that loses is never parsed, so a wrong text in it does no harm. Kafka's numbers -2 and -1 become
`Earliest` and `Latest` here and exist nowhere beyond this module.

Ours beyond Spark's: `committed` (what `kafka.group.id` has committed), `-10m` (records of the last ten
minutes), `-1000` (the last thousand offsets of each partition), and times with a zone in ISO 8601.

>>> parse_offsets_rule("startingOffsets", "earliest")
ForAll(position=Earliest())
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.core.errors import OptionError
from penstock.core.model import (
    Ago,
    At,
    Committed,
    Earliest,
    Latest,
    Position,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
)
from penstock.core.options.option_table import invalid
from penstock.core.options.option_values import (
    INT32_MAX,
    INT64_MAX,
    find_length_ago,
    parse_duration_ms,
    parse_time_ms,
)

OFFSETS_EXAMPLE = '`{"topicA":{"0":23,"1":-2},"topicB":{"0":5}}`'
_ENDS_EXAMPLE = OFFSETS_EXAMPLE.replace("-2", "-1")
TIMES_EXAMPLE = '`{"topicA":{"0":1700000000000,"1":1700000000000}}`'
PARTITIONS_EXAMPLE = '`{"topicA":[0,1],"topicB":[2]}`'


@dataclass(frozen=True, slots=True)
class ForAll:
    """One position for every partition."""

    position: Position


@dataclass(frozen=True)
class ForEach:
    """A position for each partition, by name; a topic's own entry stands for all its partitions."""

    partitions: Mapping[TopicPartition, Position]
    topics: Mapping[str, Position]
    by_time: bool = False

    def __hash__(self) -> int:
        return hash((frozenset(self.partitions.items()), frozenset(self.topics.items()), self.by_time))


PositionRule: TypeAlias = ForAll | ForEach


def list_positions(rule: PositionRule) -> list[Position]:
    """Return every position that a rule names."""
    if isinstance(rule, ForEach):
        return [*rule.partitions.values(), *rule.topics.values()]
    return [rule.position]


def parse_time_rule(key: str, text: str) -> ForAll:
    """Return the rule for one time for all partitions."""
    try:
        return ForAll(Since(parse_time_ms(text)))
    except ValueError as error:
        raise invalid(key, text, str(error), hint=_advise_on_time(key, text)) from None


def parse_times_rule(key: str, text: str) -> ForEach:
    """Return the rule for a time for each partition, given as JSON."""
    positions: dict[TopicPartition, Position] = {}
    for topic, entry in _parse_topics(key, text, TIMES_EXAMPLE).items():
        if not isinstance(entry, dict):
            raise invalid(key, text, f"times per partition, e.g. {TIMES_EXAMPLE}")
        for number, time in entry.items():
            if isinstance(time, bool) or not isinstance(time, int | str):
                raise invalid(key, text, f"times as whole milliseconds, e.g. {TIMES_EXAMPLE}")
            try:
                since = Since(parse_time_ms(str(time)))
            except ValueError as error:
                hint = _advise_on_time(key, str(time))
                raise invalid(key, text, f"for {topic} partition {number} {error}", hint=hint) from None
            positions[TopicPartition(topic, _parse_partition(key, text, number, TIMES_EXAMPLE))] = since
    return ForEach(positions, {}, by_time=True)


def parse_offsets_rule(key: str, text: str, *, refused: Position | None = None) -> PositionRule:
    """Return the rule for `earliest`, `latest`, `committed`, `-10m`, `-1000`, or JSON with offsets.

    `refused` is the end of the log that the caller does not accept. It is parsed anyway, so that the caller
    can raise its own error; other errors do not suggest it.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return ForAll(_WORDS[word])
    if word.startswith("-"):
        return ForAll(_parse_back(key, text, word[1:], refused))
    partitions: dict[TopicPartition, Position] = {}
    topics: dict[str, Position] = {}
    example = _ENDS_EXAMPLE if refused == Earliest() else OFFSETS_EXAMPLE
    if not word.startswith("{"):
        raise invalid(key, text, _list_accepted(refused), hint=_advise_on_length(key, text))
    for topic, entry in _parse_topics(key, text, example).items():
        if isinstance(entry, str) and entry.lower() in ("earliest", "latest"):
            topics[topic] = _WORDS[entry.lower()]
        elif isinstance(entry, dict):
            for number, offset in entry.items():
                partition = _parse_partition(key, text, number, example)
                partitions[TopicPartition(topic, partition)] = _parse_offset(key, text, offset, refused)
        else:
            raise invalid(key, text, f"offsets per partition, e.g. {example}")
    return ForEach(partitions, topics)


def parse_assignment(key: str, text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of an `assign` option, each once, in order."""
    found: set[TopicPartition] = set()
    for topic, numbers in _parse_topics(key, text, PARTITIONS_EXAMPLE).items():
        if not isinstance(numbers, list) or not all(_is_whole(each) and each >= 0 for each in numbers):
            raise invalid(key, text, f"lists of partition numbers, e.g. {PARTITIONS_EXAMPLE}")
        found.update(TopicPartition(topic, number) for number in numbers)
    if not found:
        raise invalid(key, text, f"at least one partition, e.g. {PARTITIONS_EXAMPLE}")
    return tuple(sorted(found))


def _advise_on_time(key: str, text: str) -> str | None:
    """Return where a length of time belongs, if the text is one; an option for times takes no lengths."""
    ago = find_length_ago(text)
    if ago is None:
        return None
    if _is_end(key):
        return f"To end {ago} ago, set `endingOffsets` to `-{ago}`."
    return f"For the last {ago}, set `startingOffsets` to `-{ago}`."


def _advise_on_length(key: str, text: str) -> str | None:
    """Return how to write a length of time, if the text is one. As an end it leaves out later records."""
    ago = find_length_ago(text)
    if ago is None:
        return None
    return f"{'For all but' if _is_end(key) else 'For'} the last {ago}, write `-{ago}`."


def _is_end(key: str) -> bool:
    return key.lower().startswith("ending")


_WORDS: Mapping[str, Position] = {"earliest": Earliest(), "latest": Latest(), "committed": Committed()}


def _list_words(refused: Position | None) -> list[str]:
    return [f"`{word}`" for word, position in _WORDS.items() if position != refused]


def _list_accepted(refused: Position | None) -> str:
    example = _ENDS_EXAMPLE if refused == Earliest() else OFFSETS_EXAMPLE
    return f"{', '.join(_list_words(refused))}, `-10m`, `-1000`, or JSON such as {example}"


def _parse_back(key: str, text: str, rest: str, refused: Position | None) -> Position:
    if re.fullmatch("[0-9]+", rest):
        if int(rest) in (1, 2):
            # This may mean Kafka's -1 (latest) or -2 (earliest): never guess between counts and sentinels.
            words = " or ".join(_list_words(refused)[:-1])
            raise invalid(
                key, text, f"{words} as a word; a bare -1 or -2 could be that, or a number of records"
            )
        if not 0 < int(rest) <= INT64_MAX:
            raise invalid(key, text, "a number of records before the end, from -3 down")
        return RecordsBeforeEnd(int(rest))
    try:
        if rest != rest.strip():
            raise ValueError("the sign must be next to the number")
        ago_ms = parse_duration_ms(rest)
    except ValueError:
        raise invalid(key, text, _list_accepted(refused), hint=_advise_on_length(key, text)) from None
    if ago_ms == 0:
        raise invalid(key, text, "a length of time above 0, such as `-10m`")
    return Ago(ago_ms)


def _parse_offset(key: str, text: str, offset: object, refused: Position | None) -> Position:
    if not _is_whole(offset):
        example = _ENDS_EXAMPLE if refused == Earliest() else OFFSETS_EXAMPLE
        raise invalid(key, text, f"offsets as whole numbers, e.g. {example}")
    assert isinstance(offset, int)
    if offset == -2:
        return Earliest()
    if offset == -1:
        return Latest()
    if not 0 <= offset <= INT64_MAX:
        # -1000 and -1001 are another client's sentinels; read as offsets they would give the wrong rows.
        signals = [("-1 for latest", Latest()), ("-2 for earliest", Earliest())]
        words = " or ".join(said for said, meant in signals if meant != refused)
        raise invalid(key, text, f"offsets of 0 or more, or {words}; {offset} is none of these")
    return At(offset)


def _parse_partition(key: str, text: str, number: str, example: str) -> int:
    if not re.fullmatch("[0-9]+", number) or int(number) > INT32_MAX:
        raise invalid(key, text, f"partition numbers of 0 or more, e.g. {example}")
    return int(number)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_topics(key: str, text: str, example: str) -> dict[str, Any]:
    """Return the outer JSON object. Refuse a name given twice: the second would silently win."""

    def gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a name is given twice")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=gather)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise invalid(key, text, f"JSON with each name once, e.g. {example}")
    return parsed


def check_start_not_after_end(start: PositionRule, end: PositionRule) -> None:
    """Refuse rules that no log can satisfy: different partitions, or a start after its end."""
    if isinstance(start, ForEach) and isinstance(end, ForEach):
        _check_same_partitions(start, end)
        for partition, first in start.partitions.items():
            where = f"{partition.topic} partition {partition.partition}"
            _check_order(first, end.partitions.get(partition), where)
    elif isinstance(start, ForAll) and isinstance(end, ForAll):
        _check_order(start.position, end.position, "all partitions")


def _check_same_partitions(start: ForEach, end: ForEach) -> None:
    # A topic's own entry covers whatever partitions exist, so such topics are compared by name only.
    whole = set(start.topics) | set(end.topics)

    def name_all(rule: ForEach) -> set[str]:
        named = {each.topic if each.topic in whole else str(each) for each in rule.partitions}
        return named | set(rule.topics)

    starts, ends = name_all(start), name_all(end)
    if starts != ends:
        raise OptionError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            f"The start names {sorted(starts)}, the end names {sorted(ends)}.",
            hint="Name the same partitions in both.",
            facts={"start": sorted(starts), "end": sorted(ends)},
        )


def _check_order(first: Position, last: Position | None, where: str) -> None:
    match (first, last):
        case (At(offset=start), At(offset=until)):
            kind = "offset"
        case (Since(time_ms=start), Since(time_ms=until)):
            kind = "timestamp"
        case (Ago(duration_ms=ago), Ago(duration_ms=until_ago)):
            kind, start, until = "time", -ago, -until_ago
        case (RecordsBeforeEnd(records=back), RecordsBeforeEnd(records=until_back)):
            kind, start, until = "position", -back, -until_back
        case _:
            return
    if start > until:
        raise OptionError(
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            f"The start {kind} {start} is greater than the end {kind} {until} for {where}.",
            hint="Ranges run from start (included) to end (not included); swap or correct them.",
            facts={"start": start, "end": until, "where": where},
        )
