"""Judges two answers to one question: same rows, same kind of error, or a finding.

Rule: rows are compared whole and in order (see `reading`). Errors are compared by kind, and this table says
which text of Spark's connector and which of our conditions are the same kind. An error that is in no row of
the table is a finding too, so nothing passes because it was not understood. Two deliberate differences (see
`differences`) can turn up in any option set; they are recognised exactly and named.

    judge(official, ours) in ("same rows", "both fail: topic unknown")
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.parity.option_sets import OptionSet
from tests.parity.reading import Answer


@dataclass(frozen=True)
class Kind:
    """One kind of error: how Spark's connector words it, and our condition for it."""

    name: str
    official: str
    ours: str


START_BEHIND_END = "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
NO_OPTIONS = OptionSet(())

#: In order: the first row that matches is the kind.
KINDS = (
    Kind("nothing selected", "One of the following options must be specified", "OPTION_MISSING"),
    Kind("selected twice", "Only one of the following options can be specified", "OPTION_CONFLICT"),
    Kind("refused setting", r"Kafka option '[\w.]+' is not supported", "OPTION_REFUSED"),
    Kind("start at latest", r"(starting offset|startingOffsets for \S+) can't be latest", "START_AT_LATEST"),
    Kind("end at earliest", r"ending offset (for \S+ )?can't be earliest", "END_AT_EARLIEST"),
    Kind("wrong pattern", r"near index \d+", "PATTERN_REFUSED"),
    Kind("topic unknown", "UnknownTopicOrPartitionException", "UNKNOWN_TOPIC"),
    Kind(
        "start and end name other partitions",
        "start offset and end offset should have the same topic-partitions"
        "|different topic partitions for starting offsets",
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
    ),
    Kind(
        "start behind end, in the options",
        r"The specified start \w+ \S+ is greater than the end",
        "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
    ),
    Kind(
        "start behind end, in the log",
        r"The resolved start offset \S+ is greater than the resolved end offset",
        START_BEHIND_END,
    ),
    Kind(
        "other partitions than assigned, by offset",
        "Partitions specified for Kafka start offsets don't match",
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    ),
    Kind(
        "other partitions than assigned, by time",
        "Partitions specified for Kafka timestamp based",
        "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    ),
    Kind("no record that young", "No offset matched from request", "NO_OFFSET_FOR_TIMESTAMP"),
    Kind("rows are gone", "Some data may have been lost because they are not available", "KAFKA_DATA_LOSS"),
    Kind(
        "rows are gone", "Some data may have been lost because they are not available", "OFFSET_OUT_OF_RANGE"
    ),
    Kind("rows are gone", "Some data may have been lost because they are not available", "END_BEYOND_LOG"),
    Kind("no broker named", "must be specified for configuring Kafka consumer", "OPTION_MISSING"),
    Kind(
        "wrong value",
        r"Expected e\.g\. |Expected a single long value|For input string|must be positive"
        "|No value found for '|No topics to subscribe to"
        "|No topicpartitions to assign|Pattern to subscribe is empty"
        r"|Invalid value .* for configuration|Invalid url in bootstrap\.servers|No resolvable bootstrap urls"
        "|You must set either bootstrap.servers or bootstrap.controllers|No enum constant ",
        "OPTION_INVALID",
    ),
)
_CONDITION = re.compile(r"penstock\.core\.errors\.\w+: \[([A-Z_]+)\]")


def name_official_kind(text: str) -> str:
    return next((kind.name for kind in KINDS if re.search(kind.official, text)), "")


def name_our_condition(text: str) -> str:
    """Return the condition of our error in a text that Spark passed on; empty if it is not ours."""
    found = _CONDITION.findall(text)
    return found[-1] if found else ""


def judge(official: Answer, ours: Answer, options: OptionSet = NO_OPTIONS) -> str:
    """Return the verdict in words; one that begins with FINDING is a difference nobody has explained."""
    if official == ours:
        return "same rows" if official.rows else "both read nothing"
    if _only_ours_keeps_the_cap(official, ours, options.cap):
        return "same rows, but only ours keeps the cap"
    if options.cuts and not official.error and name_our_condition(ours.error) == START_BEHIND_END:
        return "only ours refuses a start behind its end when ranges are cut"
    if official.error and ours.error:
        kind, condition = name_official_kind(official.error), name_our_condition(ours.error)
        if any(each.name == kind and each.ours == condition for each in KINDS):
            return f"both fail: {kind}"
        shown = kind or official.error[:400]
        return f"FINDING: official fails with {shown!r}, ours with {condition or ours.error[-400:]!r}"
    if official.error:
        return f"FINDING: official fails with {official.error[:400]!r}, ours reads {ours.rows} rows"
    if ours.error:
        shown = name_our_condition(ours.error) and ours.error[ours.error.rindex("penstock.core.errors") :]
        return (
            f"FINDING: official reads {official.rows} rows, ours fails with {(shown or ours.error)[:400]!r}"
        )
    return f"FINDING: {_tell_difference(official, ours)}"


def _only_ours_keeps_the_cap(official: Answer, ours: Answer, cap: int | None) -> bool:
    """Return whether only ours keeps the cap; Spark's drops it if bounds are words. Rows must be equal."""
    return cap is not None and _merge(official) == _merge(ours) and _widest(ours) <= cap < _widest(official)


def _merge(answer: Answer) -> tuple[object, ...]:
    """Return what was read, wherever it was cut."""
    return (answer.error, answer.columns, [row for task in answer.tasks for row in task])


def _widest(answer: Answer) -> int:
    """Return the largest number of offsets from the first to the last row of a task, both included."""
    return max((last - first + 1 for *_, first, last in answer.splits), default=0)


def _tell_difference(official: Answer, ours: Answer) -> str:
    if official.columns != ours.columns:
        return f"columns {official.columns} and {ours.columns}"
    if official.splits != ours.splits:
        only_official = [each for each in official.splits if each not in ours.splits]
        only_ours = [each for each in ours.splits if each not in official.splits]
        return f"tasks {only_official} and {only_ours} ({official.rows} and {ours.rows} rows)"
    pairs = zip(
        (row for task in official.tasks for row in task),
        (row for task in ours.tasks for row in task),
        strict=False,
    )
    return f"rows {next((pair for pair in pairs if pair[0] != pair[1]), 'in another number')}"
