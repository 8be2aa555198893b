"""The table of the batch read's options: one field each, with its examples.

Rule: a text that another option can overrule (the start and end options, the three selections) is kept as
text here and read by `shared_options`, because an overruled option is never parsed. Everything else is parsed
by its own field. Options marked "Ours" do not exist in Spark's connector.

>>> BatchTable().group_id_prefix
'spark-kafka-relation'
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.options.option_table import option
from penstock.core.options.option_values import (
    INT64_MAX,
    parse_boolean,
    parse_integer_from,
    parse_text,
    parse_word,
)
from penstock.core.options.typed_column_options import FormatTable

_WRONG = "OPTION_INVALID"


def keep_text(text: str) -> str:
    """Return the text as it is: a rule that another overrules is never parsed."""
    return text


@dataclass(frozen=True)
class BatchTable(FormatTable):
    """A batch read's option table. Options that exclude or overrule each other are read together later."""

    assign: str | None = option(
        "assign",
        keep_text,
        "Exactly these partitions, as JSON; one that does not exist is left out, with a warning. One of "
        "`assign`, `subscribe`, `subscribePattern`.",
        accepts=('{"t":[0,1]}', '{"A":[0],"b":[2]}'),
        rejects=(
            ("", _WRONG),
            ("t", _WRONG),
            ('{"t":0}', _WRONG),
            ('{"t":[-1]}', _WRONG),
            ("{}", _WRONG),
            ('{"t":[true]}', _WRONG),
            ('{"t":[0],"t":[1]}', _WRONG),
        ),
    )
    subscribe: str | None = option(
        "subscribe",
        keep_text,
        "These topics, separated by commas; each counts once.",
        accepts=("t", "A, b,A"),
        rejects=(("", _WRONG), (" , ", _WRONG)),
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        keep_text,
        "All topics whose whole name matches this Java regular expression; no match is not an error.",
        accepts=("t.*", "(?i)Orders-\\d{2}", "[a-z&&[^x]]+"),
        rejects=(("", _WRONG), ("t(", "PATTERN_REFUSED"), ("a*+", "PATTERN_REFUSED")),
    )
    starting_timestamp: str | None = option(
        "startingTimestamp",
        keep_text,
        "Start at the first record at or after this time, in every partition: milliseconds since 1970, or "
        "(ours) an ISO 8601 time with a zone. Overrules the next two.",
        accepts=("1700000000000", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+01:00"),
        rejects=(
            ("", _WRONG),
            ("now", _WRONG),
            ("-1", _WRONG),
            ("2026-01-31T12:00:00", _WRONG),
            ("1.5", _WRONG),
        ),
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        keep_text,
        "The same for each partition, as JSON. Overrules the next.",
        accepts=('{"t":{"0":1700000000000}}',),
        rejects=(
            ("", _WRONG),
            ("5", _WRONG),
            ('{"t":{"0":-1}}', _WRONG),
            ('{"t":{"x":1}}', _WRONG),
            ('{"t":{"0":1.5}}', _WRONG),
            ('{"t":{"0":"2026-01-31T12:00:00"}}', _WRONG),
        ),
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        keep_text,
        '`earliest`; offsets for each partition as JSON, -2 for earliest; `{"t":"earliest"}` for a topic; '
        "(ours) `committed`, `-10m` for the last ten minutes, `-1000` for the last thousand offsets.",
        default_doc="`earliest`",
        accepts=("earliest", "EARLIEST", '{"t":{"0":23,"1":-2}}', '{"T":"earliest"}', "-10m", "-1000"),
        rejects=(
            ("latest", "START_AT_LATEST"),
            ('{"t":{"0":-1}}', "START_AT_LATEST"),
            ('{"t":"latest"}', "START_AT_LATEST"),
            ("", _WRONG),
            ("first", _WRONG),
            ("-1", _WRONG),
            ("-2", _WRONG),
            ('{"t":{"0":-3}}', _WRONG),
            ('{"t":{"0":-1001}}', _WRONG),
            ("23", _WRONG),
            ('{"t":{"0":1.0}}', _WRONG),
            ('{"t":{"-1":0}}', _WRONG),
            ("[]", _WRONG),
            ("committed", "OPTION_MISSING"),
        ),
    )
    starting_strategy: str | None = option(
        "startingOffsetsByTimestampStrategy",
        parse_word("error", "latest"),
        "What to do where no record is at or after the start time: fail, or start at the end.",
        default_doc="`error`",
        accepts=("error", "LATEST"),
        rejects=(("earliest", _WRONG), ("", _WRONG)),
    )
    ending_timestamp: str | None = option(
        "endingTimestamp",
        keep_text,
        "End before the first record at or after this time. Overrules the next two.",
        accepts=("1700000000000", "2026-01-31T12:00:00Z"),
        rejects=(("", _WRONG), ("2026-01-31", _WRONG)),
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        keep_text,
        "The same for each partition, as JSON. Overrules the next.",
        accepts=('{"t":{"0":1700000000000}}',),
        rejects=(("", _WRONG), ("{", _WRONG)),
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        keep_text,
        "`latest`; offsets (not included) for each partition as JSON, -1 for latest; "
        "(ours) `committed`, `-10m`, `-1000`. An end that the log has not reached fails the read at once; "
        "with `failOnDataLoss` = `false` what is there is read.",
        default_doc="`latest`",
        accepts=("latest", "Latest", '{"t":{"0":23,"1":-1}}', '{"t":"latest"}', "-10m"),
        rejects=(
            ("earliest", "END_AT_EARLIEST"),
            ('{"t":{"0":-2}}', "END_AT_EARLIEST"),
            ('{"t":"earliest"}', "END_AT_EARLIEST"),
            ("", _WRONG),
            ("end", _WRONG),
        ),
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parse_boolean,
        "Whether the read fails if the log does not hold offsets that were asked for.",
        default=True,
        accepts=("true", "FALSE"),
        rejects=(("yes", _WRONG), ("", _WRONG), ("1", _WRONG)),
    )
    include_headers: bool | None = option(
        "includeHeaders",
        parse_boolean,
        "Whether the rows have the column `headers`. With `columns`, both must say the same.",
        default_doc="`false`; with `columns`, as those say",
        accepts=("true", "False"),
        rejects=(("on", _WRONG),),
    )
    columns: str | None = option(
        "columns",
        parse_text,
        "Ours: only these columns, in this order; fewer are faster. `timestampMs` (bigint) is the time as "
        "Kafka has it, even where Spark cannot represent it.",
        default_doc="all but `headers`",
        accepts=("value", "key, value, timestampType", "value, timestampMs"),
        rejects=(("", _WRONG), ("valeu", "COLUMN_UNKNOWN"), ("value,value", _WRONG), (",", _WRONG)),
    )
    min_partitions: int | None = option(
        "minPartitions",
        parse_integer_from(1),
        "At least about this many tasks: big ranges are split.",
        accepts=("1", "4"),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("1.5", _WRONG), ("a", _WRONG), ("", _WRONG)),
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        parse_integer_from(1, INT64_MAX),
        "At most this many offsets in one task.",
        accepts=("1", "1000000"),
        rejects=(("0", _WRONG), ("-5", _WRONG), ("1e6", _WRONG)),
    )
    min_records_per_task: int | None = option(
        "minRecordsPerTask",
        parse_integer_from(0, INT64_MAX),
        "Ours: small ranges share a task until it has this many offsets; 0 gives each range its own.",
        default=0,
        accepts=("0", "10000"),
        rejects=(("-1", _WRONG), ("x", _WRONG)),
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        parse_integer_from(1),
        "How long a task waits for records before it fails.",
        default=120_000,
        accepts=("512",),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("inf", _WRONG), ("nan", _WRONG)),
    )
    fetch_offset_retries: int = option(
        "fetchOffset.numRetries",
        parse_integer_from(1),
        "How often offsets are looked up before the read fails.",
        default=3,
        accepts=("1", "5"),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("three", _WRONG)),
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        parse_integer_from(0),
        "Pause between those attempts.",
        default=1000,
        accepts=("0", "10"),
        rejects=(("-1", _WRONG), ("1s", _WRONG)),
    )
    group_id_prefix: str = option(
        "groupIdPrefix",
        parse_text,
        "Beginning of the generated group id.",
        default="spark-kafka-relation",
        accepts=("reports",),
        rejects=((" ", _WRONG),),
    )
    connection_pool: bool = option(
        "connectionPool",
        parse_boolean,
        "Ours: whether tasks keep connections for the next task.",
        default=True,
        accepts=("false",),
        rejects=(("no", _WRONG),),
    )


REPLACED = {
    "numPartitions": "Use `minPartitions`, or `repartition()` on the DataFrame.",
    "topic": "Use `subscribe` to read; `topic` belongs to writing.",
    "topics": "Use `subscribe`.",
    "bootstrap.servers": "Use `kafka.bootstrap.servers`.",
    "metadata.broker.list": "Use `kafka.bootstrap.servers`.",
    "group.id": "Use `kafka.group.id`.",
    "pushFilters": "It was removed: Spark gives the filters of one use of a frame to the next use, which "
    "then misses rows. Use `startingTimestamp`, `startingOffsets`, `assign` and the ends to read less.",
}
