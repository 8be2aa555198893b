"""The table of a stream's options: those of a batch read, with a stream's changes and additions.

>>> StreamTable().max_trigger_delay_ms
900000
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.options.batch_option_table import BatchTable, keep_text
from penstock.core.options.option_table import option, option_specs
from penstock.core.options.option_values import (
    INT64_MAX,
    parse_boolean,
    parse_cache_ms,
    parse_delay_ms,
    parse_integer_from,
    parse_rate,
    parse_rate_above_zero,
    parse_size_bytes,
    parse_span_ms,
    parse_text,
    parse_word,
)

_WRONG = "OPTION_INVALID"
#: A task costs about 40 ms, in which one core reads more records than this. Smaller ranges share a task.
RECORDS_WORTH_A_TASK = 20_000
_PACED = {"backpressure.enabled": "true"}


@dataclass(frozen=True)
class StreamTable(BatchTable):
    """The option table of `readStream`."""

    starting_offsets: str | None = option(
        "startingOffsets",
        keep_text,
        "Where a new query starts; one that has a checkpoint goes on from there. As in a batch read, and "
        "`latest`; -1 in JSON means latest.",
        default_doc="`latest`",
        accepts=("latest", "earliest", '{"t":{"0":23,"1":-1}}', '{"T":"latest"}', "-10m", "-1000"),
        rejects=(
            ("", _WRONG),
            ("first", _WRONG),
            ("-1", _WRONG),
            ('{"t":{"0":-3}}', _WRONG),
            ("[]", _WRONG),
            ("committed", "OPTION_MISSING"),
        ),
    )
    starting_offsets_fallback: str = option(
        "startingOffsetsFallback",
        parse_word("error", "earliest", "latest"),
        "Ours: with `committed`, what to do for a partition where the group has committed nothing.",
        default="error",
        accepts=("error", "Earliest", "latest"),
        rejects=(("", _WRONG), ("none", _WRONG)),
        needs={"startingOffsets": "committed", "kafka.group.id": "g"},
        only_with={"startingOffsets": ("committed",)},
    )
    min_records_per_task: int | None = option(
        "minRecordsPerTask",
        parse_integer_from(0, INT64_MAX),
        "Ours: small ranges share a task until it has this many offsets; 0 gives each range its own.",
        default=None,
        default_doc=f"`{RECORDS_WORTH_A_TASK}`; 0 with `minPartitions` or `maxRecordsPerPartition`",
        accepts=("0", "10000"),
        rejects=(("-1", _WRONG), ("x", _WRONG)),
    )
    group_id_prefix: str = option(
        "groupIdPrefix",
        parse_text,
        "Beginning of the generated group id.",
        default="spark-kafka-source",
        accepts=("reports",),
        rejects=((" ", _WRONG),),
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        parse_integer_from(1, INT64_MAX),
        "At most this many offsets in a batch, shared in proportion to how much waits in each partition; "
        "partitions with little get at least one each.",
        accepts=("1", "1000000", str(INT64_MAX)),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("many", _WRONG), ("", _WRONG)),
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        parse_integer_from(1, INT64_MAX),
        "Wait for this many offsets before a batch runs, but not longer than `maxTriggerDelay`.",
        accepts=("1", "5000"),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("x", _WRONG)),
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        parse_delay_ms,
        "The longest wait for `minOffsetsPerTrigger`, from the batch before.",
        default=900_000,
        default_doc="`15m`",
        accepts=("15m", "30s", "500ms", "2000"),
        rejects=(("", _WRONG), ("soon", _WRONG), ("-1s", _WRONG)),
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        parse_size_bytes,
        "Ours: at most about this many bytes in a batch, as the brokers store them, estimated from samples.",
        accepts=("64m", "1g", "1048576"),
        rejects=(("0", _WRONG), ("-1m", _WRONG), ("big", _WRONG)),
    )
    metadata_cache_ms: int | None = option(
        "partition.metadata.cache.ttl.ms",
        parse_cache_ms,
        "For this many milliseconds the driver caches topics, partitions and leaders, so that a trigger that "
        "finds nothing new asks only for ends. Before a batch is planned, after a failure, and before a loss "
        "is believed, the brokers are asked about the topics that are read. Partitions and topics that are "
        "added are found when the time is over at the latest. -1: always ask.",
        default_doc="`-1`",
        accepts=("-1", "1", "30000"),
        rejects=(("0", _WRONG), ("-2", _WRONG), ("-100", _WRONG), ("", _WRONG), ("30s", _WRONG)),
    )
    commit_offsets_to_group: str | None = option(
        "commitOffsetsToGroup",
        parse_text,
        "Ours: commit what is finished to this consumer group, so that Kafka's own tools show the lag. The "
        "query itself never resumes from there, because it has its checkpoint.",
        accepts=("reports",),
        rejects=((" ", _WRONG),),
    )
    loss_ledger: str | None = option(
        "lossLedger",
        parse_text,
        "Ours: where losses are recorded when `failOnDataLoss` is false: a file (SQLite), "
        "`postgresql://...` or `mysql://...`. `penstock loss` shows it.",
        accepts=("losses.db", "sqlite:///losses.db", "postgresql://u:p@h/d", "mysql://u:p@h:3306/d"),
        rejects=((" ", _WRONG), ("oracle://h/d", "PLACE_INVALID")),
    )
    backpressure: bool = option(
        "backpressure.enabled",
        parse_boolean,
        "Ours for streams: the next batch takes what the last ones show can be done in "
        "`targetBatchDuration`.",
        default=False,
        accepts=("true", "false"),
        rejects=(("yes", _WRONG),),
    )
    initial_rate: float | None = option(
        "backpressure.initialRate",
        parse_rate_above_zero,
        "Records a second until batches have been measured. Without it the first batches take all there is, "
        "within the other limits.",
        accepts=("1000", "0.5"),
        rejects=(("-1", _WRONG), ("inf", _WRONG), ("nan", _WRONG), ("0", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    target_batch_duration_ms: int = option(
        "targetBatchDuration",
        parse_span_ms,
        "How long a batch should take with backpressure.",
        default=1000,
        default_doc="`1s`",
        accepts=("1s", "500ms", "2000"),
        rejects=(("0", _WRONG), ("fast", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    pid_proportional: float = option(
        "backpressure.pid.proportional",
        parse_rate,
        "Weight of the last batch's error.",
        default=1.0,
        accepts=("1.0",),
        rejects=(("-1", _WRONG), ("nan", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    pid_integral: float = option(
        "backpressure.pid.integral",
        parse_rate,
        "Weight of the errors so far.",
        default=0.2,
        accepts=("0", "0.2"),
        rejects=(("-0.2", _WRONG),),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    pid_derived: float = option(
        "backpressure.pid.derived",
        parse_rate,
        "Weight of the error's change.",
        default=0.0,
        accepts=("0.0",),
        rejects=(("-1", _WRONG),),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    pid_min_rate: float = option(
        "backpressure.pid.minRate",
        parse_rate_above_zero,
        "Records a second that are always allowed.",
        default=100.0,
        accepts=("100", "1"),
        rejects=(("0", _WRONG), ("-1", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    max_rate_per_partition: float | None = option(
        "maxRatePerPartition",
        parse_rate,
        "At most this many records a second from one partition; 0 for no such limit.",
        accepts=("1000", "0"),
        rejects=(("-1", _WRONG), ("fast", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )
    min_rate_per_partition: float = option(
        "minRatePerPartition",
        parse_rate_above_zero,
        "At least this many records a second from a partition where something waits.",
        default=1.0,
        accepts=("1", "10"),
        rejects=(("-1", _WRONG), ("0", _WRONG)),
        needs=_PACED,
        only_with={"backpressure.enabled": ()},
    )


#: Options that have no meaning in a batch read.
STREAM_ONLY = tuple(
    spec.key for name, spec in option_specs(StreamTable).items() if name not in option_specs(BatchTable)
)
#: Options that contradict a stream.
ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
