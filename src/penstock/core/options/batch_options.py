"""The options of a batch read: `spark.read.format("penstock")`.

Rule: parse once, at the door. `parse_batch_options` turns the texts into `BatchOptions`; what is wrong
fails there, before any broker is asked, and nothing behind it sees an option's text. Names and meanings
are those of Spark's own connector, so that a job moves over by changing the format; ours are marked in
the table.

>>> parse_batch_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").client.group_id
'spark-kafka-relation-x-driver'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_settings import ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import Ago, Earliest, Latest
from penstock.core.options.batch_option_table import BatchTable
from penstock.core.options.option_table import read_surface
from penstock.core.options.position_rules import Rule, check_start_not_after_end, list_positions
from penstock.core.options.shared_options import (
    check_committed,
    name_clients,
    read_columns,
    read_rule,
    read_selection,
    refuse_files,
    sort_keys,
    warn_about_group,
    warn_about_times,
)
from penstock.core.options.stream_option_table import STREAM_ONLY
from penstock.core.options.typed_column_options import FormatTable, pick_formats
from penstock.core.planning.offset_planning import PlanLimits
from penstock.core.planning.partition_selection import Selection
from penstock.core.planning.range_bounds import BatchRead


@dataclass(frozen=True)
class BatchOptions:
    """A batch read, parsed. `client` is the driver's, `executor_client` the tasks'."""

    selection: Selection
    start: Rule
    end: Rule
    unmatched_start: str
    client: ClientSettings
    executor_client: ClientSettings
    columns: tuple[str, ...]
    formats: FormatTable
    min_partitions: int | None
    max_records_per_partition: int | None
    min_records_per_task: int
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    connection_pool: bool
    warnings: tuple[str, ...]

    @property
    def reading(self) -> BatchRead:
        """What planning starts from."""
        return BatchRead(
            self.selection,
            self.start,
            self.end,
            self.unmatched_start,
            committed_only=self.client.isolation_level == "read_committed",
        )

    @property
    def limits(self) -> PlanLimits:
        """How planning cuts."""
        return PlanLimits(self.min_partitions, self.max_records_per_partition, self.min_records_per_task)


def parse_batch_options(
    options: Mapping[str, str],
    *,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
) -> BatchOptions:
    """Parse all options. `unique` ends the generated group id; files and variables come from the caller."""
    texts, java, warnings = sort_keys(
        BatchTable,
        options,
        elsewhere={key: f"`{key}` has no effect in a batch read." for key in STREAM_ONLY},
        read_file=read_file,
        environ=environ or {},
    )
    table = read_surface(BatchTable, texts)
    # Spark's order: when several things are wrong, both connectors should name the same one.
    selection = read_selection(table)
    client = parse_client(java, read_file=read_file)
    start, unmatched = _read_start(table)
    end = _read_end(table)
    check_start_not_after_end(start, end)
    check_committed(start, end, client.settings)
    if table.min_partitions and table.min_records_per_task:
        raise OptionError(
            "OPTION_CONFLICT",
            "`minPartitions` cuts ranges and `minRecordsPerTask` packs them; both are set.",
            hint="Set one of them.",
        )
    driver, executor = name_clients(client.settings, f"{table.group_id_prefix}-{unique}")
    return BatchOptions(
        selection=selection,
        start=start,
        end=end,
        unmatched_start=unmatched,
        client=driver,
        executor_client=executor,
        columns=read_columns(table),
        formats=pick_formats(table, texts, selection),
        min_partitions=table.min_partitions,
        max_records_per_partition=table.max_records_per_partition,
        min_records_per_task=table.min_records_per_task,
        fail_on_data_loss=table.fail_on_data_loss,
        poll_timeout_ms=table.poll_timeout_ms,
        fetch_offset_retries=table.fetch_offset_retries,
        fetch_offset_retry_interval_ms=table.fetch_offset_retry_interval_ms,
        connection_pool=table.connection_pool,
        warnings=(
            *warnings,
            *warn_about_group(client.settings, texts),
            *warn_about_times(start, end),
            *client.warnings,
        ),
    )


# --- groups of options ----------------------------------------------------------------------------


def _read_start(table: BatchTable) -> tuple[Rule, str]:
    """The start, and what to do where its time finds no record."""
    rule = read_rule(
        ("startingTimestamp", table.starting_timestamp),
        ("startingOffsetsByTimestamp", table.starting_offsets_by_timestamp),
        ("startingOffsets", table.starting_offsets),
        default=Earliest(),
        refused=Latest(),
    )
    if Latest() in list_positions(rule):
        raise OptionError(
            "START_AT_LATEST",
            "A batch read cannot start at `latest`: it would read nothing.",
            hint="Start at `earliest`, at offsets or at a time.",
        )
    # "The last ten minutes" of a partition that was silent is nothing, not an error; a time that was named
    # and is not there is Spark's error.
    relative = any(isinstance(each, Ago) for each in list_positions(rule))
    return rule, table.starting_strategy or ("latest" if relative else "error")


def _read_end(table: BatchTable) -> Rule:
    rule = read_rule(
        ("endingTimestamp", table.ending_timestamp),
        ("endingOffsetsByTimestamp", table.ending_offsets_by_timestamp),
        ("endingOffsets", table.ending_offsets),
        default=Latest(),
        refused=Earliest(),
    )
    if Earliest() in list_positions(rule):
        raise OptionError(
            "END_AT_EARLIEST",
            "A batch read cannot end at `earliest`: it would read nothing.",
            hint="End at `latest`, at offsets or at a time.",
        )
    return rule
