"""Where we differ from Spark's connector on purpose, with the reason and examples that are run.

Rule: a difference that is not in this table is a bug. The page docs/reference/differences.md is written from
it, and `test_differences` reads every example with both connectors, so a row that is no longer true fails.
Each example says what both sides do: a number of rows, or an error (for Spark's connector a part of its text,
for ours the condition).

    python -m tests.parity.differences     # writes the page
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.parity.json_differences import write_part
from tests.parity.topics import T0

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
Outcome = int | str


@dataclass(frozen=True)
class Example:
    """Options (`~` before topic names; `~plain` is read if none is selected) and both outcomes."""

    options: dict[str, str]
    official: Outcome
    ours: Outcome
    #: How many tasks have rows, if that is the difference.
    tasks: tuple[int, int] | None = None


@dataclass(frozen=True)
class Difference:
    """One row of the page."""

    what: str
    official: str
    ours: str
    why: str
    examples: tuple[Example, ...]


DIFFERENCES = (
    Difference(
        "`subscribePattern`",
        "takes a topic if any part of its name matches",
        "takes a topic if its whole name matches, as Kafka's own consumers do; names matched in part are "
        "told in a warning",
        "A topic made later whose name merely contains the pattern does not slip in.",
        (Example({"subscribePattern": "~order"}, 55, 0),),
    ),
    Difference(
        "Possessive quantifiers, atomic groups, back-references in a pattern",
        "accepted",
        "refused (`PATTERN_REFUSED`)",
        "Matching here takes bounded time, whatever the pattern; these need a search that goes back.",
        (
            Example({"subscribePattern": "~orders-e++u"}, 30, "PATTERN_REFUSED"),
            Example({"subscribePattern": "(~orders)-eu|\\1"}, 30, "PATTERN_REFUSED"),
        ),
    ),
    Difference(
        "Kafka's internal topics, named in `subscribe` or `assign`",
        "nothing is read, without a word",
        "an error (`INTERNAL_TOPIC`)",
        "An empty answer would be taken for an empty topic.",
        (
            Example({"subscribe": "__consumer_offsets"}, 0, "INTERNAL_TOPIC"),
            Example({"assign": '{"__consumer_offsets":[0]}'}, 0, "INTERNAL_TOPIC"),
        ),
    ),
    Difference(
        "An `assign` that names no partition, or a negative one",
        "nothing is read, without a word",
        "an error (`OPTION_INVALID`)",
        "It is a mistake in the job.",
        (
            Example({"assign": "{}"}, 0, "OPTION_INVALID"),
            Example({"assign": '{"~plain":[-1]}'}, 0, "OPTION_INVALID"),
        ),
    ),
    Difference(
        "`maxRecordsPerPartition` where a start or end is a word (or -1, -2)",
        "not kept unless `minPartitions` cuts anyway: it compares the placeholders, not the offsets",
        "kept: the offsets are looked up first",
        "The cap is there to bound what one task holds; by default every bound is a word.",
        (
            Example({"maxRecordsPerPartition": "10"}, 40, 40, tasks=(1, 4)),
            Example(
                {"maxRecordsPerPartition": "10", "endingOffsets": '{"~plain":{"0":40}}'}, 40, 40, tasks=(4, 4)
            ),
        ),
    ),
    Difference(
        "Option names nobody knows, and options of the sink",
        "ignored",
        "an error that names the close ones (`OPTION_UNKNOWN`, `OPTION_REFUSED`)",
        "A misspelt `startingOffset` reads everything, and nobody notices.",
        (
            Example({"startingOffset": "latest"}, 40, "OPTION_UNKNOWN"),
            Example({"topic": "~plain"}, 40, "OPTION_REFUSED"),
            Example({"kafka.key.serializer": "x"}, 40, "OPTION_REFUSED"),
        ),
    ),
    Difference(
        "Offsets as JSON with fractions, a name twice, or text behind the end",
        "fractions are cut off, the second of two names wins, the text is not seen",
        "an error (`OPTION_INVALID`)",
        "Other rows than those asked for would be read.",
        (
            Example({"startingOffsets": '{"~plain":{"0":1.5}}'}, 39, "OPTION_INVALID"),
            Example({"startingOffsets": '{"~plain":{"0":3,"0":5}}'}, 35, "OPTION_INVALID"),
            Example({"startingOffsets": '{"~plain":{"0":3}} or so'}, 37, "OPTION_INVALID"),
        ),
    ),
    Difference(
        "Offsets below -2, times below 0",
        "such an offset fails in the task; a time of -1 or -2 means latest or earliest",
        "an error at `load()` (`OPTION_INVALID`)",
        "Signals of Kafka's protocol are no offsets and no times.",
        (
            Example({"startingOffsets": '{"~plain":{"0":-3}}'}, "-3 does not equal -2", "OPTION_INVALID"),
            Example({"startingTimestamp": "-1"}, 0, "OPTION_INVALID"),
            Example({"startingTimestamp": "-2"}, 40, "OPTION_INVALID"),
        ),
    ),
    Difference(
        "One start time for all partitions behind one end time",
        "decided by what the times find in the log: nothing, or an error",
        "an error at `load()` (`UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET`), as both connectors have "
        "it for times per partition",
        "It is a mistake whatever the log holds.",
        (
            Example(
                {"startingTimestamp": str(T0 + 9000), "endingTimestamp": str(T0 + 8500)},
                0,
                "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            ),
            Example(
                {"startingTimestamp": str(T0 + 9000), "endingTimestamp": str(T0 + 1000)},
                "The resolved start offset 9 is greater",
                "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            ),
        ),
    ),
    Difference(
        "From `earliest` to a fixed end that has aged out",
        "fails: the start lies behind the end",
        "that partition has no rows, the others are read",
        "`earliest` asks for what is left, and nothing is.",
        (
            Example(
                {"subscribe": "~trimmed", "endingOffsets": '{"~trimmed":{"0":5,"1":5}}'},
                "The resolved start offset 10 is greater",
                5,
            ),
        ),
    ),
    Difference(
        "An end that the log has not reached",
        "a task waits for it, two minutes by default, and then fails; it speaks of records that aged out",
        "fails when the read is planned (`END_BEYOND_LOG`), with the end there is; with `failOnDataLoss` = "
        "`false` both read what is there",
        "Planning knows where the log ends.",
        (
            Example(
                {"endingOffsets": '{"~plain":{"0":41}}'},
                "Some data may have been lost",
                "END_BEYOND_LOG",
            ),
            Example({"endingOffsets": '{"~plain":{"0":41}}', "failOnDataLoss": "false"}, 40, 40),
        ),
    ),
    Difference(
        "A start behind its end that shows only in the log, with `minPartitions` or `maxRecordsPerPartition`",
        "the range is dropped without a word; without these options it is an error",
        "an error (`RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET`), with and without",
        "A typing error, or a topic made anew, must not look like an empty one.",
        (
            Example(
                {"startingOffsets": '{"~plain":{"0":41}}', "minPartitions": "4"},
                0,
                "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            ),
        ),
    ),
    Difference(
        "Waits and counts without sense: no time at all, no attempt, a negative pause, more than 24 days",
        "accepted; some then fail in a task or as an internal error",
        "an error at `load()` (`OPTION_INVALID`)",
        "A wait that never ends, or a guard of length zero, is no guard.",
        (
            Example({"kafkaConsumer.pollTimeoutMs": "0"}, "in 0 milliseconds", "OPTION_INVALID"),
            Example({"kafkaConsumer.pollTimeoutMs": "99999999999"}, 40, "OPTION_INVALID"),
            Example({"fetchOffset.numRetries": "0"}, "assertion failed", "OPTION_INVALID"),
            Example({"fetchOffset.retryIntervalMs": "-1"}, 40, "OPTION_INVALID"),
        ),
    ),
    Difference(
        "Blank group id, client id or prefix",
        "accepted",
        "an error (`OPTION_INVALID`)",
        "A blank is a variable that was not filled in, not a choice.",
        (
            Example({"kafka.group.id": ""}, 40, "OPTION_INVALID"),
            Example({"groupIdPrefix": ""}, 40, "OPTION_INVALID"),
        ),
    ),
    Difference(
        "Settings that have no effect here",
        "their values and combinations are checked",
        "a warning says that they have no effect; their values are not looked at",
        "Nothing depends on them.",
        (
            Example({"kafka.max.poll.records": "lots"}, "configuration max.poll.records", 40),
            Example({"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"}, "is higher than", 40),
        ),
    ),
    Difference(
        "`kafka.default.api.timeout.ms` below `kafka.request.timeout.ms`",
        "Java's client refuses to start",
        "accepted",
        "Here each is a deadline of its own.",
        (
            Example(
                {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "9000"},
                "must be no smaller than the value of request.timeout.ms",
                40,
            ),
        ),
    ),
    Difference(
        "Words of client settings in capitals, such as `READ_COMMITTED`",
        "refused in the task",
        "accepted",
        "Nothing else can be meant.",
        (Example({"kafka.isolation.level": "READ_COMMITTED"}, "Invalid value READ_COMMITTED", 40),),
    ),
    Difference(
        'A word for a whole topic: `{"t":"earliest"}`',
        "not in this version; newer ones have it",
        "accepted",
        "It comes with a later Spark.",
        (
            Example({"startingOffsets": '{"~plain":"earliest"}'}, "Expected e.g.", 40),
            Example({"endingOffsets": '{"~plain":"latest"}'}, "Expected e.g.", 40),
        ),
    ),
    Difference(
        "Ours beyond Spark's: ISO times, `-1000`, `-10m`, `committed`, `columns`, `minRecordsPerTask`",
        "refused or ignored",
        "accepted",
        "See the options page; a job that uses them does not move back.",
        (
            Example({"startingTimestamp": "2023-11-14T22:13:21Z"}, "Expected a single long value", 39),
            Example({"startingOffsets": "-10"}, "Expected e.g.", 10),
        ),
    ),
)


def write_page() -> str:
    """Return the text of the page."""
    lines = [
        "<!-- Written by `python -m tests.parity.differences`; edit that table instead. -->",
        "# Where Penstock differs from Spark's own connector",
        "",
        "Batch reads. What is not listed here is the same: rows, columns, order within a task, the offsets",
        "at which tasks are cut, and the kind of error. Every row is proven by reading with both",
        "([the test](../../tests/parity/test_differences.py)); the rest by random option sets",
        "([the campaign](../../tests/proof/parity_campaign.py)). One difference is Spark's: its connector",
        "can name a preferred executor for a task, a Python source cannot.",
        "",
        "| What | Spark's connector 4.2.0 | Penstock | Why |",
        "|---|---|---|---|",
    ]
    for each in DIFFERENCES:
        cells = (each.what, each.official, each.ours, each.why)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, *write_part()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page())
