"""The options of a stream: `spark.readStream.format("penstock")`.

Rule: as for a batch read, parsed once, at the door. Spark's `load()` does not say whether a frame will be
read as a batch or as a stream, so `check_load` refuses there only what is wrong for both; what is
wrong for one kind fails when that kind of query starts.

>>> parse_stream_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").start
ForAll(position=Latest())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_settings import ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import Ago, Earliest, Latest, Position
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.option_table import invalid, read_surface, refuse_stranded
from penstock.core.options.position_rules import ForAll, Rule, list_positions
from penstock.core.options.secret_references import resolve_reference
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
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.core.options.stream_option_table import ENDS, RECORDS_WORTH_A_TASK, StreamTable
from penstock.core.options.typed_column_options import FormatTable, pick_formats
from penstock.core.planning.offset_planning import PlanLimits
from penstock.core.planning.partition_selection import Selection
from penstock.core.planning.range_bounds import BatchRead
from penstock.core.streaming.backpressure import Pacing, PidSettings

_FALLBACKS: Mapping[str, Position | None] = {"error": None, "earliest": Earliest(), "latest": Latest()}


@dataclass(frozen=True)
class StreamOptions:
    """A stream, parsed. `client` is the driver's, `executor_client` the tasks'."""

    selection: Selection
    start: Rule
    unmatched_start: str
    uncommitted_start: Position | None
    client: ClientSettings
    executor_client: ClientSettings
    columns: tuple[str, ...]
    formats: FormatTable
    limits: PlanLimits
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    connection_pool: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    max_bytes: int | None
    metadata_cache_ms: int | None
    commit_group: str | None
    fixed_group: str | None
    loss_ledger: Place | None
    pacing: Pacing | None
    warnings: tuple[str, ...]

    @property
    def reading(self) -> BatchRead:
        """What the first position is resolved from: the start rule against the log's end."""
        return BatchRead(
            self.selection,
            self.start,
            ForAll(Latest()),
            self.unmatched_start,
            self.uncommitted_start,
            committed_only=self.client.isolation_level == "read_committed",
        )


def check_load(
    options: Mapping[str, str],
    *,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], FormatTable]:
    """Refuse what is wrong in every kind of query; returns the columns, and how typed ones are made."""
    texts, java, _ = sort_keys(StreamTable, options, elsewhere={}, read_file=read_file, environ=environ or {})
    table = read_surface(StreamTable, texts)
    selection = read_selection(table)
    parse_client(java, read_file=read_file)
    _read_start(table)
    if any(key.lower() in texts for key in ENDS):  # only a batch read has an end: then all of its rules hold
        parse_batch_options(options, unique="", read_file=read_file, environ=environ)
    refuse_stranded(StreamTable, table, texts)
    return read_columns(table), pick_formats(table, texts, selection)


def parse_stream_options(
    options: Mapping[str, str],
    *,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
) -> StreamOptions:
    """Parse all options. `unique` ends the generated group id; files and variables come from the caller."""
    texts, java, warnings = sort_keys(
        StreamTable,
        options,
        elsewhere={},
        read_file=read_file,
        environ=environ or {},
    )
    table = read_surface(StreamTable, texts)
    selection = read_selection(table)
    client = parse_client(java, read_file=read_file)
    _refuse_ends(texts)
    start, unmatched = _read_start(table)
    check_committed(start, ForAll(Latest()), client.settings)
    _check_bounds(table)
    driver, executor = name_clients(client.settings, f"{table.group_id_prefix}-{unique}")
    return StreamOptions(
        selection=selection,
        start=start,
        unmatched_start=unmatched,
        uncommitted_start=_FALLBACKS[table.starting_offsets_fallback],
        client=driver,
        executor_client=executor,
        columns=read_columns(table),
        formats=pick_formats(table, texts, selection),
        limits=_read_limits(table),
        fail_on_data_loss=table.fail_on_data_loss,
        poll_timeout_ms=table.poll_timeout_ms,
        fetch_offset_retries=table.fetch_offset_retries,
        fetch_offset_retry_interval_ms=table.fetch_offset_retry_interval_ms,
        connection_pool=table.connection_pool,
        max_offsets=table.max_offsets_per_trigger,
        min_offsets=table.min_offsets_per_trigger,
        max_delay_ms=table.max_trigger_delay_ms,
        max_bytes=table.max_bytes_per_trigger,
        metadata_cache_ms=table.metadata_cache_ms,
        commit_group=table.commit_offsets_to_group,
        fixed_group=client.settings.group_id,
        loss_ledger=_read_ledger(table, read_file, environ or {}),
        pacing=_read_pacing(table),
        warnings=(
            *warnings,
            *warn_about_group(client.settings, texts),
            *warn_about_times(start),
            *_warn_about_cold_start(table),
            *_warn_about_ledger(table),
            *client.warnings,
        ),
    )


def _warn_about_ledger(table: StreamTable) -> list[str]:
    if table.loss_ledger is None or not table.fail_on_data_loss:
        return []
    return ["`lossLedger` keeps what a query goes on without: nothing, while `failOnDataLoss` is true."]


def _read_start(table: StreamTable) -> tuple[Rule, str]:
    rule = read_rule(
        ("startingTimestamp", table.starting_timestamp),
        ("startingOffsetsByTimestamp", table.starting_offsets_by_timestamp),
        ("startingOffsets", table.starting_offsets),
        default=Latest(),
    )
    relative = any(isinstance(each, Ago) for each in list_positions(rule))
    return rule, table.starting_strategy or ("latest" if relative else "error")


def _refuse_ends(texts: Mapping[str, str]) -> None:
    given = [key for key in ENDS if key.lower() in texts]
    if given:
        raise OptionError(
            "END_IN_STREAM",
            f"A stream has no end, but `{given[0]}` is set.",
            hint="Leave it out; to read what is there now and stop, use the trigger `availableNow`.",
            facts={"option": given[0]},
        )


def _check_bounds(table: StreamTable) -> None:
    least, most = table.min_offsets_per_trigger, table.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise invalid("minOffsetsPerTrigger", str(least), f"at most `maxOffsetsPerTrigger`, which is {most}")
    if table.min_partitions and table.min_records_per_task:
        raise OptionError(
            "OPTION_CONFLICT",
            "`minPartitions` cuts ranges and `minRecordsPerTask` packs them; both are set.",
            hint="Set one of them.",
        )


def _read_limits(table: StreamTable) -> PlanLimits:
    """Small ranges share tasks, unless the user says how the work is to be cut."""
    packed = table.min_records_per_task
    if packed is None:
        cut = table.min_partitions is not None or table.max_records_per_partition is not None
        packed = 0 if cut else RECORDS_WORTH_A_TASK
    return PlanLimits(table.min_partitions, table.max_records_per_partition, packed)


def _read_ledger(table: StreamTable, read_file: ReadFile, environ: Mapping[str, str]) -> Place | None:
    if table.loss_ledger is None:
        return None
    return parse_place(
        resolve_reference("lossLedger", table.loss_ledger, environ=environ, read_file=read_file)
    )


def _read_pacing(table: StreamTable) -> Pacing | None:
    if not table.backpressure:
        return None
    return Pacing(
        target_ms=table.target_batch_duration_ms,
        pid=PidSettings(table.pid_proportional, table.pid_integral, table.pid_derived, table.pid_min_rate),
        initial_rate=table.initial_rate,
        max_rate_per_partition=table.max_rate_per_partition or None,
        min_rate_per_partition=table.min_rate_per_partition,
    )


def _warn_about_cold_start(table: StreamTable) -> list[str]:
    bounds = (
        table.initial_rate,
        table.max_rate_per_partition,
        table.max_offsets_per_trigger,
        table.max_bytes_per_trigger,
    )
    if not table.backpressure or any(bounds):
        return []
    return [
        "`backpressure.enabled` is set without a limit for the cold start: the first batch takes all that "
        "waits. Set `backpressure.initialRate`."
    ]
